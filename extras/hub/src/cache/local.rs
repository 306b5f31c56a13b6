//! Files in a directory of the user, with records of downloads.
//!
//! ```text
//! <directory>/<path>                                               the file itself
//!            /.cache/huggingface/download/<path>.metadata          its commit, ETag, and the time
//!                                        /<path>.lock              held while it is downloaded
//!            /.cache/huggingface/models--OWNER--NAME/blobs, refs   as in a cache
//! ```
//!
//! Records and locks are compatible with Python's `huggingface_hub`.
//!
//! Links to a cache would let users change the cache, and copies of it would take the space twice.
//! So an unfinished file is in the directory, too, and is renamed when complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use safetensors_core::io::next_to;

use super::{Cache, CachedRepo, joined};
use crate::error::{ErrorKind, Result, is_wrong};
use crate::etag::Etag;
use crate::repo::{RepoId, Revision};

const OWN: &str = ".cache/huggingface";

/// The directory with a record for each file.
pub(super) const RECORDS: &str = ".cache/huggingface/download";

const LONGEST: u64 = 1000;

/// Commit, ETag, and the time in seconds since 1970: a line each.
struct Record {
    commit: String,
    etag: String,
    time: f64,
}

impl CachedRepo {
    /// The directory need not exist. Files of the cache are copied there.
    pub(crate) fn in_directory(dir: &Path, id: &RepoId, cache: Option<&Cache>) -> Self {
        let shared = cache.map(|cache| cache.repo(id).blobs());
        Self { local: Some(dir.into()), shared, ..Cache::at(joined(dir, OWN)).repo(id) }
    }

    pub(crate) fn shared_blob(&self, etag: &Etag, size: u64) -> Option<PathBuf> {
        let blob = self.shared.as_ref()?.join(etag.as_str());
        Some(blob).filter(|blob| is_blob(blob, size))
    }

    /// As far as known without its ETag.
    pub(crate) fn has(&self, commit: &Revision, name: &str) -> bool {
        let path = self.pointer(commit, name);
        match &self.local {
            None => path.is_file(),
            Some(dir) => record(dir, name)
                .is_some_and(|it| it.commit == commit.as_str() && it.is_younger_than(&path)),
        }
    }

    pub(crate) fn has_content(
        &self,
        name: &str,
        etag: &Etag,
        size: u64,
        stop: &AtomicBool,
    ) -> Result<bool> {
        let Some(dir) = &self.local else { return Ok(is_blob(&self.blob(etag), size)) };
        let path = joined(dir, name);
        match record(dir, name) {
            Some(it) if it.etag == etag.as_str() && it.is_younger_than(&path) => Ok(true),
            _ => holds(&path, etag, Some(size), stop),
        }
    }

    pub(crate) fn check_place(&self, name: &str) -> Result<()> {
        let Some(dir) = &self.local else { return Ok(()) };
        // Git runs commands that are set below `.git`, and a record would pass for ours.
        let lower = name.to_ascii_lowercase();
        if lower.split('/').any(|part| part == ".git") || lower.starts_with(OWN) {
            return Err(ErrorKind::UnsafeName { found: name.into() }.into());
        }
        // Only the directories matter, so any name will do in them.
        let recorded = joined(dir, &own(name, ""));
        let unfinished = self.blobs().join(name);
        let written = [joined(dir, name), recorded, unfinished, self.locks.join(name)];
        written.iter().try_for_each(|path| self.check_links(path))
    }

    pub(super) fn check_links(&self, path: &Path) -> Result<()> {
        let Some(dir) = &self.local else { return Ok(()) };
        let Ok(inside) = path.strip_prefix(dir) else { return Ok(()) };
        inside.ancestors().skip(1).try_for_each(|parent| next_to::find(dir, parent).map(drop))
    }

    /// There may be no other copy.
    pub(crate) fn is_changed(&self, name: &str, stop: &AtomicBool) -> Result<bool> {
        let Some(dir) = &self.local else { return Ok(false) };
        let path = joined(dir, name);
        if fs::symlink_metadata(&path).is_err() {
            return Ok(false);
        }
        // The time in the record would not show a file that was moved there.
        let left = record(dir, name).and_then(|record| Etag::of_blob(&record.etag));
        left.map_or(Ok(true), |etag| Ok(!holds(&path, &etag, None, stop)?))
    }

    pub(crate) fn local_lock(&self, name: &str) -> Option<PathBuf> {
        self.local.as_ref().map(|dir| joined(dir, &own(name, ".lock")))
    }

    pub(crate) fn set_record(&self, commit: &Revision, name: &str, etag: &Etag) -> Result<()> {
        let Some(dir) = &self.local else { return Ok(()) };
        let ignore = joined(dir, OWN).join(".gitignore");
        if !ignore.exists() {
            self.write(&ignore, "*\n")?;
        }
        let time = seconds(SystemTime::now()).unwrap_or_default();
        let record = joined(dir, &own(name, ".metadata"));
        self.write(&record, &format!("{commit}\n{etag}\n{time}\n"))
    }
}

fn own(name: &str, end: &str) -> String {
    format!("{RECORDS}/{name}{end}")
}

fn record(dir: &Path, name: &str) -> Option<Record> {
    let text = next_to::read(dir, own(name, ".metadata"), LONGEST).ok()??;
    let mut lines = str::from_utf8(&text).ok()?.lines();
    Some(Record {
        commit: lines.next()?.into(),
        etag: lines.next()?.into(),
        time: lines.next()?.parse().ok()?,
    })
}

impl Record {
    fn is_younger_than(&self, path: &Path) -> bool {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        let written = found.and_then(|found| found.modified().ok()).and_then(seconds);
        written.is_some_and(|written| written <= self.time)
    }
}

fn seconds(time: SystemTime) -> Option<f64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|it| it.as_secs_f64())
}

fn holds(path: &Path, etag: &Etag, size: Option<u64>, stop: &AtomicBool) -> Result<bool> {
    if !etag.is_digest() || !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    match etag.check(path, size, stop) {
        Err(error) if is_wrong(&error) => Ok(false),
        checked => checked.map(|()| true),
    }
}

pub(crate) fn is_blob(blob: &Path, size: u64) -> bool {
    blob.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}
