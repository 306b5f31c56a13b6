//! Opening the files of a delta, for the package that applies it. They look like those of a
//! checkpoint, but their tensors are compressed differences, so no other way opens them.

use std::path::Path;
use std::sync::Arc;

use super::index::Index;
use super::locate::locate;
use super::opening::{Indexed, delta_index, open_indexed, until_settled};
use super::store::Store;
use super::{Checkpoint, CheckpointPath};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{Limits, Metadata};

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
                CheckpointPath::File(file) => match delta_index(&*store, &file, limits) {
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
            let files = files.in_store(Arc::clone(&store), false);
            Ok(Some((files, read.metadata)))
        })
    }
}
