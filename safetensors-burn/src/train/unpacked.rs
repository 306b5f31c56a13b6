//! [`Unpacked`]: the content of a record, to be written to a file.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, TensorData};
use burn::train::checkpoint::Checkpoint as Record;
use burn_store::burn_pack::Reader;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, Result};

use super::container::{Content, Described};
use super::error::of_record;
use super::staging;
use crate::store::pack::PackTensor;

/// The content of a record under burn's names.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) content: Content,
    /// Clones share their bytes, or read them from the file.
    pub(super) tensors: BTreeMap<String, PackTensor>,
    /// The directory of the file that burn made.
    staged: Option<AtomicDirectory>,
}

impl Unpacked {
    /// Unpacks any record. Its tensors are copied twice, or once with `staging`.
    pub(super) fn unpack<R: Record>(record: R, staging: Option<&Path>) -> Result<Self> {
        let Some(staging) = staging else {
            return Self::of_bytes(record.checkpoint_into_bytes().map_err(of_record)?);
        };
        let (reader, directory) = staging::file_of(record, staging)?;
        Ok(Self { staged: Some(directory), ..Self::of_reader(reader)? })
    }

    pub(super) fn of_bytes(bytes: Bytes) -> Result<Self> {
        Self::of_reader(Reader::from_bytes(bytes).map_err(of_record)?)
    }

    fn of_reader(reader: Reader) -> Result<Self> {
        let content = Content {
            metadata: reader.metadata().clone(),
            scalars: reader.scalars().clone(),
            ..Content::default()
        };
        Ok(Self::new(content, reader.into_tensors().map_err(of_record)?))
    }

    pub(super) fn of_tensors(content: Content, tensors: Vec<TakenTensor>) -> Self {
        let tensors = tensors.into_iter().map(|TakenTensor { name, id, data }| {
            let (bytes, shape, dtype) = data.into_parts();
            PackTensor::new(name, dtype, shape, id, bytes.shared())
        });
        Self::new(content, tensors)
    }

    fn new(mut content: Content, tensors: impl IntoIterator<Item = PackTensor>) -> Self {
        let mut by_name = BTreeMap::new();
        for tensor in tensors {
            let described = Described::new(tensor.dtype, &tensor.shape, tensor.param_id);
            content.tensors.insert(tensor.name.clone(), described);
            by_name.insert(tensor.name.clone(), tensor);
        }
        Self { content, tensors: by_name, staged: None }
    }

    /// Names `staging` in an error, without its hidden directory.
    pub(super) fn locate(&self, error: Error) -> Error {
        match &self.staged {
            Some(directory) => directory.locate(error),
            None => error,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TakenTensor {
    pub(super) name: String,
    pub(super) id: Option<u64>,
    pub(super) data: TensorData,
}
