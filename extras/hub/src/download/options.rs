//! [`DownloadOptions`]: the files to download, their source, and the cache.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::progress::{Callback, DownloadProgress};
use crate::client::ClientOptions;

/// The files that [`download`](super::download) downloads, their source, and the cache. Settings
/// that are missing here come from the environment.
///
/// ```no_run
/// use safetensors_hub::{DownloadOptions, download};
/// use std::ops::ControlFlow;
///
/// let options = DownloadOptions::new()
///     .revision("v1.0")
///     .include("config.json")
///     .include("tokenizer*")
///     .progress(|progress| {
///         eprintln!("{}: {} of {}", progress.file, progress.bytes_done, progress.bytes_total);
///         ControlFlow::Continue(())
///     });
/// let snapshot = download("owner/name", &options)?;
/// # Ok::<(), safetensors_hub::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DownloadOptions {
    pub(super) revision: Option<String>,
    pub(super) checkpoint: Option<String>,
    pub(super) patterns: Vec<String>,
    pub(super) excluded: Vec<String>,
    pub(super) client: ClientOptions,
    pub(super) cache: Option<PathBuf>,
    pub(super) local_dir: Option<PathBuf>,
    pub(super) overwrite: bool,
    pub(super) offline: Option<bool>,
    pub(super) threads: usize,
    pub(super) progress: Option<Callback>,
}

impl DownloadOptions {
    /// Downloads the checkpoint in the root of the branch `main`, and no other files; with the Hub,
    /// the token and the cache of the environment; up to 8 files at once.
    pub fn new() -> Self {
        Self {
            revision: None,
            checkpoint: Some(String::new()),
            patterns: Vec::new(),
            excluded: Vec::new(),
            client: ClientOptions::new(),
            cache: None,
            local_dir: None,
            overwrite: false,
            offline: None,
            threads: 8,
            progress: None,
        }
    }

    /// Sets the revision: a branch, a tag, a pull request such as `refs/pr/1`, or a commit. By
    /// default that is the branch `main`. A commit that is in the cache needs no request.
    #[must_use]
    pub fn revision(self, revision: impl Into<String>) -> Self {
        Self { revision: Some(revision.into()), ..self }
    }

    /// Sets the checkpoint of the repository to download: a folder such as `unet`, a file of
    /// tensors, or an index with its shards. By default it is the one that
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open) opens in the root.
    #[must_use]
    pub fn checkpoint(self, path: impl Into<String>) -> Self {
        Self { checkpoint: Some(path.into()), ..self }
    }

    /// Downloads no checkpoint, only the files that are [asked for](Self::include).
    #[must_use]
    pub fn no_checkpoint(self) -> Self {
        Self { checkpoint: None, ..self }
    }

    /// Adds files with a full name in the repository that matches a pattern, such as `config.json`,
    /// `tokenizer*` or `onnx/`, which is everything in a folder. It is a
    /// [`Pattern`](safetensors_core::glob::Pattern); a file is also found by its plain name.
    #[must_use]
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Skips files that [`include`](Self::include) would add if their full name matches a pattern.
    /// The checkpoint is not affected.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.excluded.push(pattern.into());
        self
    }

    /// Sets how to talk to the Hub: with which token, at which address, how patiently.
    #[must_use]
    pub fn client(self, client: ClientOptions) -> Self {
        Self { client, ..self }
    }

    /// Sets the directory of the cache. By default that is the one that Python uses:
    /// [`Cache::from_environment`](crate::cache::Cache::from_environment).
    #[must_use]
    pub fn cache(self, dir: impl Into<PathBuf>) -> Self {
        Self { cache: Some(dir.into()), ..self }
    }

    /// Downloads into a directory instead of the cache: the files themselves, under their names in
    /// the repository, as `hf download --local-dir` does. Its records in `.cache/huggingface` are
    /// shared with `huggingface_hub`.
    ///
    /// A file with the Hub's digest is not downloaded. A file that an earlier download left there is
    /// replaced by a newer one. Any other is [`ErrorKind::LocalChanges`], before anything is
    /// downloaded. No link in the directory leads a file out of it.
    ///
    /// [`ErrorKind::LocalChanges`]: crate::ErrorKind::LocalChanges
    #[must_use]
    pub fn local_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { local_dir: Some(dir.into()), ..self }
    }

    /// Sets whether files of [`local_dir`](Self::local_dir) are replaced that are not as an earlier
    /// download left them.
    #[must_use]
    pub fn overwrite(self, overwrite: bool) -> Self {
        Self { overwrite, ..self }
    }

    /// Sets whether only the cache is used, without any request. By default `HF_HUB_OFFLINE`
    /// decides.
    #[must_use]
    pub fn offline(self, offline: bool) -> Self {
        Self { offline: Some(offline), ..self }
    }

    /// Sets the number of files that are downloaded at once; 0 means one.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets a callback for the progress of the download. It stops the download by returning
    /// [`ControlFlow::Break`]; the next download continues from there.
    #[must_use]
    pub fn progress(
        self,
        callback: impl Fn(DownloadProgress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { progress: Some(Callback(Arc::new(callback))), ..self }
    }
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self::new()
    }
}
