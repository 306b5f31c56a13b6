//! [`SaveOptions`]: metadata, order, alignment, durability, progress.

use alloc::string::String;

use crate::format::error::{ErrorKind, Result};
use crate::format::header::Metadata;
use crate::format::tied::Tied;

/// The order of the tensors in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From wide elements to narrow ones, in reverse order of [`Dtype::ALL`](crate::Dtype::ALL),
    /// then by name, as in the reference implementation. So each tensor begins at a multiple of its
    /// element size.
    #[default]
    Alignment,
    /// As given. A tensor may be misaligned, such as F32 after three bytes of U8: it can be read,
    /// but not borrowed as a typed slice.
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
    /// Saved unchanged, including records that this crate has computed.
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
    /// Makes the default options: no metadata, order by alignment, data at a multiple of 8 bytes,
    /// durable, and tensors that share storage saved under each name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds entries to the `__metadata__`. Libraries for PyTorch models expect `format` = `pt`.
    ///
    /// Entries that describe another file are skipped: its [digests](crate::digest), and the
    /// attempt of the ranks that saved it. [`digests`](Self::digests) records new digests, and
    /// [`Edit::record_digests`](crate::edit::Edit::record_digests) also the SHA-256 of the data.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Removes the entries of the `__metadata__` so far.
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

    /// Sets whether to wait for the disk, so that a power cut loses nothing. On by default.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets whether to replace a read-only file by a read-only one. Otherwise, by default, saving
    /// fails with [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile).
    #[cfg(feature = "std")]
    pub fn replace_read_only(mut self, replace_read_only: bool) -> Self {
        self.replace_read_only = replace_read_only;
        self
    }

    /// Sets whether to replace a file in a cache of the Hub. Otherwise, by default, saving fails
    /// with [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache), because all revisions and
    /// Python share its content. New files are always saved.
    #[cfg(feature = "std")]
    pub fn replace_cached(mut self, replace_cached: bool) -> Self {
        self.replace_cached = replace_cached;
        self
    }

    /// Sets whether to replace an existing file. On by default. With `false`, saving fails with
    /// [`ErrorKind::FileExists`](crate::ErrorKind::FileExists), even if the file appears during the
    /// save. A sharded save also fails if another file of the pattern or an index of the same name
    /// exists. A program that does not lock the directory may still lose a file that it puts there
    /// after the last check.
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

    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// Saves tensors that share storage once, and their other names in the metadata. [`Tied`] lists
    /// the errors. [`StreamWriter`](crate::save::StreamWriter) knows no storages, and ignores this.
    pub fn tied(mut self, tied: Tied) -> Self {
        self.tied = Some(tied);
        self
    }

    /// Sets whether to record a digest of each tensor in the metadata, for
    /// [`verify`](crate::digest::verify). Off by default.
    ///
    /// Tensors are hashed while they are written. [`StreamWriter`](crate::save::StreamWriter) reads
    /// bytes back that were written out of order, and [`write_to`](crate::save::write_to) asks each
    /// source for its bytes twice.
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

    /// Calls `callback` in the thread that has written bytes of tensors: after at most 4 MiB, about
    /// once per MiB of small tensors, and at the end. A sharded save counts all files.
    ///
    /// [`ControlFlow::Break`](core::ops::ControlFlow::Break), even at the end, fails the save with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). [`serialize`](crate::serialize)
    /// ignores the callback.
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
