//! [`Listed`]: a tensor of the header, and how to read it.

use std::collections::BTreeMap;

use safetensors_core::{Dtype, shape};

use super::kinds::Type;
use super::metadata::SHAPE;
use super::reader::GgufReader;
use crate::Options;
use crate::error::Result;
use crate::tensor_file::{Data, Place, Reason, Scales, Stored, Tensor};

/// ggml has 4.
const MOST_DIMS: usize = 8;

pub(super) struct Listed {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) type_name: String,
    pub(super) kind: Option<Type>,
    /// First from the start of all data, then in the file.
    pub(super) at: u64,
    pub(super) byte_len: u64,
    /// Scales of the numbers, or why these are unknown.
    pub(super) scales: Result<Option<Scales>, String>,
}

impl Listed {
    pub(super) fn read(reader: &mut GgufReader) -> Result<Self> {
        let name = reader.name()?;
        let read = |reader: &mut GgufReader| -> Result<_> {
            let dims = reader.u32()?;
            if dims as usize > MOST_DIMS {
                let problem = format!("{dims} dimensions, over the limit of {MOST_DIMS}");
                return Err(reader.problem(problem));
            }
            let mut shape = Vec::new();
            for _ in 0..dims {
                let dim = reader.u64()?;
                shape.push(usize::try_from(dim).map_err(|_| {
                    reader.problem(format!("a dimension of {dim} does not fit the memory"))
                })?);
            }
            let id = reader.u32()?;
            let at = reader.u64()?;
            // The first dimension of the file is the innermost; blocks run along it.
            shape.reverse();
            let kind = Type::from_id(id);
            if let Some(kind) = kind.filter(|kind| kind.byte_len(&shape).is_none()) {
                let row = shape.last().unwrap_or(&1);
                let block = kind.block_len();
                return Err(reader.problem(match row % block {
                    0 => "its size does not fit 64 bits".into(),
                    _ => format!(
                        "rows of {row} elements are not whole blocks of {kind}, which have {block}"
                    ),
                }));
            }
            let type_name = kind.map_or_else(|| format!("type {id}"), |kind| kind.name().into());
            Ok((shape, type_name, kind, at))
        };
        let (shape, type_name, kind, at) = read(reader).map_err(|error| error.in_tensor(&name))?;
        Ok(Self { name, shape, type_name, kind, at, byte_len: 0, scales: Ok(None) })
    }

    /// Takes the model's shape from the keys. Blocks keep their stored rows.
    pub(super) fn reshape(
        &mut self,
        keys: &mut BTreeMap<String, String>,
        options: &Options,
    ) -> Result<(), String> {
        let key = format!("{SHAPE}{}", self.name);
        let Some(text) = keys.remove(&key) else { return Ok(()) };
        let dims = serde_json::from_str(&text).ok();
        let Some(dims) = dims.filter(|dims: &Vec<usize>| dims.len() <= MOST_DIMS) else {
            let expected = format!("at most {MOST_DIMS} dimensions");
            return Err(format!("{key} should be {expected}, found {text}"));
        };
        if shape::element_count(&dims).ok() != shape::element_count(&self.shape).ok() {
            let stored = &self.shape;
            return Err(format!(
                "{key} is {dims:?}, which should have as many elements as the stored shape \
                 {stored:?}"
            ));
        }
        if !options.blocks || self.kind.and_then(Type::dtype).is_some() {
            self.shape = dims;
        }
        Ok(())
    }

    pub(super) fn into_tensor(self, options: &Options) -> Tensor {
        let Self { name, mut shape, type_name, kind, at, byte_len, scales } = self;
        let place = Place::At(at);
        if let Some(dtype) = kind.and_then(Type::dtype) {
            return Tensor { name, dtype, shape, data: Data::Plain(place), stored: None };
        }
        let blocks = kind.and_then(Type::blocks);
        let is_quantised = blocks.is_some() && scales.is_ok();
        let stored = Some(Stored {
            type_name: type_name.clone(),
            shape: shape.clone(),
            byte_len,
            is_readable: options.dequantize && is_quantised && !options.blocks,
            is_quantised,
        });
        let (dtype, data) = match (kind, blocks, scales) {
            (None, ..) => {
                // At least one byte: of none, reading would not fail.
                shape = vec![usize::try_from(byte_len).unwrap_or(usize::MAX).max(1)];
                (Dtype::U8, Data::Refused(Reason::NoDequantizer(type_name.into())))
            }
            // Rows are whole blocks, so a tensor of blocks has a last dimension.
            (Some(kind), ..) if options.blocks => {
                if let Some(row) = shape.last_mut() {
                    *row = (*row / kind.block_len()).saturating_mul(kind.block_bytes());
                }
                (Dtype::U8, Data::Plain(place))
            }
            (_, None, _) => (Dtype::F32, Data::Refused(Reason::NoDequantizer(type_name.into()))),
            (.., Err(problem)) => (Dtype::F32, Data::Refused(Reason::Companion(problem.into()))),
            (_, Some(blocks), Ok(scales)) if options.dequantize => {
                (Dtype::F32, Data::Blocks { place, blocks, scales })
            }
            (_, Some(blocks), _) => (Dtype::F32, Data::Refused(Reason::Quantised(blocks.name))),
        };
        Tensor { name, dtype, shape, data, stored }
    }
}
