//! Archives in the files of a directory, written by `torch.save`.

use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;
use serde_json::Value as Json;

use crate::Options;
use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Quoted, Result};
use crate::input::Input;
pub(super) use crate::pytorch::archive::Archive;
use crate::pytorch::names::Search;
use crate::pytorch::values::{Node, Value};
use crate::pytorch::{build, names, unread};
use crate::tensor_file::{Builder, Tensor};
use crate::zipped::Zipped;

pub(super) fn open(source: Arc<dyn ReadAt>, path: &Path, budget: &Budget) -> Result<Archive> {
    let located = |error: Error| error.in_path(path);
    let mut start = [0; 4];
    if source.byte_len() < 4
        || source.read_exact_at(&mut start, 0).is_err()
        || start != *b"PK\x03\x04"
    {
        let problem = "its bytes are no archive that PyTorch's save has written";
        return Err(located(ErrorKind::BadDirectory { problem: problem.into() }.into()));
    }
    let zipped = Zipped::open(Input::new(source, path), budget.limits())?;
    Archive::read(zipped, budget).map_err(located)
}

/// Returns the tensors in a value. A single tensor has the name `name`, others have names below it.
/// `start`: of the archive in its file.
pub(super) fn tensors(
    archive: &Archive,
    value: Value,
    name: &str,
    start: u64,
    options: &Options,
) -> Result<Builder> {
    let found = match names::collect(&archive.values, value, name, name) {
        // Here it has a name, as in a file with several objects.
        Err(error) if !name.is_empty() && error.tensor() == Some(name) => {
            let Some(ErrorKind::UnknownObject { class }) = error.other() else { return Err(error) };
            let tensors = vec![unread(name.to_owned(), class.clone())];
            return Ok(Builder { tensors, ..Builder::default() });
        }
        found => found?,
    };
    let mut builder =
        build(&archive.values, found, options, &mut |storage| archive.place(storage))?;
    if !name.is_empty() && !matches!(archive.values.node(value), Some(Node::Tensor(_))) {
        builder.notes.iter_mut().for_each(|note| *note = format!("{}: {note}", Quoted(name)));
    }
    at(builder, start)
}

/// `None` if JSON cannot hold it.
pub(super) fn json(archive: &Archive, value: Value) -> Result<Option<Json>> {
    Search::new(&archive.values).json(value)
}

/// Moves places to the archive's start in the file.
pub(super) fn at(mut builder: Builder, start: u64) -> Result<Builder> {
    for tensor in std::mem::take(&mut builder.tensors) {
        let Tensor { name, data, .. } = tensor;
        let Some(data) = data.inside(start) else {
            let problem = "it is compressed, which PyTorch does not do in such a directory".into();
            return Err(Error::from(ErrorKind::NotRead { problem }).in_tensor(&name));
        };
        builder.tensors.push(Tensor { name, data, ..tensor });
    }
    Ok(builder)
}

pub(super) fn one_tensor(
    archive: &Archive,
    name: &str,
    start: u64,
    options: &Options,
) -> Result<Tensor> {
    let problem = "its bytes are an object of another kind than a tensor";
    let other = || ErrorKind::BadDirectory { problem: problem.into() };
    if !matches!(archive.values.node(archive.object), Some(Node::Tensor(_))) {
        return Err(other().into());
    }
    let found = tensors(archive, archive.object, name, start, options)?;
    Ok(found.tensors.into_iter().next().ok_or_else(other)?)
}
