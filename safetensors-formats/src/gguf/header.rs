//! The header of a GGUF file: the tensors, with their places.

use std::collections::HashSet;
use std::sync::Arc;

use safetensors_core::{Dtype, ReadAt};

use super::kinds::Type;
use super::metadata::{self, SHAPE};
use super::reader::Reader;
use super::{companions, places, split};
use crate::error::{ErrorKind, Result};
use crate::input::{Cursor, Input};
use crate::tensor_file::{
    Blocks, Builder, Container, Data, Place, Reason, Scales, Stored, Tensor, TensorFile,
};
use crate::{Format, Options};

/// The most dimensions of a tensor; ggml has 4.
pub(super) const MOST_DIMS: u32 = 8;

/// Opens the tensors of a file.
pub(crate) fn open<S: ReadAt>(input: Input<S>, options: &Options) -> Result<TensorFile<S>> {
    let (input, limits) = (Arc::new(input), &options.limits);
    let cursor = Cursor { input: Arc::clone(&input), at: 0 };
    let mut reader = Reader::new(cursor, limits.directory_bytes);
    if &reader.array()? != b"GGUF" {
        return Err(reader.problem("it does not begin with GGUF"));
    }
    match reader.u32()? {
        2 | 3 => {}
        // The version of a big-endian file, read as little-endian.
        version if version.swap_bytes() <= 3 => return Err(ErrorKind::BigEndian.into()),
        version => {
            return Err(reader.problem(format!("version {version} is unknown; expected 2 or 3")));
        }
    }
    let (tensors, keys) = (reader.u64()?, reader.u64()?);
    for count in [tensors, keys] {
        let limit = limits.members;
        if count > limit as u64 {
            let found = usize::try_from(count).unwrap_or(usize::MAX);
            return Err(ErrorKind::TooManyMembers { limit, found }.into());
        }
    }
    let mut keys = metadata::read(&mut reader, keys)?;
    let split =
        split::take(&mut keys.metadata, tensors).map_err(|problem| reader.problem(problem))?;
    let mut listed = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensors {
        let tensor = read_tensor(&mut reader)?;
        if !names.insert(tensor.name.clone()) {
            let error = safetensors_core::Error::from(safetensors_core::ErrorKind::DuplicateTensor);
            return Err(error.in_tensor(&tensor.name));
        }
        listed.push(tensor);
    }
    let file_len = input.source.byte_len();
    let start = reader.position().checked_next_multiple_of(keys.alignment);
    let start = start.ok_or_else(|| reader.problem("the data begins beyond the end"))?;
    // The data in the order of the file, so that it is read front to back.
    listed.sort_by_key(|tensor| tensor.offset);
    places::measure(&mut listed, file_len.saturating_sub(start), keys.alignment);
    places::check(&listed, start, file_len)?;
    for tensor in &mut listed {
        if let Some(shape) = keys.shapes.remove(&tensor.name) {
            reshape(tensor, shape, options)
                .map_err(|problem| reader.problem(problem).in_tensor(&tensor.name))?;
        }
    }
    if let Some(name) = keys.shapes.keys().next() {
        return Err(reader.problem(format!("{SHAPE}{name} is there, but no tensor {name}")));
    }
    if options.dequantize && !options.blocks {
        companions::explain(&mut listed, start);
    }
    let mut builder = Builder { metadata: keys.metadata, split, ..Builder::default() };
    builder.tensors.extend(listed.into_iter().map(|tensor| one(tensor, start, options)));
    let built = builder.build(file_len, limits)?;
    TensorFile::new(Format::Gguf, built, Container::File(Arc::clone(&input)))
}

/// A tensor as the header lists it.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// The number of the type.
    id: u32,
    /// `None` if the type is not known.
    pub(super) kind: Option<Type>,
    /// From the start of the data.
    pub(super) offset: u64,
    /// In the file.
    pub(super) byte_len: u64,
    /// The bytes to the next tensor.
    pub(super) room: u64,
    /// The scales of its numbers, in another tensor.
    pub(super) scales: Option<Scales>,
    /// Why its numbers are not known.
    pub(super) problem: Option<String>,
}

impl Listed {
    pub(super) fn type_name(&self) -> String {
        let kind = self.kind.or(Type::from_id(self.id));
        kind.map_or_else(|| format!("type {}", self.id), |kind| kind.name().into())
    }
}

fn read_tensor<S: ReadAt>(reader: &mut Reader<S>) -> Result<Listed> {
    let name = reader.text()?;
    let read = |reader: &mut Reader<S>| -> Result<_> {
        let dims = reader.u32()?;
        if dims > MOST_DIMS {
            return Err(reader.problem(format!("{dims} dimensions, over the limit of {MOST_DIMS}")));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = reader.u64()?;
            shape.push(usize::try_from(dim).map_err(|_| {
                reader.problem(format!("a dimension of {dim} does not fit the memory"))
            })?);
        }
        let id = reader.u32()?;
        let offset = reader.u64()?;
        // The first dimension of the file is the innermost, along which blocks lie.
        shape.reverse();
        let kind = Type::from_id(id);
        if let Some(kind) = kind.filter(|kind| kind.byte_len(&shape).is_none()) {
            let (row, block) = (shape.last().unwrap_or(&1), kind.block_len());
            return Err(reader.problem(match row % block {
                0 => "its size does not fit 64 bits".into(),
                _ => format!(
                    "rows of {row} elements are not whole blocks of {kind}, which have {block}"
                ),
            }));
        }
        Ok((shape, id, kind, offset))
    };
    let (shape, id, kind, offset) = read(reader).map_err(|error| error.in_tensor(&name))?;
    let (byte_len, room, scales, problem) = Default::default();
    Ok(Listed { name, shape, id, kind, offset, byte_len, room, scales, problem })
}

/// Gives a tensor the shape that it has in its model. Blocks keep the rows that they are stored in.
fn reshape(tensor: &mut Listed, shape: Vec<usize>, options: &Options) -> Result<(), String> {
    let elements =
        |shape: &[usize]| shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim as u64));
    if elements(&shape) != elements(&tensor.shape) {
        let stored = &tensor.shape;
        return Err(format!(
            "{SHAPE}{} is {shape:?}, which should have as many elements as the stored shape \
             {stored:?}",
            tensor.name
        ));
    }
    if !options.blocks || tensor.kind.is_some_and(|kind| kind.dtype().is_some()) {
        tensor.shape = shape;
    }
    Ok(())
}

fn one(tensor: Listed, start: u64, options: &Options) -> Tensor {
    let type_name = tensor.type_name();
    let Listed { name, mut shape, kind, offset, byte_len, scales, problem, .. } = tensor;
    let place = Place::At(start.saturating_add(offset));
    if let Some(dtype) = kind.and_then(Type::dtype) {
        return Tensor { name, dtype, shape, data: Data::Plain(place), stored: None };
    }
    let blocks = kind.and_then(|kind| {
        let (len, bytes) = (kind.block_len(), kind.block_bytes());
        Some(Blocks { name: kind.name(), len, bytes, dequantize: kind.dequantize()? })
    });
    let is_quantised = blocks.is_some() && problem.is_none();
    let stored = Some(Stored {
        type_name: type_name.clone(),
        shape: shape.clone(),
        byte_len,
        is_readable: options.dequantize && is_quantised && !options.blocks,
        is_quantised,
    });
    let (dtype, data) = match (kind, blocks, problem) {
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
        (_, Some(_), Some(problem)) => {
            (Dtype::F32, Data::Refused(Reason::Companion(problem.into())))
        }
        (_, Some(blocks), None) if options.dequantize => {
            (Dtype::F32, Data::Blocks { place, blocks, scales })
        }
        (_, Some(blocks), None) => (Dtype::F32, Data::Refused(Reason::Quantised(blocks.name))),
    };
    Tensor { name, dtype, shape, data, stored }
}
