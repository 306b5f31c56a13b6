//! [`StagedShards`]: a checkpoint between writing and its commit.

use super::ShardOptions;
use super::commit::{commit, finish, remove_left, unless_refused};
use super::index::Index;
use super::store::{Versions, WritableDirectory};
use crate::error::{Error, ErrorKind, Result};

/// The files of a saved checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedShards {
    /// The names of the files in order, without the index.
    pub files: Vec<String>,
    /// The number of bytes of all tensors.
    pub total_size: u64,
}

/// A checkpoint with all its files written, none of which has its name yet. Dropping it removes
/// them.
///
/// [`commit`](Self::commit) replaces the checkpoint of the directory by it. What must hold at that
/// moment, for example that no source has changed, is checked between [`begin`](Self::begin) and
/// `commit`.
///
/// ```
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::checkpoint::stage_sharded_to;
/// use safetensors_core::{Checkpoint, Limits, ShardOptions, TensorView};
///
/// let mut store = MemoryStore::default();
/// let bias = TensorView::from_slice(&[2], &[1_u8, 2])?;
/// let mut staged = stage_sharded_to(&mut store, [("bias", bias)], &ShardOptions::new())?;
/// // No other writer can come in between from here on, or the commit notices it.
/// staged.begin()?;
/// staged.commit()?;
/// assert_eq!(Checkpoint::open_in(store, "", &Limits::default())?.len(), 1);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Debug)]
pub struct StagedShards<'d, D: WritableDirectory> {
    directory: &'d mut D,
    options: ShardOptions,
    index: Index,
    saved: SavedShards,
    /// The files of the old checkpoint, once the commit has begun.
    before: Option<Versions<D::Version>>,
    /// Whether all new files are in place.
    is_in_place: bool,
    /// Files of the old checkpoint that could not be removed.
    left: Vec<(String, D::Version)>,
}

impl<'d, D: WritableDirectory> StagedShards<'d, D> {
    /// The files of a checkpoint with this index, which the directory has
    /// [written](WritableDirectory::write).
    pub(crate) fn new(
        directory: &'d mut D,
        options: &ShardOptions,
        index: Index,
        saved: SavedShards,
    ) -> Self {
        let options = options.clone();
        Self {
            directory,
            options,
            index,
            saved,
            before: None,
            is_in_place: false,
            left: Vec::new(),
        }
    }

    /// Takes the lock of the directory, if it has one, until the commit. Without a lock, the commit
    /// notices other writers from here on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileExists`]; [`ErrorKind::DirectoryBusy`]; the errors of the store. Nothing
    /// has changed, and this can be called again.
    pub fn begin(&mut self) -> Result<()> {
        if self.before.is_some() || self.is_in_place {
            return Ok(());
        }
        let begun = self.try_begin();
        if begun.is_err() {
            self.directory.release();
        }
        begun.map_err(|error| error.in_path(self.directory.path()))
    }

    fn try_begin(&mut self) -> Result<()> {
        let files: Vec<&str> = self.index.shards().map(|(file, _)| file).collect();
        let before = self.directory.begin(self.options.pattern(), &files)?;
        unless_refused(self.directory, &before, &self.options)?;
        self.before = Some(before);
        Ok(())
    }

    /// Puts the checkpoint in place. [Begins](Self::begin) if that has not been done.
    ///
    /// After an error this can be called again, also if the directory opens as the new checkpoint
    /// already. A store other than the local disk and memory may have lost files by then, which the
    /// next call reports.
    ///
    /// # Errors
    ///
    /// As of [`save_sharded`](crate::save_sharded), but for those of writing the files.
    pub fn commit(&mut self) -> Result<SavedShards> {
        self.begin()?;
        let committed = match self.before.take() {
            Some(before) => {
                commit(self.directory, &self.options, &self.index, before, &mut self.left)
            }
            None => {
                remove_left(self.directory, &mut self.left).and_then(|()| finish(self.directory))
            }
        };
        self.directory.release();
        let is_new = |error: &Error| {
            matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_))
        };
        self.is_in_place |= !self.left.is_empty() || committed.as_ref().err().is_none_or(is_new);
        committed.map_err(|error| error.in_path(self.directory.path()))?;
        Ok(self.saved.clone())
    }
}
