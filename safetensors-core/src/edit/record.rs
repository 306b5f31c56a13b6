//! Recording digests in a file that exists.

use std::ops::ControlFlow;
use std::path::Path;

use super::{Edit, Edited};
use crate::error::Result;
use crate::hash::{KEY, TensorDigests, of_data, of_tensor};
use crate::load::LazyTensor;
use crate::modelspec;
use crate::parallel::{Progress, Work};

/// Which digests are recorded in a file, and how.
///
/// ```
/// use safetensors_core::edit::RecordOptions;
///
/// let options = RecordOptions::new().sha256(true).threads(2);
/// ```
#[derive(Clone, Debug)]
pub struct RecordOptions {
    tensors: bool,
    sha256: bool,
    work: Work,
    in_place: bool,
    change_cached: bool,
    durable: bool,
}

impl Default for RecordOptions {
    fn default() -> Self {
        let work = Work::default();
        let (in_place, change_cached) = (false, false);
        Self { tensors: true, sha256: false, work, in_place, change_cached, durable: true }
    }
}

impl RecordOptions {
    /// The default options: the digest of each tensor, the default number of threads, durable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to record the XXH3-128 of each tensor. On by default.
    #[must_use]
    pub fn tensors(mut self, tensors: bool) -> Self {
        self.tensors = tensors;
        self
    }

    /// Whether to record the SHA-256 of all data as `modelspec.hash_sha256`, which reads the data
    /// once more. Off by default.
    #[must_use]
    pub fn sha256(mut self, sha256: bool) -> Self {
        self.sha256 = sha256;
        self
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.work = self.work.threads(threads);
        self
    }

    /// Calls `callback` after each piece that is read, as [`DigestOptions::progress`] does. If it
    /// cancels, the file stays as it was.
    ///
    /// [`DigestOptions::progress`]: crate::digest::DigestOptions::progress
    #[must_use]
    pub fn progress(
        mut self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.work = self.work.progress(callback);
        self
    }

    /// Whether the header is written in place if it fits, as [`Edit::in_place`] has it. Off by
    /// default.
    #[must_use]
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// Whether a file in a cache of the Hub may be changed, as [`Edit::change_cached`] has it. Off
    /// by default.
    #[must_use]
    pub fn change_cached(mut self, change_cached: bool) -> Self {
        self.change_cached = change_cached;
        self
    }

    /// Whether to wait until the change has reached the disk. On by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }
}

/// Computes the digests of a file's data and records them in its metadata, in place of earlier
/// ones. Digests that the options leave out stay as they are.
///
/// The file is locked against other edits meanwhile. A copy with the new header replaces it, unless
/// the options say [in place](RecordOptions::in_place): see [`edit`](crate::edit). Only this file
/// is changed. For a checkpoint of several files, call this for each of its
/// [`files`](crate::Checkpoint::files): one copy at a time is made, and each file is the old one or
/// the new one. If an earlier edit in place left the header half written, the old header is
/// restored first. Call [`recover`](super::recover) before, to learn whether this happened.
///
/// To record digests while tensors are saved, use
/// [`SaveOptions::digests`](crate::SaveOptions::digests). It does not read the data again.
///
/// ```
/// use safetensors_core::digest::{self, VerifyOptions};
/// use safetensors_core::edit::{RecordOptions, record_digests};
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("w", TensorView::from_slice(&[3], b"abc")?)], &SaveOptions::new())?;
///
/// record_digests(&path, &RecordOptions::new().sha256(true))?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let files = digest::verify(&checkpoint, &VerifyOptions::new().require_digests(true))?;
/// assert_eq!(files[0].checked, ["w"]);
/// assert!(checkpoint.metadata()["modelspec.hash_sha256"].starts_with("0xba7816bf8f01cfea"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`Edit::open`] and [`Edit::apply`]; [`ErrorKind::Io`](crate::ErrorKind::Io) if the data
/// cannot be read; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). The file is then as it
/// was.
pub fn record_digests(path: impl AsRef<Path>, options: &RecordOptions) -> Result<Edited> {
    let path = path.as_ref();
    let edit = Edit::open(path)?.change_cached(options.change_cached);
    // The data may take long to read, so this comes first.
    edit.check_place(Edited::Rewritten).map_err(|error| error.in_path(path))?;
    let file = edit.safetensors();
    let passes = u64::from(options.tensors) + u64::from(options.sha256);
    let progress = options.work.meter(passes * file.header().data_len());
    let mut entries = Vec::new();
    if options.tensors {
        let lazy: Vec<_> =
            file.header().iter().map(|info| LazyTensor::new(info, file, Some(path))).collect();
        let digests =
            options.work.each(&lazy, |tensor, buffer| of_tensor(tensor, buffer, &progress))?;
        let record: TensorDigests = lazy.iter().map(|tensor| tensor.name()).zip(digests).collect();
        entries.push((KEY, record.to_text()));
    }
    if options.sha256 {
        let hash =
            of_data(file, &mut Vec::new(), &progress).map_err(|error| error.in_path(path))?;
        entries.push(modelspec::sha256_entry(hash));
    }
    edit.in_place(options.in_place).set_metadata(entries).durable(options.durable).apply()
}
