//! Arrays and numbers of NumPy in the pickle itself.

use std::sync::Arc;

use super::call::{Wrong, shape};
use super::kinds;
use super::values::{Encoding, Kind, Node, Storage, TensorRef, Value, Values};
use crate::npy::{ByteOrder, Order, parse_descr};

/// Without a dtype: letter, name and bytes. Other sizes are listed as bytes.
const OTHERS: [(char, &str); 6] = [
    ('O', "object"),
    ('c', "complex128"),
    ('f', "longdouble"),
    ('M', "datetime64"),
    ('m', "timedelta64"),
    ('V', "void"),
];

/// Makes an array of its arguments alone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callable {
    /// `scalar(dtype, bytes)`.
    Scalar,
    /// `_frombuffer(bytes, dtype, shape, order)`, of protocol 5.
    FromBuffer,
}

impl Callable {
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Some(Self::Scalar),
            ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Some(Self::FromBuffer),
            _ => None,
        }
    }
}

fn is_reconstruct((module, name): (&str, &str)) -> bool {
    matches!(module, "numpy.core.multiarray" | "numpy._core.multiarray") && name == "_reconstruct"
}

pub(super) fn call(
    values: &mut Values,
    callable: Callable,
    given: &[Value],
) -> Result<Option<Value>, Wrong> {
    let node = match (callable, given) {
        (Callable::Scalar, &[dtype, bytes]) => {
            array(values, &Parts { dtype, shape: Vec::new(), order: Order::C, bytes })?
        }
        (Callable::FromBuffer, &[bytes, dtype, shape, order]) => {
            let order = match values.text(order) {
                Some("C") => Order::C,
                Some("F") => Order::Fortran,
                _ => return Ok(None),
            };
            let shape = self::shape(values, shape)?;
            array(values, &Parts { dtype, shape, order, bytes })?
        }
        _ => None,
    };
    Ok(node.map(|node| values.add(node)).transpose()?)
}

/// The state is `(version, shape, dtype, is_fortran, bytes)`. `None` for other objects and unknown
/// types.
pub(super) fn built(
    values: &mut Values,
    object: Value,
    state: Value,
) -> Result<Option<Node>, Wrong> {
    let Some(Node::Object { class, parts }) = values.node(object) else { return Ok(None) };
    let made = parts.first().and_then(|&given| values.items(given)?.first().copied());
    let is_array = values.class(*class).is_some_and(is_reconstruct)
        && made.and_then(|class| values.class(class)) == Some(("numpy", "ndarray"));
    if !is_array {
        return Ok(None);
    }
    let (shape, dtype, order, bytes) = match values.items(state) {
        Some(&[_, shape, dtype, order, bytes] | &[shape, dtype, order, bytes]) => {
            (shape, dtype, order, bytes)
        }
        _ => return Err("the state of a NumPy array is not a tuple of five".into()),
    };
    let order = match order {
        Value::Bool(true) | Value::Int(1) => Order::Fortran,
        _ => Order::C,
    };
    let shape = self::shape(values, shape)?;
    array(values, &Parts { dtype, shape, order, bytes })
}

struct Parts {
    dtype: Value,
    shape: Vec<usize>,
    order: Order,
    bytes: Value,
}

/// An array of texts is a text. `None` for an unknown type.
fn array(values: &mut Values, parts: &Parts) -> Result<Option<Node>, Wrong> {
    let Some(descr) = descr(values, parts.dtype) else { return Ok(None) };
    let elements = parts.shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim as u64));
    let elements = elements.ok_or("the size of a NumPy array does not fit 64 bits")?;
    let letter = descr.trim_start_matches(['<', '>', '=', '|']).chars().next();
    let mut bytes = match values.bytes(parts.bytes, Encoding::Utf8)? {
        Some(bytes) => match values.node(bytes) {
            Some(Node::Bytes(bytes)) => Arc::clone(bytes),
            _ => return Ok(None),
        },
        None => Arc::default(),
    };
    let mut shape = parts.shape.clone();
    let mut is_swapped = false;
    let kind = match (parse_descr(&descr), letter) {
        (Ok((dtype, order)), _) => {
            is_swapped = order == ByteOrder::Big && dtype.alignment() > 1;
            let Some(kind) = kinds::of_dtype(dtype) else { return Ok(None) };
            kind
        }
        (_, Some('S' | 'U' | 'T')) => return Ok(Some(Node::Text(Box::default()))),
        (_, Some('O')) => {
            values.step(values.items(parts.bytes).map_or(0, <[_]>::len))?;
            if !holds_numbers(values, parts.bytes) {
                return Ok(Some(Node::Tuple(Vec::new())));
            }
            bytes = Arc::default();
            Kind { name: "object", width: 0 }
        }
        (_, letter) => {
            let known = OTHERS.iter().find(|(known, _)| Some(*known) == letter);
            let name = known.map_or("an unknown type", |(_, name)| name);
            let width = (bytes.len() as u64).checked_div(elements).unwrap_or(0);
            let width = u8::try_from(width).unwrap_or_else(|_| {
                shape = vec![bytes.len()];
                1
            });
            Kind { name, width }
        }
    };
    let len = shape.iter().fold(kind.width.into(), |all: u64, &dim| all.saturating_mul(dim as u64));
    if bytes.len() as u64 != len {
        let found = bytes.len();
        let problem = "a NumPy array of shape";
        return Err(format!("{problem} {shape:?} and type {descr} has {found} bytes").into());
    }
    let strides = parts.order.strides(&shape);
    let tensor = TensorRef { storage: 0, kind, offset: 0, shape, strides, is_swapped };
    held(values, tensor, bytes).map(Some)
}

fn held(values: &mut Values, tensor: TensorRef, bytes: Arc<[u8]>) -> Result<Node, Wrong> {
    let byte_len = bytes.len() as u64;
    let width = tensor.kind.width;
    let storage = Storage { key: "of NumPy".into(), byte_len, width, held: Some(bytes) };
    let storage = values.add_storage(storage)?;
    Ok(values.add_tensor(TensorRef { storage, ..tensor })?)
}

/// Returns `<f4` for `dtype('f4', False, True)` with the state `(3, '<', ...)`.
fn descr(values: &Values, dtype: Value) -> Option<String> {
    let Some(Node::Object { class, parts }) = values.node(dtype) else { return None };
    if values.class(*class) != Some(("numpy", "dtype")) {
        return None;
    }
    let (&given, rest) = parts.split_first()?;
    let plain = values.text(*values.items(given)?.first()?)?;
    let order = rest.last().and_then(|&state| values.text(*values.items(state)?.get(1)?));
    // No type of numbers has a longer name.
    (plain.len() <= 20)
        .then(|| format!("{}{plain}", order.filter(|it| it.len() == 1).unwrap_or("")))
}

/// Returns `false` if the objects are only texts.
fn holds_numbers(values: &Values, objects: Value) -> bool {
    let is_number = |&object: &Value| match object {
        Value::None => false,
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => true,
        Value::Node(_) => values.text(object).is_none(),
    };
    match values.items(objects) {
        Some(objects) => objects.iter().any(is_number),
        None => is_number(&objects),
    }
}
