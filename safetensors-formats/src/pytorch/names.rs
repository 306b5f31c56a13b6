//! Names of tensors: the way to each through the dictionaries, lists and modules of a pickle.

use std::borrow::Cow;
use std::collections::HashSet;

use super::settings::Settings;
use super::values::{Node, Value, Values};
use crate::Limits;
use crate::error::{Error, ErrorKind, Result};

/// The deepest nesting of dictionaries and lists that hold tensors.
const DEEPEST: usize = 100;

/// The tables that every `torch.nn.Module` has.
const TABLES: [&str; 3] = ["_parameters", "_buffers", "_modules"];

/// What the `state_dict()` of an optimizer has.
const OPTIMIZER: [&str; 2] = ["state", "param_groups"];

/// What a pickle has.
#[derive(Default)]
pub(super) struct Found {
    /// Every tensor in order, with its name and its position among [`Values::tensors`].
    pub(super) tensors: Vec<(String, u32)>,
    /// The settings of optimizers, as JSON, with their names.
    pub(super) settings: Vec<(String, String)>,
}

/// Finds every tensor below `root`, and the settings of optimizers. `alone` names a tensor that is
/// the root itself.
///
/// A name is the keys on the way, joined by dots; a list has its positions as keys. A module is
/// read as its `state_dict()` would name it.
///
/// # Errors
///
/// [`ErrorKind::UnknownObject`] for a tensor in an object of another class;
/// [`ErrorKind::DuplicateDictKey`].
pub(super) fn collect(values: &Values, root: Value, alone: &str, limits: &Limits) -> Result<Found> {
    let mut search = Search {
        values,
        found: Found::default(),
        path: Vec::new(),
        path_len: 0,
        steps: values.most_steps(),
        text_left: limits.directory_bytes,
        limits,
    };
    if let Some(&Node::Tensor(tensor)) = values.node(root) {
        search.found.tensors.push((alone.to_owned(), tensor));
        return Ok(search.found);
    }
    search.walk(root)?;
    Ok(search.found)
}

struct Search<'a> {
    values: &'a Values,
    found: Found,
    /// The keys on the way to the value that is visited.
    path: Vec<Cow<'a, str>>,
    /// The bytes of the path, with a dot behind each key.
    path_len: u64,
    /// The values that may still be visited: a pickle can use one value in many places.
    steps: usize,
    /// The bytes that names may still have.
    text_left: u64,
    limits: &'a Limits,
}

impl<'a> Search<'a> {
    fn walk(&mut self, value: Value) -> Result<()> {
        let values = self.values;
        let Some(node) = values.node(value) else { return Ok(()) };
        values.step(&mut self.steps, node.len())?;
        match node {
            &Node::Tensor(tensor) => {
                let limit = self.limits.directory_bytes;
                let left = self.text_left.checked_sub(self.path_len);
                self.text_left = left.ok_or(ErrorKind::DirectoryTooLong { limit })?;
                self.found.tensors.push((self.path.join("."), tensor));
            }
            Node::Storage(_) => return Err(self.unknown("torch.storage".into())),
            Node::Tuple(items) | Node::List(items) => {
                for (position, &item) in items.iter().enumerate() {
                    if is_node(item) {
                        self.below(position.to_string().into(), item)?;
                    }
                }
            }
            Node::Dict { items, state } => {
                self.refuse_tensors(*state, "an attribute of a dictionary")?;
                self.check_keys(items)?;
                self.settings(value)?;
                for &(key, value) in
                    items.iter().filter(|(key, value)| is_node(*key) || is_node(*value))
                {
                    match values.key(key) {
                        Some(key) => self.below(key, value)?,
                        None => {
                            self.refuse_tensors(key, "a key")?;
                            self.refuse_tensors(value, "a key that is not a text")?;
                        }
                    }
                }
            }
            Node::Object { class, parts } => match self.tables(parts) {
                Some((tables, attributes)) => self.module(tables, attributes)?,
                None => {
                    let name = match self.values.class(*class) {
                        Some((module, name)) => format!("{module}.{name}"),
                        None => "an unknown class".into(),
                    };
                    self.refuse_tensors(value, &name)?;
                }
            },
            Node::Text(_) | Node::Bytes(_) | Node::Class { .. } => {}
        }
        Ok(())
    }

    /// Keeps the settings of an optimizer, if a dictionary is the state of one.
    fn settings(&mut self, dict: Value) -> Result<()> {
        let [state, groups] = OPTIMIZER.map(|key| self.values.get(dict, key));
        let Some((state, groups)) = state.zip(groups) else { return Ok(()) };
        if self.values.dict(state).is_none() || self.values.items(groups).is_none() {
            return Ok(());
        }
        let limit = self.limits.directory_bytes;
        let (values, steps) = (self.values, &mut self.steps);
        let json =
            Settings { values, steps, text_left: &mut self.text_left, limit }.json(groups)?;
        let path = self.path.iter().map(AsRef::as_ref).chain([OPTIMIZER[1]]);
        let name = path.collect::<Vec<&str>>().join(".");
        self.found.settings.extend(json.map(|json| (name, json.to_string())));
        Ok(())
    }

    fn below(&mut self, key: Cow<'a, str>, value: Value) -> Result<()> {
        if !is_node(value) {
            return Ok(());
        }
        if self.path.len() >= DEEPEST {
            return Err(ErrorKind::NestedTooDeep { limit: DEEPEST }.into());
        }
        // One long key can stand at every depth.
        let before = self.path_len;
        self.path_len = before.saturating_add(key.len() as u64 + 1);
        let limit = self.limits.directory_bytes;
        if self.path_len > limit {
            return Err(ErrorKind::DirectoryTooLong { limit }.into());
        }
        self.path.push(key);
        self.walk(value)?;
        self.path.pop();
        self.path_len = before;
        Ok(())
    }

    /// The tables of a module, and its attributes, if an object is a module.
    fn tables(&self, parts: &[Value]) -> Option<([Value; 3], Value)> {
        let attributes = *parts.last()?;
        let mut tables = [Value::None; 3];
        for (table, name) in tables.iter_mut().zip(TABLES) {
            *table = self.values.get(attributes, name)?;
            self.values.dict(*table)?;
        }
        Some((tables, attributes))
    }

    /// The tensors that `state_dict()` of a module has.
    fn module(&mut self, tables: [Value; 3], attributes: Value) -> Result<()> {
        let values = self.values;
        values.step(&mut self.steps, values.node(attributes).map_or(0, Node::len))?;
        let hidden = values.get(attributes, "_non_persistent_buffers_set");
        let hidden = hidden.and_then(|hidden| values.items(hidden)).unwrap_or_default();
        values.step(&mut self.steps, hidden.len())?;
        let hidden: HashSet<_> = hidden.iter().filter_map(|&name| values.text(name)).collect();
        for (table, name) in tables.into_iter().zip(TABLES) {
            let items = values.dict(table).unwrap_or_default();
            values.step(&mut self.steps, items.len())?;
            self.check_keys(items)?;
            for &(key, value) in items.iter().filter(|(_, value)| is_node(*value)) {
                let Some(key) = values.key(key) else {
                    self.refuse_tensors(value, "a key that is not a text")?;
                    continue;
                };
                let mut is_hidden = false;
                if name == "_buffers" && !hidden.is_empty() {
                    self.step_over(&key)?;
                    is_hidden = hidden.contains(&*key);
                }
                if !is_hidden {
                    self.below(key, value)?;
                }
            }
        }
        Ok(())
    }

    /// Fails if a dictionary has a key twice. A dictionary of Python has each key once, so which of
    /// the values counts would depend on the reader.
    fn check_keys(&mut self, items: &'a [(Value, Value)]) -> Result<()> {
        let (mut numbers, mut texts) = (HashSet::new(), HashSet::new());
        for &(key, _) in items {
            let is_new = match key {
                Value::Int(number) => numbers.insert(number),
                // For Python, `True` and 1 are one key.
                Value::Bool(flag) => numbers.insert(flag.into()),
                _ => match self.values.text(key) {
                    Some(text) => {
                        self.step_over(text)?;
                        texts.insert(text)
                    }
                    // No tensor has such a key.
                    None => true,
                },
            };
            if !is_new {
                self.path.extend(self.values.key(key));
                return Err(
                    Error::from(ErrorKind::DuplicateDictKey).in_tensor(&self.path.join("."))
                );
            }
        }
        Ok(())
    }

    /// Counts the search for a key. It takes longer for a long one, which many items can have.
    fn step_over(&mut self, key: &str) -> Result<()> {
        self.values.step(&mut self.steps, key.len() / 64)
    }

    /// Fails if a value, which is a part of `what`, holds tensors.
    fn refuse_tensors(&mut self, value: Value, what: &str) -> Result<()> {
        if self.values.holds_tensors(value, &mut self.steps)? {
            Err(self.unknown(what.to_owned()))
        } else {
            Ok(())
        }
    }

    fn unknown(&self, class: String) -> Error {
        let error = Error::from(ErrorKind::UnknownObject { class });
        if self.path.is_empty() { error } else { error.in_tensor(&self.path.join(".")) }
    }
}

/// Whether a value can hold a tensor, or anything else.
fn is_node(value: Value) -> bool {
    matches!(value, Value::Node(_))
}
