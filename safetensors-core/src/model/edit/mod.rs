//! Changing an existing file: its metadata, the names of its tensors, and the set of its tensors.
//!
//! [`Edit`] collects changes and applies them at once. A new file replaces the old one when it is
//! complete and on the disk. A program that has the old file open or mapped continues to read it.
//!
//! The system copies the data where it can. If the new header fits into the old one with its
//! padding, file systems with reflinks (btrfs, XFS, APFS) share the blocks of the data. btrfs and
//! XFS also share data that moves by full blocks, for example with
//! [`SaveOptions::align(4096)`](crate::SaveOptions::align). Otherwise an edit needs the time and
//! the space for a second copy.
//!
//! # In place
//!
//! With [`Edit::in_place`], a header that fits is written over the old one, which takes no time.
//! Readers then refuse the file for a moment, and after an interruption until the next edit:
//!
//! 1. The old and the new header are written to `.NAME.header-backup`, next to the file.
//! 2. A mark that makes the file invalid replaces the header's length.
//! 3. The new header is written, except for its length.
//! 4. The length replaces the mark, and the backup is removed.
//!
//! After a failed step the old header is written back. If power or the process fails, readers may
//! refuse the file ([`ErrorKind::TornHeader`](crate::ErrorKind::TornHeader)) until
//! [`restore_header`] or the next [`Edit::open`] restores the old header from the backup, which
//! must fit the file. [`audit`](crate::Checkpoint::audit) reports a backup that is left over.
//!
//! A reader that opens the file by its path gets the old header, the new one, or an error: see
//! [`ReadAt::may_change_unseen`](crate::ReadAt::may_change_unseen). Where the file system does not
//! record different times for two writes some 30 ms apart, or the backup cannot be given to the
//! owner of the file, a new file is written instead.
//!
//! Other implementations may read the header while it is written. Do not edit in place while there
//! are such readers, or while the file is [mapped](crate::Checkpoint::mmap).
//!
//! # Details
//!
//! - Hard links keep the old file, so a file with several names is never edited in place. The
//!   target of a symbolic link is replaced.
//! - A new file has the mode and, where the system allows it, the owner and group of the old one.
//!   Extended attributes and access control lists stay only in place.
//! - On Unix a file is locked (`flock`) against other edits, not against readers.
//! - Recorded [digests](crate::digest) are renamed and removed with their tensors; the SHA-256 of
//!   all data is removed if the data changes.
//! - A file is not edited or replaced if a `manifest.json` records a digest of its header, as in
//!   burn's epochs. After a change of names or data, deltas of the file no longer apply.
//! - [Attributes](crate::header::attributes()), such as units, are renamed and removed with their
//!   tensor. Other metadata that names tensors, such as [tied](crate::tied) names, is not changed,
//!   nor is the index of a sharded checkpoint.

mod apply;
mod backup;
mod digests;
mod header;
mod open;
mod plan;
mod record;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use open::Access;
pub use open::{is_torn, restore_header};
use plan::EditPlan;

use crate::file::hash::{Change, DigestOptions, Note, check_records, signatures};
use crate::file::io::{FileSource, SafeTensors};
use crate::file::save::cached::refuse_cached;
use crate::format::error::Result;
use crate::format::header::{Header, Metadata};
use crate::format::tensor::TensorSource;

/// The result of an edit, or of a planned edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// The file already is as requested.
    Unchanged,
    /// The header is written in place, as [`Edit::in_place`] asks for.
    InPlace,
    /// A new file with the old one's permissions replaces it.
    Rewritten,
}

/// Changes to one file, which are made all at once by [`apply`](Edit::apply).
///
/// ```
/// use safetensors_core::edit::{Edit, Edited};
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let tensors = [("wte", [1.0_f32, 2.0]), ("tmp", [3.0, 4.0])];
/// let views =
///     tensors.iter().map(|(name, data)| Ok((*name, TensorView::from_slice(&[2], data)?)));
/// save(
///     &path,
///     views.collect::<Result<Vec<_>, safetensors_core::Error>>()?,
///     &SaveOptions::new().align(4096),
/// )?;
///
/// let edit = Edit::open(&path)?
///     .set_metadata([("format", "pt")])
///     .rename([("wte", "embed_tokens.weight")])
///     .remove(["tmp"])
///     .append([("scale", TensorView::from_slice(&[], &[0.5_f32])?)]);
/// assert_eq!(edit.apply()?, Edited::Rewritten);
///
/// // The header has room. So it can be written in place, which needs no copy of the file.
/// let edit = Edit::open(&path)?.in_place(true).set_metadata([("license", "mit")]);
/// assert_eq!(edit.dry_run()?, Edited::InPlace);
/// edit.apply()?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// assert_eq!(checkpoint.metadata()["format"], "pt");
/// assert_eq!(
///     checkpoint.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(),
///     ["embed_tokens.weight", "scale"]
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Edit<'a> {
    path: PathBuf,
    /// After following links.
    destination: PathBuf,
    archive: SafeTensors<FileSource>,
    read_only: bool,
    restored: bool,
    /// Without the removed entries.
    metadata: Metadata,
    set: Metadata,
    recorded: Metadata,
    recording: DigestOptions,
    renamed: Vec<(String, String)>,
    removed: Vec<String>,
    appended: Vec<(String, Box<dyn TensorSource + 'a>)>,
    is_protected: bool,
    in_place: bool,
    change_cached: bool,
    durable: bool,
}

impl<'a> Edit<'a> {
    /// Opens a file to be edited and locks it against other edits. A half-written header is
    /// [restored](restore_header) first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile);
    /// [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile);
    /// [`ErrorKind::TornHeader`](crate::ErrorKind::TornHeader) if the backup is missing;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) also if another edit has locked the file; and as for
    /// [`Header::parse`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        open::open(path.as_ref(), Access::Write)
    }

    /// Opens a file like [`open`](Self::open), even if it is read-only. A new file with its
    /// permissions replaces it.
    pub fn open_to_replace(path: impl AsRef<Path>) -> Result<Self> {
        open::open(path.as_ref(), Access::Replace)
    }

    /// Opens a file only for [`dry_run`](Edit::dry_run), without a lock. Read permission is enough.
    /// A half-written header is not restored, see [`is_torn`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        open::open(path.as_ref(), Access::Preview)
    }

    /// Returns the header before the edit.
    pub fn header(&self) -> &Header {
        self.archive.header()
    }

    /// Returns `true` if opening the file restored a half-written header.
    pub fn was_restored(&self) -> bool {
        self.restored
    }

    /// Adds entries to the `__metadata__`, or changes the values of existing ones.
    pub fn set_metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.set.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Removes entries from the `__metadata__`. Missing keys are ignored.
    pub fn remove_metadata(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for key in keys {
            self.metadata.remove(key.as_ref());
            self.set.remove(key.as_ref());
            self.recorded.remove(key.as_ref());
        }
        self
    }

    /// Removes the `__metadata__`.
    pub fn clear_metadata(mut self) -> Self {
        self.metadata.clear();
        self.set.clear();
        self.recorded.clear();
        self
    }

    /// Renames tensors: pairs of the old and the new name. All renames happen at once, so two
    /// tensors can swap their names.
    pub fn rename<K: Into<String>, V: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.renamed.extend(names.into_iter().map(|(old, new)| (old.into(), new.into())));
        self
    }

    /// Removes tensors, by their names in the file. The data after them moves.
    pub fn remove(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.removed.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds tensors after the file's tensors, in this order. Names that this edit removes or
    /// renames are free. The bytes are read when the edit is applied.
    ///
    /// A tensor may then be misaligned, and so not be borrowed as a typed slice.
    /// [`Rewrite`](crate::Rewrite) aligns each.
    pub fn append<N: Into<String>, S: TensorSource + 'a>(
        mut self,
        tensors: impl IntoIterator<Item = (N, S)>,
    ) -> Self {
        let boxed =
            |(name, source): (N, S)| (name.into(), Box::new(source) as Box<dyn TensorSource + 'a>);
        self.appended.extend(tensors.into_iter().map(boxed));
        self
    }

    /// Sets whether the header is written [in place](crate::edit#in-place) if it fits. Off by
    /// default: every change makes a new file.
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place && !self.is_protected;
        self
    }

    /// Sets whether a file in a cache of the Hub may be changed. Off by default, with
    /// [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache), because all revisions and Python
    /// share its content.
    pub fn change_cached(mut self, change_cached: bool) -> Self {
        self.change_cached = change_cached;
        self
    }

    /// Sets whether to wait until everything has reached the disk. On by default.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Returns the result of [`apply`](Edit::apply), after all its checks, and changes nothing.
    /// `apply` may still write a new file instead of [`Edited::InPlace`], if the file system
    /// records times too coarsely.
    pub fn dry_run(&self) -> Result<Edited> {
        Ok(self.checked_plan()?.1)
    }

    fn checked_plan(&self) -> Result<(EditPlan<'_>, Edited)> {
        let plan = EditPlan::new(self).map_err(|error| error.in_path(&self.path))?;
        match self.check_place(plan.outcome(self), plan.change) {
            Ok(outcome) => Ok((plan, outcome)),
            Err(error) => Err(error.in_path(&self.path)),
        }
    }

    /// Returns the side effects of [`apply`](Edit::apply): digests that are removed, signatures
    /// that may be of the old file, and hard links that keep it.
    ///
    /// ```
    /// use safetensors_core::digest::{DigestOptions, Note};
    /// use safetensors_core::edit::Edit;
    /// use safetensors_core::{SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let weight = TensorView::from_slice(&[2], &[1_u8, 2])?;
    /// save(&path, [("a", weight), ("b", weight)], &SaveOptions::new())?;
    /// Edit::open(&path)?.record_digests(&DigestOptions::new().sha256(true))?.apply()?;
    ///
    /// let edit = Edit::open(&path)?.remove(["a"]);
    /// assert_eq!(edit.notes()?, [Note::Removed { key: "modelspec.hash_sha256" }]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notes(&self) -> Result<Vec<Note>> {
        let (plan, outcome) = self.checked_plan()?;
        if outcome == Edited::Unchanged {
            return Ok(Vec::new());
        }
        let mut notes = plan.notes;
        notes.extend(signatures(&self.path, plan.change));
        Ok(notes)
    }

    fn check_place(&self, outcome: Edited, change: Change) -> Result<Edited> {
        if outcome != Edited::Unchanged {
            if !self.change_cached {
                refuse_cached(&self.path)?;
            }
            check_records(&self.path, &self.destination, change)?;
        }
        Ok(outcome)
    }

    /// Makes the changes, and returns how.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`](crate::ErrorKind::TensorNotFound), also for a tensor that is
    /// both renamed and removed; [`ErrorKind::DuplicateTensor`](crate::ErrorKind::DuplicateTensor),
    /// also for one that is renamed twice; [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache);
    /// [`ErrorKind::InManifest`](crate::ErrorKind::InManifest);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) also if the file has changed since it was opened, or
    /// was opened [read-only](Edit::open_read_only); and as for [`save`](crate::save()).
    ///
    /// The file is then unchanged, except after
    /// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable), or if the error states that the old
    /// header could not be written back.
    pub fn apply(self) -> Result<Edited> {
        let path = self.path.clone();
        apply::apply(self).map_err(|error| error.in_path(&path))
    }
}

impl std::fmt::Debug for Edit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edit")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .field("set", &self.set)
            .field("renamed", &self.renamed)
            .field("removed", &self.removed)
            .field("appended", &self.appended.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
