//! The output for programs: everything as one document.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors_core::audit::FileLayout;
use safetensors_core::{Checkpoint, Metadata, ReadAt};
use serde::Serialize;

use super::Tensors;
use crate::totals::Totals;

/// The document of `--json`. Sizes are in bytes. Offsets count from the start of the file.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    index: Option<String>,
    metadata: &'a Metadata,
    total: Totals,
    dtypes: BTreeMap<&'static str, Totals>,
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry<'a>>,
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

/// The document of a checkpoint and some of its tensors.
pub(super) fn document<'a>(
    checkpoint: &'a Checkpoint,
    tensors: &Tensors<'a>,
    layouts: &[FileLayout],
) -> Document<'a> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let files: BTreeMap<&Path, usize> =
        checkpoint.files().iter().enumerate().map(|(i, shard)| (shard.path(), i)).collect();
    let mut entries = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        entries.push(TensorEntry {
            name: tensor.name(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            parameters: tensor.element_count(),
            bytes: tensor.byte_len(),
            file: tensor.file().and_then(|file| files.get(file)).copied().unwrap_or_default(),
            offset: tensor.file_offset(),
        });
    }
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
        tensors: entries,
    }
}
