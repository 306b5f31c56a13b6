//! Results of PyTorch's functions: storages, tensors, dictionaries.
//!
//! Functions are known by name, and never run. Another call becomes an object with its parts. If
//! these include a tensor, that is an error once the object is a part of the model.

use std::sync::Arc;

use super::call::{Wrong, numbers, shape};
use super::values::{Encoding, Kind, Node, Storage, StorageRef, TensorRef, Value, Values};
use super::{kinds, numpy};
use crate::error::Result;

/// Resolves a storage's identifier, or `('module', class, file, source)`, a class in old versions.
pub(super) fn persistent(values: &mut Values, id: Value) -> Result<Value, Wrong> {
    let fields = values.items(id).unwrap_or_default();
    if let &[tag, class, ..] = fields
        && values.text(tag) == Some("module")
    {
        let is_class = values.class(class).is_some();
        return if is_class {
            Ok(class)
        } else {
            Err("the class of a module is not a class".into())
        };
    }
    let storage = storage(values, id)?;
    Ok(values.add(Node::Storage(storage))?)
}

/// Resolves `('storage', type, key, location, elements, view)`.
fn storage(values: &mut Values, id: Value) -> Result<StorageRef, Wrong> {
    let fields = values.items(id).ok_or("the identifier of a storage is not a tuple")?;
    let &[tag, class, key, _, elements, ref view @ ..] = fields else {
        return Err("the identifier of a storage has too few fields".into());
    };
    if values.text(tag) != Some("storage") {
        return Err("an identifier is not that of a storage".into());
    }
    let class = values.class(class).map(|(_, name)| name).or_else(|| values.text(class));
    let class = class.ok_or("the type of a storage is not a class")?;
    let kind = match class {
        "UntypedStorage" => None,
        _ => Some(kinds::of_storage(class).ok_or_else(|| {
            format!("a storage is a torch.{class}, whose elements are of no known type")
        })?),
    };
    let key = values.key(key).ok_or("the key of a storage is not a text")?;
    // One long key can name many storages.
    values.budget.work_on(&key)?;
    let key = format!("{}{key}", values.folder);
    let elements = elements.count().ok_or("the size of a storage is not a number")?;
    let offset = match view.first().map(|&view| (view, values.items(view))) {
        None | Some((Value::None, _)) => 0,
        Some((_, Some(&[_, offset, _]))) => {
            offset.count().ok_or("the view of a storage begins at no number")?
        }
        _ => return Err("the view of a storage is not a tuple of three".into()),
    };
    let width = kind.map_or(1, |kind| kind.width);
    let byte_len =
        elements.checked_mul(width.into()).ok_or("the size of a storage does not fit 64 bits")?;
    let storage = values.storage_of(&key, byte_len, width)?;
    Ok(StorageRef { storage, offset, kind })
}

impl Values {
    fn storage_of(&mut self, key: &str, byte_len: u64, width: u8) -> Result<u32, Wrong> {
        if let Some(&position) = self.by_key.get(key) {
            let known = self.storages[position as usize].byte_len;
            if known != byte_len {
                return Err(format!(
                    "the storage {key:?} has {known} bytes in one place and {byte_len} in another"
                )
                .into());
            }
            return Ok(position);
        }
        let key = self.budget.text(key)?;
        let position = self.add_storage(Storage { key, byte_len, width, held: None })?;
        let key = Arc::clone(&self.storages[position as usize].key);
        self.by_key.insert(key, position);
        Ok(position)
    }

    /// Nodes, which are limited, bound the storages, and the tensors.
    pub(super) fn add_storage(&mut self, storage: Storage) -> Result<u32> {
        self.budget.keep_all::<(Storage, Arc<str>)>(1)?;
        self.storages.push(storage);
        Ok(self.storages.len() as u32 - 1)
    }

    pub(super) fn add_tensor(&mut self, tensor: TensorRef) -> Result<Node> {
        self.budget.keep_all::<TensorRef>(1)?;
        self.budget.keep_all::<(usize, u64)>(tensor.shape.len())?;
        self.tensors.push(tensor);
        Ok(Node::Tensor(self.tensors.len() as u32 - 1))
    }
}

/// `is_function` is `false` for a class.
pub(super) fn call(
    values: &mut Values,
    class: Value,
    arguments: Value,
    is_function: bool,
) -> Result<Value, Wrong> {
    let known = known_callable(values, class);
    if known.is_some() {
        values.step(values.items(arguments).map_or(0, <[_]>::len))?;
    }
    // The arguments of a class that is not known remain where they are.
    let given = known.and_then(|_| values.items(arguments)).map(<[_]>::to_vec);
    values.budget.keep_all::<Value>(1)?;
    let made = match (known, given) {
        (Some(known), Some(given)) if is_function && known.is_of_tensors() => {
            return match tensor_of(values, known, &given)? {
                Some(tensor) => Ok(tensor),
                None => Ok(values.add(Node::Object { class, parts: given })?),
            };
        }
        (Some(known), Some(given)) => container(values, known, &given)?,
        _ => None,
    };
    match made {
        Some(made) => Ok(made),
        None => Ok(values.add(Node::Object { class, parts: vec![arguments] })?),
    }
}

fn container(
    values: &mut Values,
    known: KnownCallable,
    given: &[Value],
) -> Result<Option<Value>, Wrong> {
    match known {
        KnownCallable::Dict { has_factory } => dict(values, given, has_factory),
        KnownCallable::List => list(values, given),
        KnownCallable::Bytes => bytes(values, given),
        KnownCallable::OfArray => Ok(of_array(values, given)),
        KnownCallable::Numpy(callable) => numpy::call(values, callable, given),
        KnownCallable::Tensor { .. } | KnownCallable::Parameter | KnownCallable::Subclass => {
            Ok(None)
        }
    }
}

/// `None` if the values differ from the storage's, or other tensors belong to it.
fn tensor_of(
    values: &mut Values,
    known: KnownCallable,
    given: &[Value],
) -> Result<Option<Value>, Wrong> {
    match (known, given) {
        (KnownCallable::Tensor { has_kind }, _) => {
            let last = given.get(6 + usize::from(has_kind));
            let is_marked = last.is_some_and(|&last| marks(values, last));
            if is_marked { Ok(None) } else { tensor(values, given, has_kind).map(Some) }
        }
        (KnownCallable::Subclass, &[function, _, inner, ref rest @ ..]) => {
            if hold_tensors(values, rest)? {
                return Ok(None);
            }
            // Only tensors are made so, and a function of this kind does not call itself.
            match known_callable(values, function) {
                Some(KnownCallable::Subclass) => {
                    Err("a tensor of a subclass contains itself".into())
                }
                _ => call(values, function, inner, true).map(Some),
            }
        }
        (KnownCallable::Subclass, _) => Err("a tensor of a subclass has too few fields".into()),
        (_, &[data, ref rest @ ..]) => Ok((!hold_tensors(values, rest)?).then_some(data)),
        (_, []) => Err("a parameter has no data".into()),
    }
}

fn known_callable(values: &Values, class: Value) -> Option<KnownCallable> {
    values.class(class).and_then(|(module, name)| KnownCallable::find(module, name))
}

fn hold_tensors(values: &Values, others: &[Value]) -> Result<bool, Wrong> {
    for &other in others {
        if values.holds_tensors(other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn dict(values: &mut Values, given: &[Value], has_factory: bool) -> Result<Option<Value>, Wrong> {
    // The factory of a `defaultdict`'s values is no item. It remains with the dictionary.
    let (state, given) = match given.split_first() {
        Some((&factory, rest)) if has_factory => (factory, rest),
        _ => (Value::None, given),
    };
    let Some(len) = count_items(values, given, true) else { return Ok(None) };
    values.copy(2 * len)?;
    let items = pairs(values, given)?;
    Ok(Some(values.add(Node::Dict { items, state })?))
}

fn list(values: &mut Values, given: &[Value]) -> Result<Option<Value>, Wrong> {
    let Some(len) = count_items(values, given, false) else { return Ok(None) };
    values.copy(len)?;
    let items = given.iter().filter_map(|&items| values.items(items)).flatten();
    let items = items.copied().collect();
    Ok(Some(values.add(Node::List(items))?))
}

/// Takes `(array, type, ...)`. `None` for another type than the array's.
fn of_array(values: &Values, given: &[Value]) -> Option<Value> {
    let &[array, kind, ..] = given else { return None };
    let &Node::Tensor(position) = values.node(array)? else { return None };
    let (_, name) = values.class(kind)?;
    (kinds::of_name(name)? == values.tensors[position as usize].kind).then_some(array)
}

fn bytes(values: &mut Values, given: &[Value]) -> Result<Option<Value>, Wrong> {
    match *given {
        [] => Ok(Some(values.add(Node::Bytes([].into()))?)),
        [only] => Ok(matches!(values.node(only), Some(Node::Bytes(_))).then_some(only)),
        [text, encoding] if matches!(values.text(encoding), Some("latin1" | "latin-1")) => {
            let bytes = values.bytes(text, Encoding::Latin1)?;
            Ok(Some(bytes.ok_or("a text that stands for bytes has a character above 255")?))
        }
        _ => Ok(None),
    }
}

/// `None` if an argument is neither a list nor, with `takes_dicts`, a dictionary: the result is
/// then unknown.
fn count_items(values: &Values, given: &[Value], takes_dicts: bool) -> Option<usize> {
    given.iter().try_fold(0_usize, |all, &argument| {
        let len = match (argument, values.node(argument)) {
            (Value::None, _) | (_, Some(Node::Class { .. })) => 0,
            (_, Some(Node::Tuple(items) | Node::List(items))) => items.len(),
            (_, Some(Node::Dict { items, .. })) if takes_dicts || items.is_empty() => items.len(),
            _ => return None,
        };
        Some(all.saturating_add(len))
    })
}

fn pairs(values: &Values, given: &[Value]) -> Result<Vec<(Value, Value)>, &'static str> {
    let mut pairs = Vec::new();
    for &argument in given {
        if let Some(items) = values.dict(argument) {
            pairs.extend(items);
        }
        for &pair in values.items(argument).unwrap_or_default() {
            match values.items(pair) {
                Some(&[key, value]) => pairs.push((key, value)),
                _ => return Err("an item of a dictionary is not a pair"),
            }
        }
    }
    Ok(pairs)
}

#[derive(Clone, Copy)]
enum KnownCallable {
    /// With `has_factory`, the first argument makes values of missing keys.
    Dict {
        has_factory: bool,
    },
    List,
    Tensor {
        has_kind: bool,
    },
    Parameter,
    Subclass,
    Bytes,
    /// A tensor of a NumPy array, for devices without storages.
    OfArray,
    Numpy(numpy::Callable),
}

impl KnownCallable {
    fn is_of_tensors(self) -> bool {
        matches!(self, Self::Tensor { .. } | Self::Parameter | Self::Subclass)
    }

    fn find(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") | ("builtins" | "__builtin__", "dict") => {
                Self::Dict { has_factory: false }
            }
            ("collections", "defaultdict") => Self::Dict { has_factory: true },
            ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple")
            | ("torch", "Size") => Self::List,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => {
                Self::Tensor { has_kind: false }
            }
            ("torch._utils", "_rebuild_tensor_v3") => Self::Tensor { has_kind: true },
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Self::Parameter
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Self::Subclass,
            ("torch._utils", "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor") => {
                Self::OfArray
            }
            ("_codecs", "encode") | ("builtins" | "__builtin__", "bytes" | "bytearray") => {
                Self::Bytes
            }
            _ => Self::Numpy(numpy::Callable::find(module, name)?),
        })
    }
}

/// A mark such as `{'conj': True}` is last: the values differ from the storage.
fn marks(values: &Values, argument: Value) -> bool {
    argument != Value::None && values.dict(argument).is_none_or(|marks| !marks.is_empty())
}

/// Takes `(storage, offset, shape, strides, ...)`, and the type as the seventh if the storage has
/// none.
fn tensor(values: &mut Values, given: &[Value], has_kind: bool) -> Result<Value, Wrong> {
    let &[storage, offset, shape, strides, ref rest @ ..] = given else {
        return Err("a tensor has too few fields".into());
    };
    let Some(&Node::Storage(StorageRef { storage, offset: first, kind })) = values.node(storage)
    else {
        return Err("a tensor has no storage".into());
    };
    let kind = match (has_kind, kind) {
        (true, of_storage) => {
            let class = rest.get(2).and_then(|&kind| values.class(kind));
            let (_, name) = class.ok_or("a tensor has no type of elements")?;
            let kind = kind_of(name)?;
            if of_storage.is_some_and(|other| other != kind) {
                return Err("a tensor has another type of elements than its storage".into());
            }
            kind
        }
        (false, Some(kind)) => kind,
        (false, None) => return Err("a tensor of a storage of bytes has no type".into()),
    };
    let offset = offset.count().and_then(|offset| offset.checked_add(first));
    let offset = offset.ok_or("the offset of a tensor is not a number")?;
    let shape = self::shape(values, shape)?;
    let strides = numbers(values, strides)?;
    let strides = strides.ok_or("the strides of a tensor are not a tuple of numbers")?;
    if shape.len() != strides.len() {
        let shape = shape.len();
        let strides = strides.len();
        return Err(format!("a tensor has {shape} dimensions and {strides} strides").into());
    }
    let is_swapped = false;
    let tensor = TensorRef { storage, kind, offset, shape, strides, is_swapped };
    let tensor = values.add_tensor(tensor)?;
    Ok(values.add(tensor)?)
}

fn kind_of(name: &str) -> Result<Kind, String> {
    kinds::of_name(name).ok_or_else(|| format!("the type torch.{name} of a tensor is unknown"))
}

pub(super) fn build(values: &mut Values, object: Value, state: Value) -> Result<(), Wrong> {
    let built = numpy::built(values, object, state)?;
    match (values.node_mut(object), built) {
        (Some(node), Some(built)) => *node = built,
        (Some(Node::Object { parts, .. }), None) => {
            parts.push(state);
            values.budget.keep_all::<Value>(1)?;
        }
        (Some(Node::Dict { state: before, .. }), None) => *before = state,
        _ => return Err("a value without attributes gets some".into()),
    }
    Ok(())
}
