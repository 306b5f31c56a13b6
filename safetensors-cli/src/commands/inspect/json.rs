//! The output for programs: one document.

use std::collections::BTreeMap;

use safetensors_core::Metadata;
use safetensors_core::header::dimensions;
use safetensors_core::quantized::QuantizedWeight;
use serde::{Serialize, Serializer};

use super::{File, Tensors};
use crate::input::other::{self, DisplayedTensor};
use crate::input::{Checkpoint, Tensor};
use crate::model::totals::{Parameters, Totals};
use crate::terminal::text;

/// Sizes are in bytes. Offsets count from the start of the file.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    index: Option<String>,
    metadata: &'a Metadata,
    total: Totals,
    dtypes: BTreeMap<&'a str, Totals>,
    files: Vec<FileEntry>,
    tensors: TensorList<'a>,
    quantized_weights: Vec<WeightEntry<'a>>,
}

#[derive(Serialize)]
struct WeightEntry<'a> {
    name: &'a str,
    scheme: &'a str,
    shape: &'a [usize],
    parameters: u64,
    bytes: u64,
    tensors: &'a [String],
}

#[derive(Default, Serialize)]
struct FileEntry {
    path: String,
    /// The format, unless it is safetensors.
    format: Option<String>,
    tensors: usize,
    bytes: u64,
    header_bytes: u64,
    leading_bytes: u64,
    padding_bytes: u64,
    foreign_padding: bool,
    data_start: u64,
    data_alignment: u64,
    misaligned_tensors: u64,
    /// Content of a file of another format that is not a tensor.
    notes: Vec<String>,
}

impl FileEntry {
    fn new((file, layout): &File<'_>) -> Self {
        let source = file.safetensors().source();
        let entry = Self {
            path: text::lossy(file.path()),
            tensors: file.safetensors().header().len(),
            bytes: other::file_len(source),
            ..Self::default()
        };
        match other::tensor_file(source) {
            // The place and alignment of data are questions about safetensors files.
            Some(file) => Self {
                format: Some(file.format().to_string()),
                notes: file.notes().to_vec(),
                ..entry
            },
            None => Self {
                header_bytes: layout.header_len,
                leading_bytes: layout.leading_space,
                padding_bytes: layout.padding,
                foreign_padding: layout.is_padding_foreign,
                data_start: layout.data_start,
                data_alignment: layout.data_alignment,
                misaligned_tensors: layout.misaligned_tensors,
                ..entry
            },
        }
    }
}

// Each becomes an entry only when it is written, because there may be a million.
struct TensorList<'a>(&'a Tensors<'a>, &'a Metadata, &'a Parameters<'a>);

impl Serialize for TensorList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(tensors, metadata, parameters) = self;
        let entry = |tensor| TensorEntry::new(tensor, metadata, parameters);
        serializer.collect_seq(tensors.iter().map(entry))
    }
}

#[derive(Serialize)]
struct TensorEntry<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: &'a [usize],
    parameters: u64,
    bytes: u64,
    /// The index into `files`.
    file: usize,
    offset: Option<u64>,
    dimensions: Option<Vec<String>>,
}

impl<'a> TensorEntry<'a> {
    fn new(tensor: &Tensor<'a>, metadata: &Metadata, parameters: &Parameters<'_>) -> Self {
        let shown = DisplayedTensor::new(tensor);
        let ndim = tensor.shape().len();
        Self {
            name: tensor.name(),
            dtype: shown.kind().name(),
            shape: shown.shape(),
            parameters: parameters.count(shown),
            bytes: shown.byte_len(),
            file: tensor.file_index(),
            // The bytes of a tensor of another format may be in many places, or in none.
            offset: other::tensor_file(tensor.source()).is_none().then(|| tensor.file_offset()),
            dimensions: dimensions(metadata, tensor.name(), ndim).ok().flatten(),
        }
    }
}

pub(super) fn document<'a>(
    checkpoint: &'a Checkpoint,
    tensors: &'a Tensors<'a>,
    weights: &'a [QuantizedWeight],
    parameters: &'a Parameters<'a>,
    files: &[File<'_>],
) -> Document<'a> {
    let entry = |weight: &'a QuantizedWeight| WeightEntry {
        name: &weight.name,
        scheme: weight.scheme,
        shape: &weight.shape,
        parameters: other::elements(&weight.shape),
        bytes: weight.byte_len,
        tensors: &weight.tensors,
    };
    let dtypes = parameters.by_kind(tensors.iter().copied());
    Document {
        index: checkpoint.index_path().map(text::lossy),
        metadata: checkpoint.metadata(),
        total: dtypes.values().copied().sum(),
        dtypes: dtypes.iter().map(|(dtype, totals)| (dtype.name(), *totals)).collect(),
        files: files.iter().map(FileEntry::new).collect(),
        tensors: TensorList(tensors, checkpoint.metadata(), parameters),
        quantized_weights: weights.iter().map(entry).collect(),
    }
}
