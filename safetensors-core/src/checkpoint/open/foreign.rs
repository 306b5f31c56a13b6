//! Opening a foreign index, for the package that knows its meaning.

use std::path::Path;
use std::sync::Arc;

use super::locate::locate;
use super::opening::{Indexed, Opener, until_settled};
use crate::checkpoint::index::Index;
use crate::checkpoint::store::Store;
use crate::checkpoint::{Checkpoint, CheckpointPath};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{Limits, Metadata};

impl<S: ReadAt> Checkpoint<S> {
    /// Opens the files of a foreign index, which others refuse, and returns the strings in the
    /// metadata of the index alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotADelta`]; otherwise as for [`open_in`](Checkpoint::open_in).
    #[doc(hidden)]
    pub fn open_foreign_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<(Self, Metadata)> {
        let store = Arc::new(store);
        let path = path.as_ref();
        let opener = Opener { store: &*store, limits, joins: false };
        until_settled(path, || {
            let index = match locate(&*store, path)? {
                CheckpointPath::Index(index) => index,
                // A directory opens as its `model.safetensors`, which a foreign index may name,
                // too.
                CheckpointPath::File(file) => match opener.foreign_index(&file) {
                    Some((index, _)) if file != path => index,
                    _ => return Err(Error::from(ErrorKind::NotADelta).in_path(file)),
                },
            };
            let opened = opener.open_indexed(&index, Index::read_foreign)?;
            let Some(Indexed { index: read, shards, version }) = opened else { return Ok(None) };
            let files = Self::from_shards(shards, &read, &index, version)?;
            let files = files.in_store(Arc::clone(&store), false);
            Ok(Some((files, read.metadata)))
        })
    }
}
