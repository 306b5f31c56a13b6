//! [`Unpacked`]: what a record has, to be written to a file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, TensorData};
use burn::train::checkpoint::Checkpoint as Record;
use safetensors_core::io::FileSource;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, Result};

use super::container::{Content, malformed};
use super::error::of_record;
use super::packed::{Described, PackedTensor};
use super::staging;

/// What a record has. Names are those that burn gives.
#[derive(Debug)]
pub(super) struct Unpacked {
    content: Content,
    /// The length that the content has in a container.
    metadata_len: usize,
    data: Data,
}

/// Where the tensors of a record are.
#[derive(Debug)]
enum Data {
    /// In the bytes that burn made of it.
    Bytes(Bytes),
    /// In the file that burn made of it, in a hidden directory that goes with it.
    File(FileSource, AtomicDirectory),
    /// Each in memory of its own, as burn gave it.
    Tensors(BTreeMap<String, TensorData>),
}

impl Unpacked {
    /// Unpacks any record, through burn's bytes or through a file in `staging`. The tensors are
    /// copied, twice or once.
    ///
    /// # Errors
    ///
    /// [`EpochError::Record`](super::EpochError::Record); those of [`staging::file_of`].
    pub(super) fn of<R: Record>(record: R, staging: Option<&Path>) -> Result<Self> {
        let Some(staging) = staging else {
            return Self::of_bytes(record.checkpoint_into_bytes().map_err(of_record)?);
        };
        let (file, directory) = staging::file_of(record, staging)?;
        let parsed = Content::parse(&file).map_err(|error| error.in_path(file.path()));
        let (content, metadata_len) = parsed.map_err(|error| directory.locate(error))?;
        Ok(Self { content, metadata_len, data: Data::File(file, directory) })
    }

    /// Unpacks the bytes of a record.
    ///
    /// # Errors
    ///
    /// [`EpochError::Record`](super::EpochError::Record) if the bytes are no container.
    pub(super) fn of_bytes(bytes: Bytes) -> Result<Self> {
        let (content, metadata_len) = Content::parse(&&bytes[..])?;
        // Views of shared bytes copy nothing.
        Ok(Self { content, metadata_len, data: Data::Bytes(bytes.shared()) })
    }

    /// Adds tensors, each with its name and the id of its parameter, to a content without tensors.
    ///
    /// # Errors
    ///
    /// The errors of [`Content::lay_out`].
    pub(super) fn of_tensors(
        mut content: Content,
        tensors: impl IntoIterator<Item = (String, Option<u64>, TensorData)>,
    ) -> Result<Self> {
        let mut data = BTreeMap::new();
        for (name, id, tensor) in tensors {
            let described = Described::new(tensor.dtype(), tensor.shape(), id);
            content.tensors.insert(name.clone(), described);
            data.insert(name, tensor);
        }
        // As long as in a container that burn would make of it, so that what is saved can be
        // restored.
        let metadata_len = content.lay_out()?.0.len();
        Ok(Self { content, metadata_len, data: Data::Tensors(data) })
    }

    /// All but the bytes of the tensors.
    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    pub(super) fn into_content(self) -> Content {
        self.content
    }

    pub(super) fn metadata_len(&self) -> usize {
        self.metadata_len
    }

    /// A tensor, to be written to a file. Its bytes are shared, or are read from a file when they
    /// are written.
    pub(super) fn tensor(&self, name: &str) -> Result<PackedTensor<'_>> {
        let no_tensor = || malformed(&format_args!("it has no tensor {name:?}"));
        let tensor = self.content.tensors.get(name).ok_or_else(no_tensor)?;
        match &self.data {
            Data::Bytes(bytes) => {
                let place = tensor.place(self.metadata_len)?;
                let bytes = bytes.view(place.start, place.end);
                PackedTensor::of_bytes(bytes.map_err(|_| Described::cut_off())?, tensor)
            }
            Data::File(file, _) => {
                PackedTensor::of_file(file, tensor.place(self.metadata_len)?, tensor)
            }
            Data::Tensors(data) => {
                PackedTensor::of_data(Cow::Borrowed(data.get(name).ok_or_else(no_tensor)?))
            }
        }
    }

    /// Names the directory for records on their way in an error, without its hidden name.
    pub(super) fn locate(&self, error: Error) -> Error {
        match &self.data {
            Data::File(_, directory) => directory.locate(error),
            Data::Bytes(_) | Data::Tensors(_) => error,
        }
    }
}
