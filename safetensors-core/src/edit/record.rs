//! Recording digests in a file that exists.

use super::{Edit, Edited};
use crate::error::Result;
use crate::hash::{DigestOptions, KEY, TensorDigests, of_data, of_tensor, sha256_entry};
use crate::load::LazyTensor;

impl Edit<'_> {
    /// Computes the digests of the file's data now, and records them in its metadata, in place of
    /// earlier ones. Digests that the options leave out stay as they are.
    ///
    /// The file is locked against other edits meanwhile. For a checkpoint of several files, edit
    /// each of its [`files`](crate::Checkpoint::files).
    ///
    /// To record digests while tensors are saved, use
    /// [`SaveOptions::digests`](crate::SaveOptions::digests). It does not read the data again.
    ///
    /// ```
    /// use safetensors_core::digest::{self, DigestOptions};
    /// use safetensors_core::edit::Edit;
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[3], b"abc")?)], &SaveOptions::new())?;
    ///
    /// Edit::open(&path)?.record_digests(&DigestOptions::new().sha256(true))?.apply()?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let files = digest::verify(&checkpoint, &DigestOptions::new().require_digests(true))?;
    /// assert_eq!(files[0].checked, ["w"]);
    /// assert!(checkpoint.metadata()["modelspec.hash_sha256"].starts_with("0xba7816bf8f01cfea"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache) for a file in a cache of the Hub,
    /// unless [`change_cached`](Edit::change_cached) was set before;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the data cannot be read;
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// [`ErrorKind::FeatureNeeded`](crate::ErrorKind::FeatureNeeded) for a SHA-256, if this crate
    /// was built without its feature `sha256`.
    pub fn record_digests(self, options: &DigestOptions) -> Result<Self> {
        let path = self.path.as_path();
        // The data may take long to read, so this comes first.
        self.check_place(Edited::Rewritten).map_err(|error| error.in_path(path))?;
        let file = self.safetensors();
        let records_sha256 = options.sha256.unwrap_or(false);
        let passes = u64::from(options.tensors) + u64::from(records_sha256);
        let progress = options.work.meter(passes * file.header().data_len());
        let mut entries = Vec::new();
        if options.tensors {
            let lazy: Vec<_> =
                file.header().iter().map(|info| LazyTensor::new(info, file, Some(path))).collect();
            let digests =
                options.work.each(&lazy, |tensor, buffer| of_tensor(tensor, buffer, &progress))?;
            let record: TensorDigests =
                lazy.iter().map(|tensor| tensor.name()).zip(digests).collect();
            entries.push((KEY, record.to_string()));
        }
        if records_sha256 {
            let hash =
                of_data(file, &mut Vec::new(), &progress).map_err(|error| error.in_path(path))?;
            entries.push(sha256_entry(hash));
        }
        Ok(self.set_metadata(entries))
    }
}
