//! [`DownloadOptions`]: the files to download, their source, and the cache.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::progress::{Callback, DownloadProgress};
use crate::client::ClientOptions;

/// The bytes of a range of a large file. The pause between two requests is short compared with the
/// time for so many bytes.
const PART: u64 = 8 << 20;

/// The files to [`download`](super::download), their source, and the cache, by default from the
/// environment.
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
    pub(super) part: u64,
    pub(super) progress: Option<Callback>,
}

impl DownloadOptions {
    /// Downloads only the checkpoint in the root of `main`, with the environment's Hub, token and
    /// cache, by up to 8 connections.
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
            part: PART,
            progress: None,
        }
    }

    /// Sets a branch, a tag, a pull request such as `refs/pr/1`, or a commit: `main` by default. A
    /// cached commit needs no request.
    #[must_use]
    pub fn revision(self, revision: impl Into<String>) -> Self {
        Self { revision: Some(revision.into()), ..self }
    }

    /// Sets the checkpoint: a folder such as `unet`, a file of tensors, or an index with its
    /// shards. By default it is the one that
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open) opens in the root.
    #[must_use]
    pub fn checkpoint(self, path: impl Into<String>) -> Self {
        Self { checkpoint: Some(path.into()), ..self }
    }

    /// Downloads only the files that are [asked for](Self::include).
    #[must_use]
    pub fn no_checkpoint(self) -> Self {
        Self { checkpoint: None, ..self }
    }

    /// Adds files with a matching full name, such as `config.json`, `tokenizer*`, or `onnx/` for
    /// everything in a folder. It is a [`Pattern`](safetensors_core::glob::Pattern), or a plain
    /// name.
    #[must_use]
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Skips files of [`include`](Self::include) with a matching full name.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.excluded.push(pattern.into());
        self
    }

    /// Sets the Hub's address, the token and the patience.
    #[must_use]
    pub fn client(self, client: ClientOptions) -> Self {
        Self { client, ..self }
    }

    /// Sets the directory of the cache: by default
    /// [`Cache::from_environment`](crate::cache::Cache::from_environment).
    #[must_use]
    pub fn cache(self, dir: impl Into<PathBuf>) -> Self {
        Self { cache: Some(dir.into()), ..self }
    }

    /// Downloads into a directory instead of the cache, like `hf download --local-dir`. Records in
    /// `.cache/huggingface` are shared with `huggingface_hub`.
    ///
    /// Files with the Hub's digest stay. Files of an earlier download are replaced; others are
    /// [`ErrorKind::LocalChanges`], before anything is downloaded. No link leads a file out of the
    /// directory.
    ///
    /// [`ErrorKind::LocalChanges`]: crate::ErrorKind::LocalChanges
    #[must_use]
    pub fn local_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { local_dir: Some(dir.into()), ..self }
    }

    /// Replaces files of [`local_dir`](Self::local_dir) that no download left there.
    #[must_use]
    pub fn overwrite(self, overwrite: bool) -> Self {
        Self { overwrite, ..self }
    }

    /// Makes no request and uses only the cache. By default `HF_HUB_OFFLINE` decides.
    #[must_use]
    pub fn offline(self, offline: bool) -> Self {
        Self { offline: Some(offline), ..self }
    }

    /// Sets the number of files downloaded at once; 0 means one. If fewer files are large, each of
    /// them comes by several ranges at once, by this many connections together. These ranges take
    /// up to 12 MiB of memory for each connection.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the bytes of a range, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn part(self, bytes: u64) -> Self {
        Self { part: bytes.max(1), ..self }
    }

    /// Sets a callback for the progress. [`ControlFlow::Break`] stops the download, which the next
    /// one continues.
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
