//! [`SaveOptions`]: metadata, order, alignment, durability, progress.

use alloc::string::String;

use crate::format::error::{ErrorKind, Result};
use crate::format::header::Metadata;
use crate::format::tied::Tied;

/// The order of the tensors in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From the last dtype of [`Dtype::ALL`](crate::Dtype::ALL) to the first, then by name, as the
    /// reference implementation sorts. The last dtypes have the widest elements, so each tensor
    /// begins at a multiple of its element size, for any order of the input.
    #[default]
    Alignment,
    /// In the order given. A tensor may then be misaligned for its dtype, for example F32 after
    /// three bytes of U8. It can be read, but not borrowed as a typed slice.
    Given,
}

/// How tensors are saved.
///
/// ```
/// use safetensors_core::SaveOptions;
/// use safetensors_core::save::Order;
///
/// let options =
///     SaveOptions::new().metadata([("format", "pt")]).order(Order::Given).align(4096);
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct SaveOptions {
    pub(crate) metadata: Metadata,
    /// Entries that are saved unchanged, including records that this crate has computed. Records in
    /// `metadata` belong to another file.
    pub(crate) as_is: Metadata,
    pub(crate) order: Order,
    pub(crate) align: usize,
    pub(crate) durable: bool,
    /// Whether the caller synchronises the file soon after the save.
    pub(crate) synced_later: bool,
    pub(crate) replace_read_only: bool,
    pub(crate) replace_cached: bool,
    pub(crate) overwrite: bool,
    pub(crate) tied: Option<Tied>,
    pub(crate) digests: bool,
    #[cfg(feature = "std")]
    pub(crate) progress: crate::format::parallel::Meter,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            metadata: Metadata::new(),
            as_is: Metadata::new(),
            order: Order::default(),
            align: 8,
            durable: true,
            synced_later: false,
            replace_read_only: false,
            replace_cached: false,
            overwrite: true,
            tied: None,
            digests: false,
            #[cfg(feature = "std")]
            progress: crate::format::parallel::Meter::default(),
        }
    }
}

impl SaveOptions {
    /// Returns the default options: no metadata, order by alignment, data at a multiple of 8 bytes,
    /// durable. Tensors that share storage are saved once for each name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds entries to the `__metadata__`. Libraries for PyTorch models expect `format` = `pt`.
    ///
    /// Metadata of another file can be passed on unchanged. Entries that hold for that file alone
    /// are not saved: the [digests](crate::digest) of its tensors and of its data, and the record
    /// of the attempt of ranks that made it. [`digests`](Self::digests) records new ones, and
    /// [`Edit::record_digests`](crate::edit::Edit::record_digests) also the SHA-256 of the data.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Removes all entries of the `__metadata__` that were added so far.
    pub fn clear_metadata(mut self) -> Self {
        self.metadata.clear();
        self
    }

    /// Sets the order of the tensors in the file.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Starts the data at a multiple of this many bytes: a power of two from 8 to 4096. A page
    /// (4096) suits mapping, direct I/O and reflinks.
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Sets whether to wait until the file and its name have reached the disk, so that a power cut
    /// loses nothing. On by default. On Linux, the disk begins while a large file is still being
    /// written.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets whether a read-only file may be replaced. Off by default: saving then fails with
    /// [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile). The new file gets the
    /// permissions of the old one, so it is read-only again.
    #[cfg(feature = "std")]
    pub fn replace_read_only(mut self, replace_read_only: bool) -> Self {
        self.replace_read_only = replace_read_only;
        self
    }

    /// Sets whether a file in a cache of the Hub may be replaced. Off by default: saving then fails
    /// with [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache). There, `snapshots` has the
    /// files of each revision, mostly as links to `blobs`. All revisions share a blob, and Python
    /// takes it for the download. A new file may always be saved there.
    #[cfg(feature = "std")]
    pub fn replace_cached(mut self, replace_cached: bool) -> Self {
        self.replace_cached = replace_cached;
        self
    }

    /// Sets whether an existing file is replaced. On by default. With `false`, saving fails with
    /// [`ErrorKind::FileExists`](crate::ErrorKind::FileExists) if there is a file at the path, also
    /// if it appears during the save. Several files are not saved to a directory that has one of
    /// them, another file of the same pattern, or an index of the same name. For several files the
    /// last check comes just before they are put in place, while the directory is locked. A file
    /// that a program without this lock puts there in the moment between is replaced.
    ///
    /// ```
    /// use safetensors_core::{ErrorKind, SaveOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let tensors = [("w", TensorView::from_slice(&[2], &[1_u8, 2])?)];
    /// let options = SaveOptions::new().overwrite(false);
    /// save(&path, tensors, &options)?;
    /// let error = save(&path, tensors, &options).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::FileExists));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Returns whether an existing file is replaced.
    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// Saves tensors that share storage once, and records their other names in the metadata.
    /// [`StreamWriter`](crate::save::StreamWriter) ignores this, because it does not know which
    /// tensors share storage.
    ///
    /// A save can then also fail as [`Tied`] lists.
    pub fn tied(mut self, tied: Tied) -> Self {
        self.tied = Some(tied);
        self
    }

    /// Sets whether to record a digest of each tensor in the metadata, so that
    /// [`verify`](crate::digest::verify) can find data that has changed. Off by default.
    ///
    /// Tensors are hashed while they are written. [`StreamWriter`](crate::save::StreamWriter) reads
    /// bytes back from the file if they were written out of order.
    /// [`write_to`](crate::save::write_to) cannot go back to the header, so it asks each source for
    /// its bytes twice.
    ///
    /// ```
    /// use safetensors_core::digest::{self, DigestOptions};
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let options = SaveOptions::new().digests(true);
    /// let file = serialize([("w", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &options)?;
    /// let file = Checkpoint::from_source(file, "bytes in memory")?;
    /// assert_eq!(digest::verify(&file, &DigestOptions::new())?[0].checked, ["w"]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn digests(mut self, digests: bool) -> Self {
        self.digests = digests;
        self
    }

    /// Calls `callback` as bytes of tensors are written, in the thread that wrote them: after each
    /// piece of at most 4 MiB, and at the end. Small tensors are reported together, about once per
    /// MiB. A sharded save counts the bytes of all files.
    ///
    /// If it returns [`ControlFlow::Break`](core::ops::ControlFlow::Break), even at the end, the
    /// save fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and the path keeps
    /// the old file. A save without bytes does not call it. [`serialize`](crate::serialize) ignores
    /// it.
    ///
    /// ```
    /// use safetensors_core::{ErrorKind, SaveOptions, TensorView, save};
    /// use std::ops::ControlFlow;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let tensors = [("w", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)];
    /// let options = SaveOptions::new().progress(|progress| {
    ///     println!(
    ///         "{} of {} bytes, {}",
    ///         progress.bytes_done, progress.bytes_total, progress.tensor
    ///     );
    ///     ControlFlow::Continue(())
    /// });
    /// save(&path, tensors, &options)?;
    ///
    /// let cancelled =
    ///     save(&path, tensors, &SaveOptions::new().progress(|_| ControlFlow::Break(())));
    /// assert!(matches!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "std")]
    pub fn progress(
        mut self,
        callback: impl Fn(crate::format::parallel::Progress<'_>) -> core::ops::ControlFlow<()>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.progress = crate::format::parallel::Meter::new(callback);
        self
    }

    pub(crate) fn check_align(&self) -> Result<()> {
        if self.align.is_power_of_two() && (8..=4096).contains(&self.align) {
            return Ok(());
        }
        Err(ErrorKind::BadAlignment { found: self.align }.into())
    }
}
