//! [`Unpacked`]: what a record has, to be written to a file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, TensorData};
use burn::train::checkpoint::Checkpoint as Record;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, Result};

use super::container::{Container, Content, no_tensor};
use super::error::of_record;
use super::packed::Described;
use super::packed::PackedTensor;
use super::staging;

/// What a record has. Names are those that burn gives.
#[derive(Debug)]
pub(super) enum Unpacked {
    /// The bytes that burn made of it.
    Bytes(Container),
    /// The file that burn made of it, in a hidden directory that goes with it.
    File(Container, AtomicDirectory),
    /// What burn gave tensor by tensor.
    Tensors(Tensors),
}

/// Tensors, each in memory of its own.
#[derive(Debug)]
pub(super) struct Tensors {
    content: Content,
    metadata_len: usize,
    data: BTreeMap<String, TensorData>,
}

impl Unpacked {
    /// Unpacks any record, through burn's bytes or through a file in `staging`. The tensors are
    /// copied, twice or once.
    ///
    /// # Errors
    ///
    /// [`EpochError::Record`](super::EpochError::Record); those of [`staging::file_of`].
    pub(super) fn of<R: Record>(record: R, staging: Option<&Path>) -> Result<Self> {
        match staging {
            Some(staging) => {
                let (container, directory) = staging::file_of(record, staging)?;
                Ok(Self::File(container, directory))
            }
            None => Self::of_bytes(record.checkpoint_into_bytes().map_err(of_record)?),
        }
    }

    pub(super) fn of_bytes(bytes: Bytes) -> Result<Self> {
        Ok(Self::Bytes(Container::parse(bytes)?))
    }

    /// Adds tensors, each with its name and the id of its parameter, to a content without tensors.
    ///
    /// # Errors
    ///
    /// The errors of [`Content::lay_out`].
    pub(super) fn of_tensors(
        rest: Content,
        tensors: impl IntoIterator<Item = (String, Option<u64>, TensorData)>,
    ) -> Result<Self> {
        let (mut content, mut data) = (rest, BTreeMap::new());
        for (name, id, tensor) in tensors {
            let described = Described::new(tensor.dtype(), tensor.shape(), id);
            content.tensors.insert(name.clone(), described);
            data.insert(name, tensor);
        }
        // As long as in a container that burn would make of it, so that what is saved can be
        // restored.
        let metadata_len = content.lay_out()?.0.len();
        Ok(Self::Tensors(Tensors { content, metadata_len, data }))
    }

    /// All but the bytes of the tensors.
    pub(super) fn content(&self) -> &Content {
        match self {
            Self::Bytes(container) | Self::File(container, _) => &container.content,
            Self::Tensors(tensors) => &tensors.content,
        }
    }

    /// The length that the content has in a container.
    pub(super) fn metadata_len(&self) -> usize {
        match self {
            Self::Bytes(container) | Self::File(container, _) => container.metadata_len,
            Self::Tensors(tensors) => tensors.metadata_len,
        }
    }

    /// A tensor, to be written to a file.
    pub(super) fn tensor(&self, name: &str) -> Result<PackedTensor<'_>> {
        match self {
            Self::Bytes(container) | Self::File(container, _) => container.tensor(name),
            Self::Tensors(tensors) => {
                let data = tensors.data.get(name).ok_or_else(|| no_tensor(name))?;
                PackedTensor::of_data(Cow::Borrowed(data))
            }
        }
    }

    /// Names the directory for records on their way in an error, without its hidden name.
    pub(super) fn locate(&self, error: Error) -> Error {
        match self {
            Self::File(_, directory) => directory.locate(error),
            Self::Bytes(_) | Self::Tensors(_) => error,
        }
    }
}
