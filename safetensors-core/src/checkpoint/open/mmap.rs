//! Mapping a file into memory.
// If any process changes a mapped file, the bytes behind a `&[u8]` change, which Rust forbids; if
// it truncates the file, touching the lost pages ends this process with `SIGBUS`. No check can rule
// that out. Reads at positions have no such hazard.

#![allow(
    unsafe_code,
    reason = "mapping a file is a promise about other processes, which only the caller can give"
)]

use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::opening::Opener;
use crate::checkpoint::store::{Boxed, LocalStore, OpenedBy};
use crate::checkpoint::{Checkpoint, CheckpointPath};
use crate::file::io::FileSource;
use crate::format::error::{Error, Result};
use crate::format::header::Limits;

impl Checkpoint<Mmap> {
    /// Opens a checkpoint as [`open`](Checkpoint::open) does and maps its files, so that tensors
    /// can be lent as [views](crate::LazyTensor::view). A mapping can be given advice on its use:
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &SaveOptions::new())?;
    /// // SAFETY: nothing changes this file while it is mapped.
    /// let checkpoint = unsafe { Checkpoint::mmap(&path) }?;
    /// #[cfg(unix)]
    /// for file in checkpoint.files() {
    ///     // All tensors will be needed soon: the system begins to read them.
    ///     file.safetensors().source().advise(memmap2::Advice::WillNeed)?;
    /// }
    /// assert_eq!(checkpoint.tensor("w")?.view()?.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// None of the files may be changed or truncated, by any process, for as long as the checkpoint
    /// lives: a view of a file that changes is undefined behaviour, and touching a page that was
    /// cut off ends the process.
    ///
    /// # Errors
    ///
    /// As for [`open`](Checkpoint::open);
    /// [`RankProblem::PartsOfTensors`](crate::error::RankProblem::PartsOfTensors).
    pub unsafe fn mmap(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // SAFETY: the caller promises that the files stay as they are while the checkpoint, which
        // owns the mappings, lives.
        let store = &OpenedBy(|path: &Path| unsafe { map_file(path) });
        let opener = Opener { store, limits: &Limits::default(), joins: false };
        let opened = opener.open(path, || CheckpointPath::find(path))?;
        opened.with_siblings(Arc::new(Boxed(LocalStore)), false).into_stored()
    }
}

/// Maps a regular file, read-only. A file without bytes is an empty mapping.
///
/// # Safety
///
/// The file must not be changed or truncated, by any process, for as long as the mapping lives.
unsafe fn map_file(path: &Path) -> Result<Mmap> {
    let source = FileSource::open(path)?;
    // SAFETY: the caller promises that the file stays as it is while the mapping lives.
    let map = unsafe { Mmap::map(source.file()) };
    map.map_err(|error| Error::io(error, path))
}
