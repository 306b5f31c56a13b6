//! The files of PyTorch 0.1.10 to 1.5, and of later versions on request.
//!
//! They have five pickles: a magic number, the version, the system, the saved object, and the keys
//! of storages. Then, for each key, the number of elements (64 bits) and the elements follow.

use std::path::Path;
use std::sync::Arc;

use super::bytes;
use super::values::{Node, Value, Values};
use super::{build, names, pickle};
use crate::budget::Budget;
use crate::error::{ErrorKind, Result};
use crate::input::stem;
use crate::input::{Cursor, Input};
use crate::tensor_file::{Container, Place, TensorFile};
use crate::{Format, Options};

/// 0x1950a86a20f9469cfc6c, in the first pickle.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

const VERSION: i64 = 1001;

pub(crate) fn open(
    input: Input<'static>,
    path: &Path,
    options: &Options,
    budget: &Budget,
) -> Result<TensorFile> {
    let input = Arc::new(input);
    let mut cursor = Cursor { input: Arc::clone(&input), at: 0 };
    let mut bytes = bytes::counted(&mut cursor, budget);
    let mut values = Values::new(budget);
    let magic = pickle::read(&mut bytes, &mut values)?;
    if !matches!(values.node(magic), Some(Node::Integer(found)) if **found == MAGIC) {
        return Err(ErrorKind::NoMagic.into());
    }
    match pickle::read(&mut bytes, &mut values)? {
        Value::Int(VERSION) => {}
        _ => return Err(bytes.problem("the version of the file should be 1001")),
    }
    let system = pickle::read(&mut bytes, &mut values)?;
    match values.get(system, "little_endian") {
        Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => return Err(ErrorKind::BigEndian.into()),
        _ => return Err(bytes.problem("the description of the system has no little_endian")),
    }
    let root = pickle::read(&mut bytes, &mut values)?;
    let keys = pickle::read(&mut bytes, &mut values)?;
    let starts = starts(&input, bytes.position(), &values, keys)?;
    let mut place = |storage: usize| {
        let Storage { start, byte_len } = starts[storage].ok_or_else(|| ErrorKind::NoStorage {
            storage: values.storages[storage].key.to_string(),
        })?;
        Ok((Place::At(start), byte_len))
    };
    let found = names::collect(&values, root, &stem(path), "")?;
    let builder = build(&values, found, options, &mut place)?;
    builder.build(Format::Pytorch, Container::File(input), budget)
}

#[derive(Clone, Copy)]
struct Storage {
    start: u64,
    byte_len: u64,
}

/// By position among [`Values::storages`]. `keys` lists them in order, from `at` on.
fn starts(
    input: &Input<'_>,
    mut at: u64,
    values: &Values,
    keys: Value,
) -> Result<Vec<Option<Storage>>> {
    let file_len = input.source.byte_len();
    let problem = "the keys of storages are no list".into();
    let keys = values.items(keys).ok_or(ErrorKind::BadPickle { offset: at, problem })?;
    let mut starts = vec![None; values.storages.len()];
    for &key in keys {
        let key = values.key(key).unwrap_or_default();
        let found = values.by_key.get(&*key).map(|&position| position as usize);
        let offset = at;
        let problem = |problem: &str| ErrorKind::BadPickle {
            offset,
            problem: format!("the storage {key:?} {problem}"),
        };
        // Its size is known only from where it is used.
        let position = found.ok_or_else(|| problem("is listed, and no tensor has it"))?;
        let mut elements = [0; 8];
        let cut = |_| ErrorKind::StorageCut { storage: key.to_string(), file_len };
        input.source.read_exact_at(&mut elements, at).map_err(cut)?;
        let storage = &values.storages[position];
        let byte_len = u64::from_le_bytes(elements).checked_mul(storage.width.into());
        if byte_len != Some(storage.byte_len) {
            return Err(problem("has another size than its tensors say").into());
        }
        let start = at + 8;
        let byte_len = storage.byte_len;
        at = start
            .checked_add(byte_len)
            .filter(|&end| end <= file_len)
            .ok_or_else(|| ErrorKind::StorageCut { storage: key.to_string(), file_len })?;
        if starts[position].replace(Storage { start, byte_len }).is_some() {
            return Err(problem("is listed twice").into());
        }
    }
    Ok(starts)
}
