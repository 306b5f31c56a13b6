//! [`Values`]: the objects of a pickle.
//!
//! An object is a node of a list, and a value that refers to it holds its position. So an object
//! that a pickle builds once and uses often is one node, as it is one object in Python. Nothing
//! here runs code: either this module knows the effect of a class, or the object remains a list of
//! its parts.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::budget::{Budget, ENTRY};
use crate::error::{ErrorKind, Result};

/// The most dimensions that a tensor of PyTorch has.
pub(super) const MOST_DIMENSIONS: usize = 64;

/// A value: small, or the position of a node.
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
    /// Returns a whole number from 0 on.
    pub(super) fn count(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

/// How the characters of a text encode bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Encoding {
    /// A character for each byte, as Python 3 writes bytes by the protocols 0 to 2.
    Latin1,
    /// The text is bytes that happen to be UTF-8. Python 2 has one type for both.
    Utf8,
}

/// An object with content.
#[derive(Debug)]
pub(super) enum Node {
    Text(Box<str>),
    Bytes(Arc<[u8]>),
    /// An integer too large for 64 bits, as the pickle writes it.
    Integer(Box<[u8]>),
    Tuple(Vec<Value>),
    /// A list or a set.
    List(Vec<Value>),
    /// A dictionary, and other state that was set on it.
    Dict {
        items: Vec<(Value, Value)>,
        state: Value,
    },
    /// A class or a function, by its name.
    Class {
        module: Box<str>,
        name: Box<str>,
    },
    /// The storage of tensors, by its position among [`Values::storages`].
    Storage(StorageRef),
    /// By its position among [`Values::tensors`].
    Tensor(u32),
    /// An object of a class that is not known: the class, and everything that it is made of.
    Object {
        class: Value,
        parts: Vec<Value>,
    },
}

impl Node {
    /// Returns how many items a container has.
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

/// A storage, or a view of a storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageRef {
    /// The position among [`Values::storages`].
    pub(super) storage: u32,
    /// Where the view begins, in elements.
    pub(super) offset: u64,
    /// The type of the elements; `None` for a storage of bytes.
    pub(super) kind: Option<Kind>,
}

/// The type of elements: its name in PyTorch, and the bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) width: u8,
}

/// The bytes that tensors share.
#[derive(Debug)]
pub(super) struct Storage {
    /// The name in the archive.
    pub(super) key: Arc<str>,
    /// As many as the pickle says.
    pub(super) byte_len: u64,
    /// The bytes of an element of the storage itself, in which a legacy file counts.
    pub(super) width: u8,
    /// The bytes themselves, if they are in the pickle.
    pub(super) held: Option<Arc<[u8]>>,
}

/// A tensor that the pickle builds.
#[derive(Debug)]
pub(super) struct TensorRef {
    pub(super) storage: u32,
    pub(super) kind: Kind,
    /// In elements, as the strides.
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<u64>,
    /// Whether the numbers are big-endian.
    pub(super) is_swapped: bool,
}

/// The classes of TorchScript's code, by their names with their modules.
pub(super) type Classes = HashMap<String, Class>;

/// A class of the code.
#[derive(Debug, Default)]
pub(super) struct Class {
    /// Whether it is one of modules. Others have attributes and no state.
    pub(super) is_module: bool,
    /// The names of the parameters and buffers.
    pub(super) state: HashSet<String>,
    /// Whether the buffers are listed. Old versions of PyTorch list parameters only.
    pub(super) lists_buffers: bool,
}

/// All objects of a pickle.
#[derive(Debug)]
pub(super) struct Values {
    /// The budget of the objects and everything that is made of them.
    pub(super) budget: Budget,
    nodes: Vec<Node>,
    pub(super) storages: Vec<Storage>,
    pub(super) tensors: Vec<TensorRef>,
    /// The positions of storages by their keys.
    pub(super) by_key: HashMap<Arc<str>, u32>,
    /// The folder before the keys of storages in the names of an archive's members.
    pub(super) folder: &'static str,
    /// The classes of TorchScript with objects in the pickle.
    pub(super) classes: Classes,
    /// The tuple of constants that the code of TorchScript uses.
    pub(super) constants: Value,
    /// The bytes that texts encode, by their nodes, so that none is decoded twice.
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

    /// Adds an object. It has counted its references.
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

    /// Returns the bytes of a value: bytes themselves, or a text that encodes them.
    ///
    /// `None` for another value, and for a text with characters that encode no byte.
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

    /// Returns the items of a list or tuple.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the sizes in a list or tuple, one for each dimension of a tensor.
    pub(super) fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        let items = self.items(value).filter(|items| items.len() <= MOST_DIMENSIONS)?;
        items.iter().map(|&item| usize::try_from(item.count()?).ok()).collect()
    }

    /// Returns the items of a dictionary.
    pub(super) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.node(value)? {
            Node::Dict { items, .. } => Some(items),
            _ => None,
        }
    }

    /// Returns the value of a dictionary under a text.
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let items = self.dict(dict)?.iter().rev();
        items.clone().find(|(found, _)| self.text(*found) == Some(key)).map(|(_, value)| *value)
    }

    /// Returns the module and the name of a class or function.
    pub(super) fn class(&self, value: Value) -> Option<(&str, &str)> {
        match self.node(value)? {
            Node::Class { module, name } => Some((module, name)),
            _ => None,
        }
    }

    /// Returns the module and the name of the class of an object.
    pub(super) fn class_of(&self, object: Value) -> Option<(&str, &str)> {
        match self.node(object)? {
            Node::Object { class, .. } => self.class(*class),
            _ => None,
        }
    }

    /// Returns the last part of an object: its fields.
    pub(super) fn fields(&self, object: Value) -> Option<Value> {
        match self.node(object)? {
            Node::Object { parts, .. } => parts.last().copied(),
            _ => None,
        }
    }

    /// Returns the modules of all classes and functions that are named.
    pub(super) fn modules(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Class { module, .. } => Some(&**module),
            _ => None,
        })
    }

    /// Returns a text or number, as a part of a name. A text is borrowed: it can be long, and be
    /// the key of many values.
    pub(super) fn key(&self, value: Value) -> Option<Cow<'_, str>> {
        match value {
            Value::Int(number) => Some(number.to_string().into()),
            Value::Bool(flag) => Some(if flag { "True" } else { "False" }.into()),
            _ => self.text(value).map(Cow::Borrowed),
        }
    }

    /// Counts values that are copied from one object into another. A pickle of few bytes can use
    /// one long list in many calls.
    pub(super) fn copy(&self, count: usize) -> Result<()> {
        self.budget.work(count)?;
        self.budget.keep_all::<Value>(count)
    }

    /// Counts a step for a container and one for each of its items.
    pub(super) fn step(&self, items: usize) -> Result<()> {
        self.budget.work(items.saturating_add(1))
    }

    /// Returns `true` if a tensor, a storage or an array is in a value, at any depth. Each value
    /// that is looked at is counted.
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

/// Returns `true` if an object of this class is numbers, with any content.
fn holds_numbers((module, name): (&str, &str)) -> bool {
    // PyTorch makes a tensor without data so.
    (module.starts_with("torch") && name.starts_with("_rebuild_"))
        || (module == "array" && matches!(name, "array" | "_array_reconstructor"))
        || (module.starts_with("numpy")
            && (name.ends_with("reconstruct") || matches!(name, "scalar" | "_frombuffer")))
}
