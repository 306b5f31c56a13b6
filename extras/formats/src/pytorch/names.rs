//! Names of tensors: the way through dictionaries, lists and modules of a pickle.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::script;
use super::values::{Class, Node, Value, Values};
use crate::budget::{Depth, ENTRY};
use crate::error::{Error, ErrorKind, Result};

/// Of every `torch.nn.Module`.
const TABLES: [&str; 3] = ["_parameters", "_buffers", "_modules"];

/// In the `state_dict()` of an optimizer.
const STATE: &str = "state";
pub(super) const GROUPS: &str = "param_groups";

#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) tensors: Vec<(String, u32)>,
    pub(super) bytes: Vec<(String, Arc<[u8]>)>,
    /// Objects of unknown classes with tensors or arrays, with their classes.
    pub(super) unreadable: Vec<(String, String)>,
    pub(super) left_out: LeftOut,
    pub(super) settings: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    numbers: u64,
    texts: u64,
    objects: u64,
    /// Tensors of modules that are neither parameters nor buffers.
    attributes: u64,
}

impl LeftOut {
    pub(super) fn is_empty(&self) -> bool {
        self.numbers + self.texts + self.objects + self.attributes == 0
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (
                self.attributes,
                "tensor that is no state of its module",
                "tensors that are no state of their modules",
            ),
            (self.numbers, "number", "numbers"),
            (self.texts, "text", "texts"),
            (self.objects, "other object", "other objects"),
        ];
        let counts = counts.iter().filter(|(count, ..)| *count > 0);
        for (position, (count, one, several)) in counts.enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            write!(f, "{comma}{count} {}", if *count == 1 { one } else { several })?;
        }
        Ok(())
    }
}

/// `alone` names the root itself, `name` precedes all other names.
///
/// Names are joined keys, or positions in lists; modules have names as in `state_dict()`, constants
/// of TorchScript as in its code.
pub(super) fn collect(values: &Values, root: Value, alone: &str, name: &str) -> Result<Collected> {
    let mut search = Search::new(values);
    values.budget.keep(alone.len())?;
    match values.node(root) {
        Some(&Node::Tensor(tensor)) => search.found.tensors.push((alone.to_owned(), tensor)),
        Some(Node::Bytes(bytes)) => search.found.bytes.push((alone.to_owned(), Arc::clone(bytes))),
        _ if name.is_empty() => search.walk(root)?,
        _ => search.below(name.into(), root)?,
    }
    // Always, because a module may be frozen in part. Other names would have to be guessed from the
    // operations.
    for (position, &constant) in
        values.items(values.constants).unwrap_or_default().iter().enumerate()
    {
        search.below(format!("CONSTANTS.c{position}").into(), constant)?;
    }
    Ok(search.found)
}

pub(super) struct Search<'a> {
    pub(super) values: &'a Values,
    found: Collected,
    path: Vec<Cow<'a, str>>,
    path_len: usize,
    pub(super) depth: Depth,
}

impl<'a> Search<'a> {
    pub(super) fn new(values: &'a Values) -> Self {
        let found = Collected::default();
        let depth = Depth::default();
        Self { values, found, path: Vec::new(), path_len: 0, depth }
    }

    fn walk(&mut self, value: Value) -> Result<()> {
        let values = self.values;
        let Some(node) = values.node(value) else { return Ok(()) };
        values.step(node.len())?;
        match node {
            &Node::Tensor(tensor) => {
                let name = self.name()?;
                self.found.tensors.push((name, tensor));
            }
            Node::Bytes(bytes) => {
                let name = self.name()?;
                self.found.bytes.push((name, Arc::clone(bytes)));
            }
            Node::Storage(_) => self.unreadable("torch.storage".into())?,
            Node::Tuple(items) | Node::List(items) => {
                for (position, &item) in items.iter().enumerate() {
                    if is_node(item) {
                        self.below(position.to_string().into(), item)?;
                    } else {
                        self.leave_out(item);
                    }
                }
            }
            Node::Dict { items, state } => {
                self.refuse_tensors(*state, "an attribute of a dictionary")?;
                self.check_keys(items)?;
                let keeps_settings = self.settings(value)?;
                for &(key, value) in items {
                    let LeftOut { numbers, texts, .. } = self.found.left_out;
                    match values.key(key) {
                        Some(key) => self.below(key, value)?,
                        None if is_node(key) || is_node(value) => {
                            self.refuse_tensors(key, "a key")?;
                            self.refuse_tensors(value, "a key that is not a text")?;
                        }
                        None => {}
                    }
                    if keeps_settings && values.text(key) == Some(GROUPS) {
                        let left_out = &mut self.found.left_out;
                        (left_out.numbers, left_out.texts) = (numbers, texts);
                    }
                }
            }
            Node::Object { class, parts } => self.object(value, *class, parts)?,
            Node::Text(_) => self.found.left_out.texts += 1,
            Node::Integer(_) => self.found.left_out.numbers += 1,
            Node::Class { .. } => self.found.left_out.objects += 1,
        }
        Ok(())
    }

    /// Keeps an optimizer's settings. Returns whether the dictionary is its state.
    fn settings(&mut self, dict: Value) -> Result<bool> {
        let [state, groups] = [STATE, GROUPS].map(|key| self.values.get(dict, key));
        let Some((state, groups)) = state.zip(groups) else { return Ok(false) };
        if self.values.dict(state).is_none() || self.values.items(groups).is_none() {
            return Ok(false);
        }
        if let Some(json) = self.json(groups)? {
            let json = json.to_string();
            self.path.push(GROUPS.into());
            self.values.budget.keep(json.len() + GROUPS.len())?;
            let name = self.name()?;
            self.path.pop();
            self.found.settings.push((name, json));
        }
        Ok(true)
    }

    fn name(&mut self) -> Result<String> {
        self.values.budget.keep(self.path_len + ENTRY)?;
        Ok(self.path.join("."))
    }

    fn below(&mut self, key: Cow<'a, str>, value: Value) -> Result<()> {
        if !is_node(value) {
            self.leave_out(value);
            return Ok(());
        }
        let before = (self.depth, self.path_len);
        self.depth = self.depth.deeper()?;
        self.path_len += key.len() + 1;
        self.path.push(key);
        self.walk(value)?;
        self.path.pop();
        (self.depth, self.path_len) = before;
        Ok(())
    }

    fn leave_out(&mut self, value: Value) {
        self.found.left_out.numbers += u64::from(value != Value::None);
    }

    fn object(&mut self, value: Value, class: Value, parts: &'a [Value]) -> Result<()> {
        let values = self.values;
        let class = values.class(class);
        // Many objects can have the same attributes.
        let attributes = parts.last().and_then(|&attributes| values.dict(attributes));
        values.step(attributes.map_or(0, <[_]>::len))?;
        if let Some((module, name)) = class {
            self.step_over(module)?;
            self.step_over(name)?;
        }
        if let Some(class) = class.and_then(|class| values.module_class(class))
            && let Some(&attributes) = parts.last()
            && values.dict(attributes).is_some()
        {
            return self.script_module(class, attributes);
        }
        if let Some((tables, attributes)) = self.tables(parts) {
            return self.module(tables, attributes);
        }
        if !values.holds_tensors(value)? {
            self.found.left_out.objects += 1;
            return Ok(());
        }
        match class {
            Some((module, name)) if script::lacks_code(values, module, name) => {
                let class = format!("{module}.{name}");
                Err(self.located(ErrorKind::NoCode { class }))
            }
            Some((module, name)) => self.unreadable(format!("{module}.{name}")),
            None => self.unreadable("an unknown class".into()),
        }
    }

    fn tables(&self, parts: &[Value]) -> Option<([Value; 3], Value)> {
        let attributes = *parts.last()?;
        let mut tables = [Value::None; 3];
        for (table, name) in tables.iter_mut().zip(TABLES) {
            *table = self.values.get(attributes, name)?;
            self.values.dict(*table)?;
        }
        Some((tables, attributes))
    }

    fn module(&mut self, tables: [Value; 3], attributes: Value) -> Result<()> {
        let values = self.values;
        let hidden = values.get(attributes, "_non_persistent_buffers_set");
        let hidden = hidden.and_then(|hidden| values.items(hidden)).unwrap_or_default();
        values.step(hidden.len())?;
        let hidden = hidden.iter().filter_map(|&name| values.text(name));
        let hidden = hidden.map(|name| self.step_over(name).map(|()| name));
        let hidden = hidden.collect::<Result<HashSet<_>>>()?;
        for (table, name) in tables.into_iter().zip(TABLES) {
            let items = values.dict(table).unwrap_or_default();
            values.step(items.len())?;
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
                if is_hidden {
                    self.found.left_out.attributes += 1;
                } else {
                    self.below(key, value)?;
                }
            }
        }
        Ok(())
    }

    fn script_module(&mut self, class: &Class, attributes: Value) -> Result<()> {
        let values = self.values;
        let items = values.dict(attributes).unwrap_or_default();
        self.check_keys(items)?;
        for &(key, value) in items {
            let Some(key) = values.key(key) else {
                self.refuse_tensors(value, "a key that is not a text")?;
                continue;
            };
            self.step_over(&key)?;
            let is_state = match values.node(value) {
                Some(Node::Tensor(_)) => class.has(&key),
                // A submodule, or a value that only its class could read.
                Some(Node::Object { class, .. }) => {
                    values.class(*class).is_some_and(|(module, _)| module.starts_with("__torch__"))
                }
                Some(_) => false,
                None => {
                    self.leave_out(value);
                    continue;
                }
            };
            if is_state {
                self.below(key, value)?;
            } else if values.holds_tensors(value)? {
                self.found.left_out.attributes += 1;
            } else {
                self.found.left_out.objects += 1;
            }
        }
        Ok(())
    }

    /// Python has each key once, so readers would differ.
    fn check_keys(&mut self, items: &'a [(Value, Value)]) -> Result<()> {
        let mut numbers = HashSet::new();
        let mut texts = HashSet::new();
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
                return Err(self.located(ErrorKind::DuplicateDictKey));
            }
        }
        Ok(())
    }

    /// Counts a search for a key, longer for a long one, which many items can have.
    fn step_over(&self, key: &str) -> Result<()> {
        self.values.budget.work_on(key)
    }

    /// Lists the visited value. An error if it is all there is.
    fn unreadable(&mut self, class: String) -> Result<()> {
        if self.path.is_empty() {
            return Err(ErrorKind::UnknownObject { class }.into());
        }
        let name = self.name()?;
        self.values.budget.keep(class.len())?;
        self.found.unreadable.push((name, class));
        Ok(())
    }

    fn refuse_tensors(&mut self, value: Value, what: &str) -> Result<()> {
        if self.values.holds_tensors(value)? {
            Err(self.located(ErrorKind::UnknownObject { class: what.to_owned() }))
        } else {
            Ok(())
        }
    }

    fn located(&self, kind: ErrorKind) -> Error {
        let error = Error::from(kind);
        if self.path.is_empty() { error } else { error.in_tensor(&self.path.join(".")) }
    }
}

fn is_node(value: Value) -> bool {
    matches!(value, Value::Node(_))
}
