//! [`Values`]: the objects of a pickle.
//!
//! An object is a node of a list, and values hold its position, so a repeated object is one node,
//! as in Python. No code runs: an object of an unknown class stays a list of its parts.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::budget::{Budget, ENTRY};
use crate::error::{ErrorKind, Result};

pub(super) const MOST_DIMENSIONS: usize = 64;

/// Small, or the position of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Value {
    #[default]
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Node(u32),
}

impl Value {
    pub(super) fn count(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

/// How characters encode bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Encoding {
    /// A character for each byte, as Python 3 writes with protocols 0 to 2.
    Latin1,
    /// Bytes that are UTF-8 by chance. Python 2 has one type for both.
    Utf8,
}

#[derive(Debug)]
pub(super) enum Node {
    Text(Box<str>),
    Bytes(Arc<[u8]>),
    /// Above 64 bits, as in the pickle.
    Integer(Box<[u8]>),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    /// A dictionary, and other state that was set.
    Dict {
        items: Vec<(Value, Value)>,
        state: Value,
    },
    Class {
        module: Box<str>,
        name: Box<str>,
    },
    /// By position among [`Values::storages`].
    Storage(StorageRef),
    /// By position among [`Values::tensors`].
    Tensor(u32),
    Object {
        class: Value,
        parts: Vec<Value>,
    },
}

impl Node {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Tuple(items) | Self::List(items) | Self::Object { parts: items, .. } => {
                items.len()
            }
            Self::Dict { items, .. } => items.len(),
            _ => 0,
        }
    }
}

/// A storage, or a view of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageRef {
    pub(super) storage: u32,
    /// The start of the view, in elements.
    pub(super) offset: u64,
    /// `None` for bytes.
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) width: u8,
}

#[derive(Debug)]
pub(super) struct Storage {
    pub(super) key: Arc<str>,
    /// According to the pickle.
    pub(super) byte_len: u64,
    /// Of an element of the storage, in which a legacy file counts.
    pub(super) width: u8,
    pub(super) held: Option<Arc<[u8]>>,
}

#[derive(Debug)]
pub(super) struct TensorRef {
    pub(super) storage: u32,
    pub(super) kind: Kind,
    /// In elements, like the strides.
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<u64>,
    pub(super) is_swapped: bool,
}

pub(super) type Classes = HashMap<String, Class>;

#[derive(Debug, Default)]
pub(super) struct Class {
    /// Others have attributes and no state.
    pub(super) is_module: bool,
    pub(super) state: HashSet<String>,
    /// Old versions of PyTorch only list parameters.
    pub(super) lists_buffers: bool,
}

#[derive(Debug)]
pub(super) struct Values {
    /// For the objects and everything made of them.
    pub(super) budget: Budget,
    nodes: Vec<Node>,
    pub(super) storages: Vec<Storage>,
    pub(super) tensors: Vec<TensorRef>,
    pub(super) by_key: HashMap<Arc<str>, u32>,
    pub(super) folder: &'static str,
    pub(super) classes: Classes,
    /// The tuple that the code of TorchScript uses.
    pub(super) constants: Value,
    /// By text, so that none is decoded twice.
    decoded: HashMap<(u32, Encoding), Value>,
}

impl Values {
    pub(super) fn new(budget: &Budget) -> Self {
        Self {
            budget: budget.clone(),
            nodes: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            by_key: HashMap::new(),
            folder: "",
            classes: Classes::new(),
            constants: Value::None,
            decoded: HashMap::new(),
        }
    }

    /// It has counted its references.
    pub(super) fn add(&mut self, node: Node) -> Result<Value> {
        self.budget.keep_all::<Node>(1)?;
        let Ok(position) = u32::try_from(self.nodes.len()) else {
            return Err(ErrorKind::DirectoryTooLong { limit: u32::MAX.into() }.into());
        };
        self.nodes.push(node);
        Ok(Value::Node(position))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = Value> + use<> {
        (0..self.nodes.len()).map(|position| Value::Node(position as u32))
    }

    pub(super) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(position) => self.nodes.get(position as usize),
            _ => None,
        }
    }

    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node> {
        match value {
            Value::Node(position) => self.nodes.get_mut(position as usize),
            _ => None,
        }
    }

    /// Takes bytes, or a text that encodes them. `None` for other values and characters.
    pub(super) fn bytes(&mut self, value: Value, encoding: Encoding) -> Result<Option<Value>> {
        let Value::Node(position) = value else { return Ok(None) };
        let text = match self.node(value) {
            Some(Node::Bytes(_)) => return Ok(Some(value)),
            Some(Node::Text(text)) => text,
            _ => return Ok(None),
        };
        if let Some(&known) = self.decoded.get(&(position, encoding)) {
            return Ok(Some(known));
        }
        self.budget.keep(text.len() + ENTRY)?;
        let bytes: Option<Vec<u8>> = match encoding {
            Encoding::Latin1 => text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect(),
            Encoding::Utf8 => Some(text.as_bytes().to_vec()),
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let decoded = self.add(Node::Bytes(bytes.into()))?;
        self.decoded.insert((position, encoding), decoded);
        Ok(Some(decoded))
    }

    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match self.node(value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// One for each dimension of a tensor.
    pub(super) fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        let items = self.items(value).filter(|items| items.len() <= MOST_DIMENSIONS)?;
        items.iter().map(|&item| usize::try_from(item.count()?).ok()).collect()
    }

    pub(super) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.node(value)? {
            Node::Dict { items, .. } => Some(items),
            _ => None,
        }
    }

    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let items = self.dict(dict)?.iter().rev();
        items.clone().find(|(found, _)| self.text(*found) == Some(key)).map(|(_, value)| *value)
    }

    pub(super) fn class(&self, value: Value) -> Option<(&str, &str)> {
        match self.node(value)? {
            Node::Class { module, name } => Some((module, name)),
            _ => None,
        }
    }

    pub(super) fn class_of(&self, object: Value) -> Option<(&str, &str)> {
        match self.node(object)? {
            Node::Object { class, .. } => self.class(*class),
            _ => None,
        }
    }

    pub(super) fn fields(&self, object: Value) -> Option<Value> {
        match self.node(object)? {
            Node::Object { parts, .. } => parts.last().copied(),
            _ => None,
        }
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Class { module, .. } => Some(&**module),
            _ => None,
        })
    }

    /// Takes a text or number. A text is borrowed: it can be long, and the key of many values.
    pub(super) fn key(&self, value: Value) -> Option<Cow<'_, str>> {
        match value {
            Value::Int(number) => Some(number.to_string().into()),
            Value::Bool(flag) => Some(if flag { "True" } else { "False" }.into()),
            _ => self.text(value).map(Cow::Borrowed),
        }
    }

    /// Counts copies: a small pickle can use a long list in many calls.
    pub(super) fn copy(&self, count: usize) -> Result<()> {
        self.budget.work(count)?;
        self.budget.keep_all::<Value>(count)
    }

    pub(super) fn step(&self, items: usize) -> Result<()> {
        self.budget.work(items.saturating_add(1))
    }

    /// At any depth. Counts each visited value.
    pub(super) fn holds_tensors(&self, value: Value) -> Result<bool> {
        let mut seen = HashSet::new();
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            let (Value::Node(position), Some(node)) = (value, self.node(value)) else { continue };
            let is_new = seen.insert(position);
            self.step(if is_new { node.len() } else { 0 })?;
            if !is_new {
                continue;
            }
            match node {
                Node::Tensor(_) | Node::Storage(_) => return Ok(true),
                Node::Tuple(items) | Node::List(items) => left.extend(items),
                Node::Dict { items, state } => {
                    left.push(*state);
                    left.extend(items.iter().flat_map(|(key, value)| [*key, *value]));
                }
                Node::Object { class, parts } => {
                    if self.class(*class).is_some_and(holds_numbers) {
                        return Ok(true);
                    }
                    left.push(*class);
                    left.extend(parts);
                }
                Node::Text(_) | Node::Bytes(_) | Node::Integer(_) | Node::Class { .. } => {}
            }
        }
        Ok(false)
    }
}

fn holds_numbers((module, name): (&str, &str)) -> bool {
    // PyTorch makes a tensor without data so.
    (module.starts_with("torch") && name.starts_with("_rebuild_"))
        || (module == "array" && matches!(name, "array" | "_array_reconstructor"))
        || (module.starts_with("numpy")
            && (name.ends_with("reconstruct") || matches!(name, "scalar" | "_frombuffer")))
}
