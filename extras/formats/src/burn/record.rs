//! The tensors of a record, by the keys that lead to them.

use std::collections::BTreeMap;
use std::io;

use data_encoding::BASE32_DNSSEC;
use safetensors_core::framework::PARAM_IDS_KEY;
use safetensors_core::shape;

use super::reader::{self, RecordReader, Value};
use super::{MOST_DIMS, dtype_of};
use crate::budget::{Budget, Depth, ENTRY};
use crate::error::{Error, ErrorKind, Result};
use crate::input::Cursor;
use crate::tensor_file::{Builder, Data, Place, Tensor};

pub(super) fn read(cursor: Cursor<'static>, budget: &Budget) -> Result<Builder> {
    let mut record = Record {
        reader: reader::open(cursor, budget.limits().directory_bytes),
        builder: Builder::default(),
        ids: BTreeMap::new(),
        path: Vec::new(),
        others: 0,
        budget,
    };
    record.read()?;
    let Record { mut builder, ids, others, .. } = record;
    if !ids.is_empty() {
        let ids = serde_json::to_string(&ids).map_err(io::Error::from)?;
        builder.metadata.insert(PARAM_IDS_KEY.into(), ids);
    }
    if others > 0 {
        builder.notes.push(format!("skipped: {others} numbers and texts"));
    }
    Ok(builder)
}

struct Record<'a> {
    reader: RecordReader,
    builder: Builder,
    ids: BTreeMap<String, u64>,
    path: Vec<String>,
    others: u64,
    budget: &'a Budget,
}

/// Entries that make a map a tensor.
#[derive(Default)]
struct Parts {
    data: Option<(Place, u64)>,
    shape: Option<Vec<usize>>,
    dtype: Option<String>,
}

impl Record<'_> {
    fn read(&mut self) -> Result<()> {
        let len = self.expect_map("a record")?;
        // The third entry is a marker without content, `_b`, which old versions have.
        for number in 0..len {
            let key = self.reader.expect_text("a key")?;
            match (number, key.as_str()) {
                (0, "metadata") => self.read_metadata()?,
                (1, "item") => self.read_value(None, Depth::default())?,
                (2.., "_b") => match self.reader.value()? {
                    Value::Nothing | Value::List(0) => {}
                    other => return Err(self.expected("nothing", other)),
                },
                _ => return Err(self.reader.problem("expected metadata and item")),
            }
        }
        match self.reader.left() {
            0 => Ok(()),
            left => Err(self.reader.problem(format!("{left} bytes after the record"))),
        }
    }

    fn read_metadata(&mut self) -> Result<()> {
        for _ in 0..self.expect_map("what burn says of the record")? {
            let key = self.reader.expect_text("a key")?;
            let value = self.reader.expect_text("a text")?;
            if key == "version" {
                self.builder.metadata.insert("burn.version".into(), value);
            }
        }
        Ok(())
    }

    fn expect_map(&mut self, what: &str) -> Result<u64> {
        match self.reader.value()? {
            Value::Map(len) => Ok(len),
            other => Err(self.reader.problem(format!("expected {what}, found {}", other.kind()))),
        }
    }

    fn read_value(&mut self, id: Option<&str>, depth: Depth) -> Result<()> {
        let value = self.reader.value()?;
        self.read_rest(value, id, depth)
    }

    fn read_rest(&mut self, value: Value, id: Option<&str>, depth: Depth) -> Result<()> {
        match value {
            Value::Nothing => {}
            Value::Number(_) | Value::Other => self.others += 1,
            Value::Text(len) | Value::Bytes(len) => {
                self.others += 1;
                self.reader.pass(len)?;
            }
            Value::List(len) => {
                let depth = depth.deeper()?;
                for index in 0..len {
                    self.path.push(index.to_string());
                    self.read_value(None, depth)?;
                    self.path.pop();
                }
            }
            Value::Map(len) => self.read_map(len, id, depth.deeper()?)?,
        }
        Ok(())
    }

    /// Reads a module, a parameter (`id` and `param`) or a tensor (`bytes`, `shape` and `dtype`).
    fn read_map(&mut self, len: u64, id: Option<&str>, depth: Depth) -> Result<()> {
        let mut parts = Parts::default();
        let mut own_id = None;
        for number in 0..len {
            let key = self.reader.expect_text("a key")?;
            let value = self.reader.value()?;
            // The order of the fields, and the first one, distinguish a parameter and a tensor from
            // a module with fields of such names.
            let is_tensor = parts.data.is_some();
            match (key.as_str(), len, number, value) {
                ("id", 2, 0, Value::Text(len)) => own_id = Some(self.reader.text(len)?),
                ("param", 2, 1, _) if own_id.is_some() => {
                    self.read_rest(value, own_id.as_deref(), depth)?;
                }
                ("bytes", 3, 0, Value::Bytes(len)) => {
                    parts.data = Some((Place::At(self.reader.position()), len));
                    self.reader.pass(len)?;
                }
                ("bytes", 3, 0, Value::List(len)) => parts.data = Some(self.listed_bytes(len)?),
                ("shape", 3, 1, _) if is_tensor => parts.shape = Some(self.read_shape(value)?),
                ("dtype", 3, 2, _) if is_tensor => parts.dtype = Some(self.read_dtype(value)?),
                ("value", 2, 0, _) if id.is_some() => {
                    let problem = "burn 0.13 or older has written it, which gives no dtype: load \
                                   it with burn 0.16 and its feature record-backward-compat, and \
                                   save it anew";
                    return Err(self.name_in(ErrorKind::NotRead { problem: problem.into() }.into()));
                }
                _ => {
                    self.path.push(key);
                    self.read_rest(value, None, depth)?;
                    self.path.pop();
                }
            }
        }
        match parts {
            Parts { data: Some(data), shape: Some(shape), dtype: Some(dtype) } => {
                self.add(data, shape, &dtype, id)
            }
            Parts { data: None, shape: None, dtype: None } => Ok(()),
            _ => Err(self.reader.problem("a tensor lacks its bytes, its shape or its dtype")),
        }
    }
}

impl Record<'_> {
    /// Reads bytes that old versions list as numbers, one or two bytes each, into memory.
    fn listed_bytes(&mut self, len: u64) -> Result<(Place, u64)> {
        // Memory grows with the present bytes, not with that length.
        let mut bytes = Vec::new();
        for _ in 0..len {
            bytes.push(self.reader.listed_byte()?);
        }
        Ok((Place::Held(bytes.into()), len))
    }

    fn read_shape(&mut self, value: Value) -> Result<Vec<usize>> {
        let len = match value {
            Value::List(len) if len <= MOST_DIMS as u64 => len,
            other => return Err(self.expected("a shape", other)),
        };
        let mut shape = Vec::new();
        for _ in 0..len {
            match self.reader.value()? {
                Value::Number(dim) => shape.push(usize::try_from(dim).map_err(|_| {
                    self.reader.problem(format!("a dimension of {dim} does not fit the memory"))
                })?),
                other => return Err(self.expected("a dimension", other)),
            }
        }
        Ok(shape)
    }

    /// A dtype with settings is a map with its name as the key.
    fn read_dtype(&mut self, value: Value) -> Result<String> {
        match value {
            Value::Text(len) => self.reader.text(len),
            Value::Map(1) => {
                let name = self.reader.expect_text("a dtype")?;
                match self.reader.value()? {
                    Value::Text(len) => Ok(format!("{name}({})", self.reader.text(len)?)),
                    _ if name == "QFloat" => Err(self.name_in(ErrorKind::NoDtype { name }.into())),
                    other => Err(self.expected("the settings of a dtype", other)),
                }
            }
            other => Err(self.expected("a dtype", other)),
        }
    }

    fn add(
        &mut self,
        (place, len): (Place, u64),
        shape: Vec<usize>,
        dtype: &str,
        id: Option<&str>,
    ) -> Result<()> {
        let dtype = dtype_of(dtype)
            .ok_or_else(|| self.name_in(ErrorKind::NoDtype { name: dtype.into() }.into()))?;
        let expected = shape::byte_len(dtype, &shape).map_err(|kind| self.name_in(kind.into()))?;
        if expected != len {
            let problem = format!("the tensor should have {expected} bytes, found {len}");
            return Err(self.name_in(self.reader.problem(problem)));
        }
        let len: usize = self.path.iter().map(|key| key.len() + 1).sum();
        self.budget.keep(len + size_of::<Tensor>())?;
        self.budget.keep_all::<usize>(shape.len())?;
        let name = self.path.join(".");
        if let Some(id) = id.and_then(number_of_id) {
            // A table keeps the name, and a JSON text.
            self.budget.keep(2 * len + ENTRY)?;
            self.ids.insert(name.clone(), id);
        }
        self.builder.tensors.push(Tensor {
            name,
            dtype,
            shape,
            data: Data::Plain(place),
            stored: None,
        });
        Ok(())
    }

    fn expected(&self, what: &str, found: Value) -> Error {
        self.name_in(self.reader.problem(format!("expected {what}, found {}", found.kind())))
    }

    fn name_in(&self, error: Error) -> Error {
        error.in_tensor(&self.path.join("."))
    }
}

/// Parses an id as burn prints it: up to eight bytes in base 32, the lowest first. `None` for a
/// UUID of old versions, which burn hashes.
fn number_of_id(id: &str) -> Option<u64> {
    let bytes = BASE32_DNSSEC.decode(id.as_bytes()).ok().filter(|bytes| bytes.len() <= 8)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
