//! Changing a file that exists: its metadata, the names of its tensors, and which tensors it has.
//!
//! [`Edit`] collects changes and applies them at once. Where only the header changes and the new
//! one fits into the bytes of the old, padding included, the header alone is written. Everything
//! else makes a new file that takes the old one's place when it is complete; the data goes from one
//! to the other without passing through this process where the system can do that, and on file
//! systems with reflinks (btrfs, XFS) whole blocks are shared instead of copied as long as the data
//! keeps its place in them, which [`SaveOptions::align(4096)`](crate::SaveOptions::align) is good
//! for.
//!
//! # What an interruption leaves behind
//!
//! A new file takes its place whole or not at all. Before a header is written in place, the old and
//! the new one are put into a small file beside the edited one, `.NAME.header-backup`. Then a mark
//! takes the place of the header's length, which is invalid to every reader of the format; then the
//! new header is written; and at last its length. If one of these steps fails, the old header is put
//! back. The backup is removed in the end.
//!
//! A power cut or the end of the process may leave the mark in the file. Then all readers refuse the
//! file ([`ErrorKind::TornHeader`](crate::ErrorKind::TornHeader)), wherever it is moved. Whoever
//! opens it to edit it next, or calls [`recover`], restores the old header from the backup, and
//! learns of that from [`Edit::restored`] or [`recover`]. The backup is used only for the file that
//! it was made for, with the same inode, length and mark, and only if the header is the beginning of
//! one of the two and the rest of the other, in each sector of the disk. A file without the mark is
//! never changed for the sake of a backup, whatever lies beside it. A file that is replaced takes
//! the backup with it, and [`audit`](crate::Checkpoint::audit) names one that is left.
//!
//! # What readers see meanwhile
//!
//! Whoever opens the file by its path gets the old header, the new one, or an error, never a mixture:
//! see [`ReadAt::may_change_unseen`](crate::ReadAt::may_change_unseen). Opening waits a moment for
//! the edit to end. That needs a file system that gives a write another time than the one before,
//! within some 30 ms. Where it does not, a new file is written instead. Readers of other makes that
//! look only once, such as the reference implementation, can meet the write itself: for those, and
//! while the file is [mapped](crate::Checkpoint::mmap), turn writing in place off
//! ([`Edit::in_place`]).
//!
//! # What else to know
//!
//! - Editing in place changes the file under all its hard links; a new file takes the place of one
//!   of them. Symbolic links are followed.
//! - A file that nobody may write to, by its permissions, is not edited.
//! - On Unix a file is locked (`flock`) while it is edited, so that two edits cannot mix. Readers
//!   take no notice of that lock.
//! - Recorded [digests](crate::digest) stay true: those of tensors follow them, and the SHA-256 of
//!   all data goes when the data changes. Other metadata that speaks of tensors by their names,
//!   such as that of [tied](crate::tied) ones, stays as it is.
//! - One file is edited, not the index of a sharded checkpoint that it may belong to.

mod apply;
mod backup;
mod digests;
mod header;
mod open;
mod plan;
#[cfg(test)]
mod races;
mod record;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use open::{is_torn, recover};
use plan::EditPlan;
pub use record::{RecordOptions, record_digests};

use crate::error::Result;
use crate::header::{Header, Metadata};
use crate::io::{FileSource, SafeTensors};
use crate::save::Order;
use crate::tensor::TensorSource;

/// What an edit did, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Nothing: the file is as it should be.
    Unchanged,
    /// The header was written anew in its place; no tensor's bytes were touched.
    InPlace,
    /// A new file with the old one's permissions has taken its place.
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
/// // The header has room, so the data stays where it is.
/// let edit = Edit::open(&path)?
///     .set_metadata([("format", "pt")])
///     .rename([("wte", "embed_tokens.weight")]);
/// assert_eq!(edit.apply()?, Edited::InPlace);
///
/// // Data goes and comes, so there will be a new file.
/// let edit = Edit::open(&path)?
///     .remove(["tmp"])
///     .append([("scale", TensorView::from_slice(&[], &[0.5_f32])?)]);
/// assert_eq!(edit.dry_run()?, Edited::Rewritten);
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
pub struct Edit<'a> {
    /// As it was given, for messages.
    path: PathBuf,
    /// Where the links lead to.
    destination: PathBuf,
    archive: SafeTensors<FileSource>,
    /// Opened to be looked at, and not to be applied.
    read_only: bool,
    restored: bool,
    metadata: Metadata,
    renamed: Vec<(String, String)>,
    removed: Vec<String>,
    appended: Vec<(String, Box<dyn TensorSource + 'a>)>,
    order: Order,
    align: Option<usize>,
    in_place: bool,
    durable: bool,
}

impl<'a> Edit<'a> {
    /// Opens a file to be edited and locks it against other edits. If an earlier edit was
    /// interrupted while it wrote the header, the header is [restored](recover) first, and
    /// [`restored`](Edit::restored) says so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile) for anything but a regular file, or a
    /// link to one; [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile);
    /// [`ErrorKind::TornHeader`](crate::ErrorKind::TornHeader) if an edit was interrupted and no
    /// backup lies beside the file; [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read and written, or is
    /// being edited by somebody else; and the errors of [`Header::parse`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        open::open(path.as_ref(), false)
    }

    /// Opens a file to see what an edit would do: for [`dry_run`](Edit::dry_run) alone. The file is
    /// neither locked nor written to, and it is enough to be allowed to read it. A header that an
    /// interrupted edit left torn stays so, see [`is_torn`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); and the errors of [`Header::parse`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        open::open(path.as_ref(), true)
    }

    /// The header as it is before the edit.
    pub fn header(&self) -> &Header {
        self.archive.header()
    }

    /// Whether an earlier edit had left the header half written, and opening the file restored the
    /// one from before that edit.
    pub fn restored(&self) -> bool {
        self.restored
    }

    /// The file as it is before the edit.
    pub(crate) fn safetensors(&self) -> &SafeTensors<FileSource> {
        &self.archive
    }

    /// Adds entries to the `__metadata__`, or gives those that are there another value.
    #[must_use]
    pub fn set_metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Removes entries from the `__metadata__`. Keys that are not there do no harm.
    #[must_use]
    pub fn remove_metadata(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for key in keys {
            self.metadata.remove(key.as_ref());
        }
        self
    }

    /// Removes the whole `__metadata__`.
    #[must_use]
    pub fn clear_metadata(mut self) -> Self {
        self.metadata.clear();
        self
    }

    /// Renames tensors, each from the name that it has in the file. All renames happen at once, so
    /// two tensors can swap their names.
    #[must_use]
    pub fn rename<K: Into<String>, V: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.renamed.extend(names.into_iter().map(|(old, new)| (old.into(), new.into())));
        self
    }

    /// Removes tensors, by the names that they have in the file. The format knows no holes, so what
    /// follows moves up.
    #[must_use]
    pub fn remove(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.removed.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds tensors after those that the file has, in the order given. Names that are removed or
    /// renamed away are free.
    #[must_use]
    pub fn append<N: Into<String>, S: TensorSource + 'a>(
        mut self,
        tensors: impl IntoIterator<Item = (N, S)>,
    ) -> Self {
        let boxed =
            |(name, source): (N, S)| (name.into(), Box::new(source) as Box<dyn TensorSource + 'a>);
        self.appended.extend(tensors.into_iter().map(boxed));
        self
    }

    /// Sets the order of the tensors in the file afterwards. By default ([`Order::Given`]) those
    /// that stay keep their order, and new ones follow. That may leave tensors where their dtype is
    /// not aligned, for example an F32 tensor after three bytes of U8; such tensors can be read but
    /// not borrowed as typed slices. [`Order::Alignment`] sorts all of them and aligns each.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Moves the data to a multiple of this many bytes, a power of two from 8 to 4096, if it does
    /// not begin at one. By default it begins at as round an offset afterwards as before, at a
    /// multiple of 8 at least. The padding that this takes is room for later edits.
    #[must_use]
    pub fn align(mut self, align: usize) -> Self {
        self.align = Some(align);
        self
    }

    /// Whether the header may be written in its place where it fits. On by default; without it
    /// every change makes a new file, which takes the old one's place whole or not at all.
    #[must_use]
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// Whether to wait until everything has reached the disk, so that a power cut loses nothing. On
    /// by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// What [`apply`](Edit::apply) would do. Checks everything that can be known beforehand, and
    /// changes nothing. (Where a file system notes times too coarsely to write a header in place,
    /// `apply` finds that out and writes a new file.)
    ///
    /// # Errors
    ///
    /// As for [`apply`](Edit::apply), but for those of writing and of the appended tensors' bytes.
    pub fn dry_run(&self) -> Result<Edited> {
        Ok(EditPlan::new(self).map_err(|error| error.in_path(&self.path))?.outcome(self))
    }

    /// Makes the changes, and says what it took.
    ///
    /// A new file gets the permissions of the old one and, where the system allows it, its owner.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`](crate::ErrorKind::TensorNotFound) if a tensor to be renamed or
    /// removed is not there, or both is asked for;
    /// [`ErrorKind::DuplicateTensor`](crate::ErrorKind::DuplicateTensor) if two would have one
    /// name, or one is renamed twice; [`ErrorKind::Io`](crate::ErrorKind::Io) if somebody has
    /// written to the file or replaced it since it was opened, or if it was opened
    /// [read-only](Edit::open_read_only); otherwise those of [`save`](crate::save()). The file is
    /// then as it was, but for two errors, which say so:
    /// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable) if a new file has taken its place,
    /// and [`ErrorKind::Io`](crate::ErrorKind::Io) if the old header could not be put back.
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
            .field("renamed", &self.renamed)
            .field("removed", &self.removed)
            .field("appended", &self.appended.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
