//! [`fetch`]: downloads one file into the cache.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors_core::{self as core, ReadAt};

use super::progress::Meter;
use crate::cache::{CachedRepo, Incomplete, Lock, is_blob, link, progress as progress_of};
use crate::client::HubFile;
use crate::error::{Error, ErrorKind, Result, is_wrong};

/// While a digest is computed.
const TOUCH: Duration = Duration::from_secs(5);

pub(super) fn fetch_local(
    repo: &CachedRepo,
    file: &HubFile,
    lock: &Path,
    overwrite: bool,
    meter: &Meter,
) -> Result<()> {
    let path = repo.pointer(file.commit(), file.path());
    let progress = || {
        let _ = meter.report(file.path());
        Some(progress_of(repo, file.blob()))
    };
    // Held until the record is written: the last one is of the last file with this name.
    let lock = Lock::wait(lock, meter.stop(), progress)?;
    if has_content(repo, file, meter)? {
        meter.add(file.byte_len(), file.path())?;
    } else {
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(|error| Error::io(error, &path))?;
        // A file with another name may have the same content.
        let of_content = Lock::wait(&repo.lock_path(file.blob()), meter.stop(), progress)?;
        // The user may have written the file since the download began.
        let may_replace = || match !overwrite && repo.is_changed(file.path(), meter.stop())? {
            true => Err(ErrorKind::LocalChanges { files: vec![file.path().to_owned()] }.into()),
            false => Ok(()),
        };
        complete(repo, file, &path, of_content.is_some(), &may_replace, meter)?;
    }
    repo.set_record(file.commit(), file.path(), file.blob())?;
    drop(lock);
    meter.report(file.path())
}

fn has_content(repo: &CachedRepo, file: &HubFile, meter: &Meter) -> Result<bool> {
    repo.has_content(file.path(), file.blob(), file.byte_len(), meter.stop())
}

/// The blob gets its name after its size and digest are checked on disk.
pub(super) fn fetch(repo: &CachedRepo, file: &HubFile, meter: &Meter) -> Result<()> {
    let blob = repo.blob(file.blob());
    let is_there = || is_blob(&blob, file.byte_len());
    let pointer = repo.pointer(file.commit(), file.path());
    let mut is_new = false;
    // It is held until the file has its place: without links, the blob itself is moved there.
    let mut lock = None;
    if is_there() {
        meter.add(file.byte_len(), file.path())?;
    } else {
        let path = repo.lock_path(file.blob());
        let progress = || {
            // The caller may cancel while another process works.
            let _ = meter.report(file.path());
            (!is_there()).then(|| progress_of(repo, file.blob()))
        };
        lock = Lock::wait(&path, meter.stop(), progress)?;
        // Another process, or another thread, may have downloaded it since.
        if is_there() {
            meter.add(file.byte_len(), file.path())?;
        } else if is_blob(&pointer, file.byte_len()) {
            // Without a blob: one that makes no links.
            meter.add(file.byte_len(), file.path())?;
            return meter.report(file.path());
        } else {
            is_new = complete(repo, file, &blob, lock.is_some(), &|| Ok(()), meter)?;
        }
    }
    place(file, &blob, &pointer, is_new)?;
    drop(lock);
    meter.report(file.path())
}

/// `is_alone`: no other process downloads it. Returns `true` if no snapshot has the blob yet.
fn complete(
    repo: &CachedRepo,
    file: &HubFile,
    blob: &Path,
    is_alone: bool,
    may_replace: &dyn Fn() -> Result<()>,
    meter: &Meter,
) -> Result<bool> {
    let begin = Incomplete::open(repo, file.blob(), file.byte_len(), is_alone)?;
    match complete_part(begin, file, blob, may_replace, meter) {
        // Where locks have no effect, another process may have taken the unfinished file over. It
        // may have put the blob in place since then, or it may be killed before that.
        Err(error) if is_absent(&error) => {
            if has_content(repo, file, meter)? {
                return Ok(false);
            }
            meter.take_back(file.byte_len());
            let own = Incomplete::open(repo, file.blob(), file.byte_len(), false)?;
            complete_part(own, file, blob, may_replace, meter).map(|()| true)
        }
        result => result.map(|()| true),
    }
}

fn complete_part(
    mut part: Incomplete,
    file: &HubFile,
    blob: &Path,
    may_replace: &dyn Fn() -> Result<()>,
    meter: &Meter,
) -> Result<()> {
    let etag = file.blob();
    let mut was_resumed = part.len() > 0;
    meter.add(part.len(), file.path())?;
    loop {
        let rest = part.len()..file.byte_len();
        file.stream(rest, meter.stop(), &mut |bytes| {
            part.write(bytes)?;
            meter.add(bytes.len() as u64, file.path())
        })?;
        // A large file takes minutes, and others wait for this process only while it works.
        let mut touched = Instant::now();
        let mut touch = || {
            if touched.elapsed() > TOUCH {
                part.touch();
                touched = Instant::now();
            }
        };
        let size = Some(file.byte_len());
        // Computed from the disk: the digest of the stream would not cover bytes that earlier
        // attempts left, or another process has written.
        match etag.check_while(part.path(), size, meter.stop(), &mut touch) {
            Ok(()) => {
                may_replace()?;
                return part.finish(blob);
            }
            // A rest of an earlier attempt may be wrong.
            Err(error) if is_wrong(&error) => {
                meter.take_back(part.len());
                part.restart()?;
                if !was_resumed {
                    part.remove();
                    return Err(file.locate(error));
                }
                was_resumed = false;
            }
            Err(error) => return Err(error),
        }
    }
}

fn place(file: &HubFile, blob: &Path, pointer: &Path, is_new: bool) -> Result<()> {
    // `snapshots`, the commit, and the folders of the file.
    let depth = 2 + file.path().matches('/').count();
    link(blob, pointer, depth, is_new).map_err(|error| Error::io(error, pointer))
}

fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), core::ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound)
}
