//! Files in a directory of the user, with records of what was downloaded.
//!
//! ```text
//! <directory>/<path>                                               the file itself
//!            /.cache/huggingface/download/<path>.metadata          its commit, ETag, and the time
//!                                        /<path>.lock              held while it is downloaded
//!            /.cache/huggingface/models--OWNER--NAME/blobs, refs   as in a cache
//! ```
//!
//! Records and locks are the ones of Python's `huggingface_hub`.
//!
//! The files are not linked to a cache: whoever changes one would change the cache. They are not
//! downloaded into a cache and copied, either: that takes the space twice, often on a small disk.
//! So an unfinished file is in the directory, too, and is renamed when it is complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use safetensors_core::ReadAt;
use safetensors_core::io::beside;

use super::{Cache, CachedRepo, joined};
use crate::client::HubFile;
use crate::download::{is_blob, is_wrong};
use crate::error::{ErrorKind, Result};
use crate::etag::Etag;
use crate::repo::{RepoId, Revision};

/// The directory of records in that of the files.
const OWN: &str = ".cache/huggingface";

/// The most bytes of a record.
const LONGEST: u64 = 1000;

/// The commit of a file, its ETag, and when it had both: seconds since 1970. A line each.
struct Record {
    commit: String,
    etag: String,
    time: f64,
}

impl CachedRepo {
    /// Uses a directory of the user, which need not exist. Files of the cache are copied there.
    pub(crate) fn in_directory(dir: &Path, id: &RepoId, cache: Option<&Cache>) -> Self {
        let shared = cache.map(|cache| cache.repo(id).blobs());
        Self { local: Some(dir.into()), shared, ..Cache::at(joined(dir, OWN)).repo(id) }
    }

    /// Returns the file of a cache that has the content of an ETag.
    pub(crate) fn shared_blob(&self, etag: &Etag, size: u64) -> Option<PathBuf> {
        let blob = self.shared.as_ref()?.join(etag.as_str());
        Some(blob).filter(|blob| is_blob(blob, size))
    }

    /// Returns whether a file of a commit is there, as far as that is known without its ETag.
    pub(crate) fn has(&self, commit: &Revision, name: &str) -> bool {
        let path = self.pointer(commit, name);
        match &self.local {
            None => path.is_file(),
            Some(dir) => record(dir, name)
                .is_some_and(|it| it.commit == commit.as_str() && it.is_younger_than(&path)),
        }
    }

    /// Returns whether the content of a file is there.
    pub(crate) fn has_content(&self, file: &HubFile, stop: &AtomicBool) -> Result<bool> {
        let size = file.byte_len();
        match &self.local {
            None => Ok(is_blob(&self.blob(file.blob()), size)),
            Some(dir) => holds(dir, file.path(), file.blob(), Some(size), stop),
        }
    }

    /// Returns whether a download would replace a file that is not as an earlier one left it: there
    /// may be no other copy of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsafeName`], and an error of the core if a link leads out of the directory.
    pub(crate) fn is_changed(&self, name: &str, stop: &AtomicBool) -> Result<bool> {
        let Some(dir) = &self.local else { return Ok(false) };
        // Git runs commands that are set below `.git`, and a record would pass for ours.
        let lower = name.to_ascii_lowercase();
        if lower.split('/').any(|part| part == ".git") || lower.starts_with(OWN) {
            return Err(ErrorKind::UnsafeName { found: name.into() }.into());
        }
        let recorded = own(name, "");
        let unfinished = format!("{OWN}/{}/blobs/", self.id.folder());
        let written = [name, &recorded, &unfinished].map(Path::new);
        for parent in written.iter().flat_map(|path| path.ancestors().skip(1)) {
            beside::find(dir, parent)?;
        }
        if fs::symlink_metadata(joined(dir, name)).is_err() {
            return Ok(false);
        }
        match record(dir, name).and_then(|it| Etag::of_blob(&it.etag)) {
            Some(etag) => Ok(!holds(dir, name, &etag, None, stop)?),
            None => Ok(true),
        }
    }

    /// Returns the lock of a file in a directory of the user.
    pub(crate) fn local_lock(&self, name: &str) -> Option<PathBuf> {
        self.local.as_ref().map(|dir| joined(dir, &own(name, ".lock")))
    }

    /// Returns whether the last download left other content in the place of a file.
    pub(crate) fn has_other_record(&self, file: &HubFile) -> bool {
        let found = self.local.as_ref().and_then(|dir| record(dir, file.path()));
        found.is_some_and(|it| it.etag != file.blob().as_str())
    }

    /// Records a file that is in its place now.
    pub(crate) fn set_record(&self, file: &HubFile) -> Result<()> {
        let Some(dir) = &self.local else { return Ok(()) };
        let ignore = joined(dir, OWN).join(".gitignore");
        if !ignore.exists() {
            self.write(&ignore, "*\n")?;
        }
        let time = seconds(SystemTime::now()).unwrap_or_default();
        let text = format!("{}\n{}\n{time}\n", file.commit(), file.blob());
        self.write(&joined(dir, &own(file.path(), ".metadata")), &text)
    }
}

/// Returns the name of a record of a file, or of its lock.
fn own(name: &str, end: &str) -> String {
    format!("{OWN}/download/{name}{end}")
}

fn record(dir: &Path, name: &str) -> Option<Record> {
    let text = beside::read(dir, own(name, ".metadata"), LONGEST).ok()??;
    let mut lines = str::from_utf8(&text).ok()?.lines();
    Some(Record {
        commit: lines.next()?.into(),
        etag: lines.next()?.into(),
        time: lines.next()?.parse().ok()?,
    })
}

impl Record {
    /// Returns whether nobody has written to a file since.
    fn is_younger_than(&self, path: &Path) -> bool {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        let written = found.and_then(|found| found.modified().ok()).and_then(seconds);
        written.is_some_and(|written| written <= self.time)
    }
}

fn seconds(time: SystemTime) -> Option<f64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|it| it.as_secs_f64())
}

/// Returns whether a regular file has the content of an ETag. An ETag that is no digest cannot be
/// compared, so the record of the file must have it.
fn holds(
    dir: &Path,
    name: &str,
    etag: &Etag,
    size: Option<u64>,
    stop: &AtomicBool,
) -> Result<bool> {
    let path = joined(dir, name);
    if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    if !etag.is_digest() {
        let is_it = |it: Record| it.etag == etag.as_str() && it.is_younger_than(&path);
        return Ok(record(dir, name).is_some_and(is_it));
    }
    match etag.check(&path, size, stop) {
        Err(error) if is_wrong(&error) => Ok(false),
        checked => checked.map(|()| true),
    }
}
