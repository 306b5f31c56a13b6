//! Recording digests in a file that exists.

use std::path::Path;

use super::{Edit, Edited};
use crate::file::hash::{
    Change, DigestOptions, KEY, TensorDigests, of_data, of_tensor, sha256_entry,
};
use crate::file::io::{FileSource, SafeTensors};
use crate::file::load::LazyTensor;
use crate::format::error::Result;
use crate::format::header::{Metadata, SHA256_KEY};

impl Edit<'_> {
    /// Computes the digests of the file's data now, and records them in its metadata, except
    /// digests that the options turn off. If the same edit changes the data, [`apply`](Edit::apply)
    /// computes them again.
    ///
    /// To record digests without reading the data again, save with
    /// [`SaveOptions::digests`](crate::SaveOptions::digests).
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
    /// [`ErrorKind::InHubCache`](crate::ErrorKind::InHubCache) unless
    /// [`change_cached`](Edit::change_cached) was set before;
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// [`ErrorKind::FeatureNeeded`](crate::ErrorKind::FeatureNeeded) for a SHA-256 without the
    /// feature `sha256`.
    pub fn record_digests(mut self, options: &DigestOptions) -> Result<Self> {
        // The data may take long to read, so this comes first.
        self.check_place(Edited::Rewritten, Change::Header)
            .map_err(|error| error.in_path(&self.path))?;
        let entries = entries(&self.archive, &self.path, options)?;
        self.recorded.extend(entries);
        self.recording = options.clone();
        Ok(self)
    }

    pub(super) fn digests_of(&self, written: &SafeTensors<FileSource>) -> Result<Metadata> {
        let options = self.recording.clone().tensors(self.recorded.contains_key(KEY));
        let sha256 = self.recorded.contains_key(SHA256_KEY);
        entries(written, &self.path, &options.sha256(sha256))
    }
}

fn entries(
    file: &SafeTensors<FileSource>,
    path: &Path,
    options: &DigestOptions,
) -> Result<Metadata> {
    let records_sha256 = options.sha256.unwrap_or(false);
    let passes = u64::from(options.tensors) + u64::from(records_sha256);
    let progress = options.work.meter(passes * file.header().data_len());
    let mut entries = Metadata::new();
    if options.tensors {
        let lazy: Vec<_> =
            file.header().iter().map(|info| LazyTensor::new(info, file, Some(path))).collect();
        let digests =
            options.work.each(&lazy, |tensor, buffer| of_tensor(tensor, buffer, &progress))?;
        let record: TensorDigests = lazy.iter().map(|tensor| tensor.name()).zip(digests).collect();
        record.insert_into(&mut entries);
    }
    if records_sha256 {
        let hash =
            of_data(file, &mut Vec::new(), &progress).map_err(|error| error.in_path(path))?;
        let (key, value) = sha256_entry(hash);
        entries.insert(key.into(), value);
    }
    Ok(entries)
}
