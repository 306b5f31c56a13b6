//! Opening the files of a delta, for the package that applies it. They look like those of a
//! checkpoint, but their tensors are compressed differences, so no other way opens them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::Index;
use super::locate::locate;
use super::opening::{Indexed, open_indexed, until_settled};
use super::store::{FileKind, Store};
use super::{Checkpoint, CheckpointFile, CheckpointPath, STANDARD_INDEX};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::header::{Limits, Metadata};
use crate::io::ReadAt;

impl<S: ReadAt> Checkpoint<S> {
    /// Opens the files of a delta, which every other way to open a checkpoint refuses with
    /// [`ErrorKind::IsDelta`]. Its tensors are the compressed differences, as U8. Besides them it
    /// returns the strings in the metadata of the index alone, because the metadata of the files
    /// has the names of tensors as its keys.
    ///
    /// It is for the package `safetensors-delta`, which says what the differences mean. The `path`
    /// and the store are those of [`open_in`](Checkpoint::open_in).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotADelta`]; the errors of [`open_in`](Checkpoint::open_in).
    pub fn open_delta_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<(Self, Metadata)> {
        let (store, path) = (Arc::new(store), path.as_ref());
        until_settled(path, || {
            let index = match locate(&*store, path)? {
                CheckpointPath::Index(index) => index,
                // A directory opens as its `model.safetensors`, which a delta may have, too.
                CheckpointPath::File(file) => match index_of(&*store, &file, limits) {
                    Some((index, _)) if file != path => index,
                    _ => return Err(Error::from(ErrorKind::NotADelta).in_path(file)),
                },
            };
            let read = || match Index::read_any(&*store, &index, limits)? {
                found if found.is_delta => Ok(found),
                _ => Err(Error::from(ErrorKind::NotADelta).in_path(&index)),
            };
            let opened = open_indexed(&*store, &index, limits, read)?;
            let Some(Indexed { index: read, shards, version }) = opened else { return Ok(None) };
            let files = Self::from_shards(shards, &read, &index, version)?;
            let files = Self { siblings: Some(Arc::clone(&store) as _), ..files };
            Ok(Some((files, read.metadata)))
        })
    }
}

/// Fails for a file of a delta that is opened by itself. Only a file of nothing but rows of bytes,
/// with a checksum under the name of each, may be one, so for others nothing is looked up.
pub(super) fn refuse<T: Store>(
    store: &T,
    file: &CheckpointFile<T::File>,
    limits: &Limits,
) -> Result<()> {
    let header = file.archive.header();
    let mut differences = header.iter().map(|info| {
        let is_row = info.dtype() == Dtype::U8 && info.shape().len() == 1;
        is_row && file.archive.metadata().contains_key(info.name())
    });
    if header.is_empty() || !differences.all(|is_difference| is_difference) {
        return Ok(());
    }
    let found = index_of(store, &file.path, limits);
    found.map_or(Ok(()), |(_, index)| Err(index.refused().in_path(&file.path)))
}

/// The index of the delta that names a file, if it lies beside it.
fn index_of<T: Store>(store: &T, file: &Path, limits: &Limits) -> Option<(PathBuf, Index)> {
    let path = file.with_file_name(STANDARD_INDEX);
    let is_there = matches!(store.kind(&path), Ok(Some(FileKind::File)));
    let index = is_there.then(|| Index::read_any(store, &path, limits).ok()).flatten()?;
    let names_it = index.is_delta && index.files_beside(&path).iter().any(|named| named == file);
    names_it.then_some((path, index))
}
