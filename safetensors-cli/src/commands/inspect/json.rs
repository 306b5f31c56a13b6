//! The output for programs: everything as one document.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors_core::audit::FileLayout;
use safetensors_core::{Metadata, ReadAt};
use serde::{Serialize, Serializer};

use super::Tensors;
use crate::input::{Checkpoint, Tensor};
use crate::totals::Totals;

/// The document of `--json`. Sizes are in bytes. Offsets count from the start of the file.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    index: Option<String>,
    metadata: &'a Metadata,
    total: Totals,
    dtypes: BTreeMap<&'static str, Totals>,
    files: Vec<FileEntry>,
    tensors: TensorList<'a>,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    tensors: usize,
    bytes: u64,
    header_bytes: u64,
    leading_bytes: u64,
    padding_bytes: u64,
    foreign_padding: bool,
    data_start: u64,
    data_alignment: u64,
    misaligned_tensors: u64,
}

/// The tensors, each of which becomes an entry when it is written: there may be a million.
struct TensorList<'a>(&'a Tensors<'a>);

impl Serialize for TensorList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(TensorEntry::of))
    }
}

#[derive(Serialize)]
struct TensorEntry<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    parameters: u64,
    bytes: u64,
    /// The index into `files`.
    file: usize,
    offset: u64,
}

impl<'a> TensorEntry<'a> {
    fn of(tensor: &Tensor<'a>) -> Self {
        Self {
            name: tensor.name(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            parameters: tensor.element_count(),
            bytes: tensor.byte_len(),
            file: tensor.file_index(),
            offset: tensor.file_offset(),
        }
    }
}

/// The document of a checkpoint and some of its tensors.
pub(super) fn document<'a>(
    checkpoint: &'a Checkpoint,
    tensors: &'a Tensors<'a>,
    layouts: &[FileLayout],
) -> Document<'a> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let dtypes = Totals::by_dtype(tensors.iter().copied());
    let files = checkpoint.files().iter().zip(layouts).map(|(shard, layout)| FileEntry {
        path: path(shard.path()),
        tensors: shard.safetensors().header().len(),
        bytes: shard.safetensors().source().byte_len(),
        header_bytes: layout.header_len,
        leading_bytes: layout.leading_space,
        padding_bytes: layout.padding,
        foreign_padding: layout.is_padding_foreign,
        data_start: layout.data_start,
        data_alignment: layout.data_alignment,
        misaligned_tensors: layout.misaligned_tensors,
    });
    Document {
        index: checkpoint.index().map(path),
        metadata: checkpoint.metadata(),
        total: Totals::of(tensors.iter().copied()),
        dtypes: dtypes.into_iter().map(|(dtype, totals)| (dtype.name(), totals)).collect(),
        files: files.collect(),
        tensors: TensorList(tensors),
    }
}
