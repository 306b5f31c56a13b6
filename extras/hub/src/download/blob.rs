//! [`Fetch`]: downloads one file into the cache, or into a directory.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors_core::framework::in_order_ahead;
use safetensors_core::io::FileSource;
use safetensors_core::{self as core, ReadAt};

use super::progress::Meter;
use crate::cache::{CachedRepo, Incomplete, Lock, is_blob, link, progress as progress_of, touch};
use crate::client::HubFile;
use crate::error::{Error, ErrorKind, Result, is_wrong};
use crate::etag::Check;

/// While a digest is computed.
const TOUCH: Duration = Duration::from_secs(5);

/// How a large file is divided.
#[derive(Clone, Copy)]
pub(super) struct Ranges {
    /// The most requests at once. A file gets one stream if it is 0 or 1.
    pub(super) connections: usize,
    /// The bytes of each. A shorter rest than two of them comes as one stream.
    pub(super) bytes: u64,
}

/// The download of a file.
#[derive(Clone, Copy)]
pub(super) struct Fetch<'a> {
    pub(super) repo: &'a CachedRepo,
    pub(super) file: &'a HubFile,
    pub(super) ranges: Ranges,
    pub(super) meter: &'a Meter,
}

impl Fetch<'_> {
    pub(super) fn into_directory(self, lock: &Path, overwrite: bool) -> Result<()> {
        let Self { repo, file, meter, .. } = self;
        let path = repo.pointer(file.commit(), file.path());
        let progress = || {
            let _ = meter.report(file.path());
            Some(progress_of(repo, file.blob()))
        };
        // Held until the record is written: the last one is of the last file with this name.
        let lock = Lock::wait(lock, meter.stop(), progress)?;
        if self.has_content()? {
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
            self.complete(&path, of_content.is_some(), &may_replace)?;
        }
        repo.set_record(file.commit(), file.path(), file.blob())?;
        drop(lock);
        meter.report(file.path())
    }

    fn has_content(&self) -> Result<bool> {
        let Self { repo, file, meter, .. } = self;
        repo.has_content(file.path(), file.blob(), file.byte_len(), meter.stop())
    }

    /// The blob gets its name after its size and digest are checked on disk.
    pub(super) fn into_cache(self) -> Result<()> {
        let Self { repo, file, meter, .. } = self;
        let blob = repo.blob(file.blob());
        let is_there = || is_blob(&blob, file.byte_len());
        let pointer = repo.pointer(file.commit(), file.path());
        // It is held until the file has its place: without links, the blob itself is moved there.
        let mut lock = None;
        let was_there = is_there();
        if !was_there {
            let path = repo.lock_path(file.blob());
            let progress = || {
                // The caller may cancel while another process works.
                let _ = meter.report(file.path());
                (!is_there()).then(|| progress_of(repo, file.blob()))
            };
            lock = Lock::wait(&path, meter.stop(), progress)?;
        }
        let mut is_new = false;
        // Another process, or another thread, may have downloaded it since.
        if was_there || is_there() {
            meter.add(file.byte_len(), file.path())?;
        } else if is_blob(&pointer, file.byte_len()) {
            // Without a blob: one that makes no links.
            meter.add(file.byte_len(), file.path())?;
            return meter.report(file.path());
        } else {
            is_new = self.complete(&blob, lock.is_some(), &|| Ok(()))?;
        }
        // `snapshots`, the commit, and the folders of the file.
        let depth = 2 + file.path().matches('/').count();
        link(&blob, &pointer, depth, is_new).map_err(|error| Error::io(error, &pointer))?;
        drop(lock);
        meter.report(file.path())
    }

    /// `is_alone`: no other process downloads it. Returns `true` if no snapshot has the blob yet.
    fn complete(
        &self,
        blob: &Path,
        is_alone: bool,
        may_replace: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        let Self { repo, file, .. } = self;
        let begin = Incomplete::open(repo, file.blob(), file.byte_len(), is_alone)?;
        match self.complete_part(begin, blob, may_replace) {
            // Where locks have no effect, another process may have taken the unfinished file over.
            // It may have put the blob in place since then, or it may be killed before that.
            Err(error) if is_absent(&error) => {
                if self.has_content()? {
                    return Ok(false);
                }
                let own = Incomplete::open(repo, file.blob(), file.byte_len(), false)?;
                self.complete_part(own, blob, may_replace).map(|()| true)
            }
            result => result.map(|()| true),
        }
    }

    fn complete_part(
        &self,
        mut part: Incomplete,
        blob: &Path,
        may_replace: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let Self { file, meter, .. } = self;
        let mut was_resumed = part.len() > 0;
        meter.add(part.len(), file.path())?;
        loop {
            let Err(error) = self.fetch_rest(&mut part) else {
                may_replace()?;
                let len = part.len();
                return part.finish(blob).inspect_err(|_| meter.take_back(len));
            };
            meter.take_back(part.len());
            if !is_wrong(&error) {
                return Err(error);
            }
            // A rest of an earlier attempt may be wrong.
            part.restart()?;
            if !was_resumed {
                part.remove();
                return Err(file.locate(error));
            }
            was_resumed = false;
        }
    }

    /// Fetches the bytes that are missing, and compares all bytes with the digest.
    fn fetch_rest(&self, part: &mut Incomplete) -> Result<()> {
        let Self { file, meter, ranges, .. } = self;
        let rest = part.len()..file.byte_len();
        // Computed from the disk: the digest of the stream would not cover bytes that earlier
        // attempts left, or another process has written.
        let mut check = Check::new(file.blob(), FileSource::open(part.path())?, rest.end);
        // A large file takes minutes, and others wait for this process only while it works.
        let handle = part.handle()?;
        check.follow(rest.start, meter.stop(), beat(&handle))?;
        let mut write = |bytes: &[u8]| {
            part.write(bytes)?;
            check.follow(part.len(), meter.stop(), || ())
        };
        let has_parts = ranges.connections > 1 && rest.end - rest.start >= 2 * ranges.bytes;
        if has_parts && file.has_ranges(meter.stop())? {
            self.fetch_parts(rest, &handle, &mut write)?;
        } else {
            file.stream(rest, meter.stop(), &mut |bytes| {
                write(bytes)?;
                meter.add(bytes.len() as u64, file.path())
            })?;
        }
        check.finish()
    }

    /// Fetches a range by several requests at once, and passes the bytes on in order.
    ///
    /// Bytes that arrive early wait in memory. So the length of the file on the disk is its
    /// progress, and nothing else has to be recorded.
    fn fetch_parts(
        &self,
        range: Range<u64>,
        unfinished: &File,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Self { file, meter, ranges: Ranges { connections, bytes }, .. } = *self;
        let starts =
            (0..(range.end - range.start).div_ceil(bytes)).map(|n| range.start + n * bytes);
        let fetch = |start: &u64, _: &mut ()| {
            let part = *start..range.end.min(start + bytes);
            let mut arrived = Vec::with_capacity((part.end - part.start) as usize);
            // On a slow line nothing is written for minutes.
            let mut beat = beat(unfinished);
            file.stream(part, meter.stop(), &mut |bytes| {
                beat();
                arrived.extend_from_slice(bytes);
                meter.add(bytes.len() as u64, file.path())
            })?;
            Ok(arrived)
        };
        // A part that is slow does not stop the others at once.
        let ahead = connections + connections / 2;
        in_order_ahead(starts, connections, ahead, fetch, |_, arrived: Result<Vec<u8>>| {
            let written = arrived.and_then(|bytes| write(&bytes));
            // The other requests end, too.
            written.inspect_err(|_| meter.fail())
        })
    }
}

/// Returns a function that touches the file every few seconds.
fn beat(file: &File) -> impl FnMut() + '_ {
    let mut touched = Instant::now();
    move || {
        if touched.elapsed() > TOUCH {
            touch(file);
            touched = Instant::now();
        }
    }
}

fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), core::ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound)
}
