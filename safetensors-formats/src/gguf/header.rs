//! The header of a GGUF file: the tensors, with their places.

use std::collections::HashSet;
use std::sync::Arc;

use safetensors_core::{Dtype, ReadAt};

use super::kinds::Type;
use super::metadata;
use super::reader::Reader;
use super::split;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{Cursor, Input};
use crate::tensor_file::{
    Blocks, Builder, Container, Data, Place, Reason, Stored, Tensor, TensorFile,
};
use crate::{Format, Options};

/// The most dimensions of a tensor; ggml has 4.
const MOST_DIMS: u32 = 8;

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
    let split = split::take(&mut keys.metadata).map_err(|problem| reader.problem(problem))?;
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
    check_places(&listed, start, file_len)?;
    let mut builder = Builder { metadata: keys.metadata, split, ..Builder::default() };
    // The data in the order of the file, so that it is read front to back.
    listed.sort_by_key(|tensor| tensor.offset);
    builder.tensors.extend(listed.into_iter().map(|tensor| one(tensor, start, options)));
    let built = builder.build(file_len, limits)?;
    TensorFile::new(Format::Gguf, built, Container::File(Arc::clone(&input)))
}

/// A tensor as the header lists it.
struct Listed {
    name: String,
    shape: Vec<usize>,
    kind: Type,
    /// From the start of the data.
    offset: u64,
    /// In the file.
    byte_len: u64,
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
        let kind = Type::from_id(id);
        let kind = kind.ok_or_else(|| reader.problem(format!("its type {id} is unknown")))?;
        let offset = reader.u64()?;
        // The first dimension of the file is the innermost, along which blocks lie.
        let row = shape.first().copied().unwrap_or(1);
        if row % kind.block_len() != 0 {
            let block = kind.block_len();
            return Err(reader.problem(format!(
                "rows of {row} elements are not whole blocks of {kind}, which have {block}"
            )));
        }
        shape.reverse();
        let elements = shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim as u64));
        let byte_len = elements.and_then(|elements| {
            (elements / kind.block_len() as u64).checked_mul(kind.block_bytes() as u64)
        });
        let byte_len = byte_len.ok_or_else(|| reader.problem("its size does not fit 64 bits"))?;
        Ok((shape, kind, offset, byte_len))
    };
    let (shape, kind, offset, byte_len) = read(reader).map_err(|error| error.in_tensor(&name))?;
    Ok(Listed { name, shape, kind, offset, byte_len })
}

/// Fails if a tensor reaches past the end of the file, or into another.
fn check_places(tensors: &[Listed], start: u64, file_len: u64) -> Result<()> {
    let mut places = Vec::new();
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len > 0) {
        let begin = start.checked_add(tensor.offset);
        let end = begin.and_then(|begin| begin.checked_add(tensor.byte_len));
        match (begin, end.filter(|&end| end <= file_len)) {
            (Some(begin), Some(end)) => places.push((begin, end, &tensor.name)),
            _ => {
                let expected = end.unwrap_or(u64::MAX);
                let kind = ErrorKind::PastEnd { expected, found: file_len };
                return Err(Error::from(kind).in_tensor(&tensor.name));
            }
        }
    }
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            let kind = ErrorKind::TensorsOverlap { other: pair[0].2.clone() };
            Err(Error::from(kind).in_tensor(pair[1].2))
        }
        None => Ok(()),
    }
}

fn one(tensor: Listed, start: u64, options: &Options) -> Tensor {
    let Listed { name, mut shape, kind, offset, byte_len } = tensor;
    let place = Place::At(start.saturating_add(offset));
    if let Some(dtype) = kind.dtype() {
        return Tensor { name, dtype, shape, data: Data::Plain(place), stored: None };
    }
    let (len, bytes) = (kind.block_len(), kind.block_bytes());
    let blocks =
        kind.dequantize().map(|dequantize| Blocks { name: kind.name(), len, bytes, dequantize });
    let stored = Stored {
        type_name: kind.name().into(),
        shape: shape.clone(),
        byte_len,
        is_readable: options.dequantize && blocks.is_some() && !options.blocks,
        is_quantised: blocks.is_some(),
    };
    if options.blocks {
        // Rows are whole blocks, so a tensor of blocks has a last dimension.
        if let Some(row) = shape.last_mut() {
            *row = (*row / len).saturating_mul(bytes);
        }
        return Tensor {
            name,
            dtype: Dtype::U8,
            shape,
            data: Data::Plain(place),
            stored: Some(stored),
        };
    }
    let data = match blocks {
        Some(blocks) if options.dequantize => Data::Blocks(place, blocks),
        Some(_) => Data::Refused(Reason::Quantised(kind.name())),
        None => Data::Refused(Reason::NoDequantizer(kind.name())),
    };
    Tensor { name, dtype: Dtype::F32, shape, data, stored: Some(stored) }
}
