//! [`Checkpoint::open_async`].

use std::io;
use std::path::{Path, PathBuf};

use super::opening::ATTEMPTS;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::store::{AsyncFile, AsyncStore};
use crate::file::io::AsyncReadAt;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;

impl<S: AsyncReadAt + 'static> Checkpoint<AsyncFile<S>> {
    /// Opens a checkpoint without blocking: fetches the index, the first 64 KiB of each file, and
    /// longer headers, all shards at once. [`AsyncStore`] reads the tensors; [`AsyncStore::run`]
    /// opens in other ways.
    ///
    /// # Errors
    ///
    /// As for [`open_in`](Checkpoint::open_in).
    /// [`RankProblem::BadParts`](crate::error::RankProblem::BadParts) for an index of files that
    /// may have parts of tensors, because the store cannot list the others.
    pub async fn open_async<O, F>(
        store: &AsyncStore<S, O>,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self>
    where
        O: Fn(PathBuf) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>>,
    {
        let path = path.as_ref();
        for _ in 0..ATTEMPTS {
            let run = store.run(|store| {
                let opened = Checkpoint::open_in(store.clone(), path, limits);
                Ok((opened.and_then(Checkpoint::into_stored), store.clone()))
            });
            let (opened, store) = run.await?;
            // This comes before the error is looked at: a shard may be missing because its index
            // was replaced.
            if store.has_current_indexes().await? {
                return opened;
            }
        }
        Err(Error::from(ErrorKind::KeepsChanging { attempts: ATTEMPTS }).in_path(path))
    }
}
