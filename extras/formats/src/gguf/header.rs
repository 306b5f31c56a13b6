//! The header of a GGUF file: tensors and their places.

use std::collections::HashSet;
use std::sync::Arc;

use super::listed::Listed;
use super::metadata::{self, SHAPE};
use super::reader::GgufReader;
use super::{companions, model, places, split};
use crate::budget::Budget;
use crate::error::{ErrorKind, Result};
use crate::input::{Cursor, Input};
use crate::tensor_file::{Builder, Container, TensorFile};
use crate::{Format, Options};

pub(crate) fn open(
    input: Input<'static>,
    options: &Options,
    budget: &Budget,
) -> Result<TensorFile> {
    let input = Arc::new(input);
    let limits = budget.limits();
    let cursor = Cursor { input: Arc::clone(&input), at: 0 };
    let mut reader = GgufReader::new(cursor, limits.directory_bytes);
    check_start(&mut reader)?;
    let tensors = count(&mut reader, limits.members)?;
    let keys = count(&mut reader, limits.members)?;
    let mut keys = metadata::read(&mut reader, keys)?;
    let split =
        split::take(&mut keys.metadata, tensors).map_err(|problem| reader.problem(problem))?;
    let mut listed = list(&mut reader, tensors)?;
    let file_len = input.source.byte_len();
    let start = reader.position().checked_next_multiple_of(keys.alignment);
    let start = start.ok_or_else(|| reader.problem("the data begins beyond the end"))?;
    // In the order of the file, so that it is read front to back.
    places::locate(&mut listed, start, file_len, keys.alignment)?;
    for tensor in &mut listed {
        tensor
            .reshape(&mut keys.metadata, options)
            .map_err(|problem| reader.problem(problem).in_tensor(&tensor.name))?;
    }
    if let Some(name) = keys.metadata.keys().find_map(|key| key.strip_prefix(SHAPE)) {
        return Err(reader.problem(format!("{SHAPE}{name} is there, but no tensor {name}")));
    }
    if options.dequantize && !options.blocks {
        companions::explain(&mut listed);
    }
    let mut builder = Builder { metadata: keys.metadata, split, ..Builder::default() };
    builder.tensors.extend(listed.into_iter().map(|tensor| tensor.into_tensor(options)));
    if let Some(names) = &options.names {
        model::rename(&mut builder.tensors, names)?;
    }
    builder.build(Format::Gguf, Container::File(input), budget)
}

fn check_start(reader: &mut GgufReader) -> Result<()> {
    if &reader.array()? != b"GGUF" {
        return Err(reader.problem("it does not begin with GGUF"));
    }
    match reader.u32()? {
        2 | 3 => Ok(()),
        // The version of a big-endian file, read as little-endian.
        version if version.swap_bytes() <= 3 => Err(ErrorKind::BigEndian.into()),
        version => Err(reader.problem(format!("version {version} is unknown; expected 2 or 3"))),
    }
}

fn count(reader: &mut GgufReader, limit: usize) -> Result<u64> {
    let count = reader.u64()?;
    if count > limit as u64 {
        let found = usize::try_from(count).unwrap_or(usize::MAX);
        return Err(ErrorKind::TooManyMembers { limit, found }.into());
    }
    Ok(count)
}

fn list(reader: &mut GgufReader, count: u64) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let tensor = Listed::read(reader)?;
        if !names.insert(tensor.name.clone()) {
            let error = safetensors_core::Error::from(safetensors_core::ErrorKind::DuplicateTensor);
            return Err(error.in_tensor(&tensor.name));
        }
        listed.push(tensor);
    }
    Ok(listed)
}
