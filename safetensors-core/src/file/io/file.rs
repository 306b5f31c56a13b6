//! [`FileSource`]: a regular file, read at positions.

use std::fs::{File, Metadata, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{io, thread};

use super::identity::Identity;
use super::names::refuse_impossible;
use super::page_cache::Unkept;
use super::positional;
use super::read_at::{ReadAt, Requests, read_to_vec};
use super::stamp::Stamp;
use super::waiting::waits;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{LENGTH_BYTES, is_marked};
use crate::format::slice::read_range::ReadRange;

/// A regular file, opened once and read at positions.
///
/// ```
/// use safetensors_core::io::FileSource;
/// use safetensors_core::{Checkpoint, ReadAt, SafeTensors, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(
///     &path,
///     [("bias", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)],
///     &SaveOptions::new(),
/// )?;
///
/// // Read a part of the file, only its header, or all of it.
/// let file = FileSource::open(&path)?;
/// let mut length = [0; 8];
/// file.read_exact_at(&mut length, 0)?;
/// assert_eq!(8 + u64::from_le_bytes(length) + 8, file.byte_len());
/// let archive = SafeTensors::from_source(file)?;
/// let in_memory = SafeTensors::parse(archive.source().read_to_vec()?)?;
/// assert_eq!(in_memory.view("bias")?.as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    stamp: Stamp,
    /// Whether the next change after opening may have the time of the last one.
    is_recent: bool,
    /// Whether reads wait for a network or another process.
    waits: bool,
}

/// The coarsest resolution of times in a file system.
const TIME_STEP: Duration = Duration::from_secs(2);

const MAX_WAIT: Duration = Duration::from_millis(1000);

impl FileSource {
    /// Opens a regular file for reading. Follows links. Waits at most a second for an
    /// [edit](crate::edit) of the header in place, and not for a FIFO or a device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] for anything but a regular file; [`ErrorKind::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = Self::open_now(path)?;
        if !file.is_marked() {
            return Ok(file);
        }
        file.wait_for_edit();
        Self::from_open(file.file, path).map_err(|error| Error::io(error, path))
    }

    pub(crate) fn open_now(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenOptions::new().read(true))
    }

    pub(crate) fn open_to_edit(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenOptions::new().read(true).write(true))
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> Result<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Opening a FIFO would wait for a writer otherwise. On a regular file the flag does
            // nothing.
            options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
        }
        refuse_impossible(path).map_err(|error| Error::io(error, path))?;
        match options.open(path) {
            // Windows does not open directories, and says that access is denied.
            Err(_) if cfg!(windows) && path.is_dir() => Err(not_a_file("a directory", path)),
            Err(error) => Err(Error::io(error, path)),
            Ok(file) => Self::from_file(file, path),
        }
    }

    /// Wraps an open file, such as standard input from a file. `path` is for errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] for anything but a regular file; [`ErrorKind::Io`].
    pub fn from_file(file: File, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = file.metadata().map_err(|error| Error::io(error, path))?;
        if metadata.is_file() {
            return Ok(Self::with_metadata(file, path, &metadata));
        }
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        Err(not_a_file(found, path))
    }

    pub(crate) fn from_open(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self::with_metadata(file, path, &metadata))
    }

    fn with_metadata(file: File, path: &Path, metadata: &Metadata) -> Self {
        let stamp = Stamp::new(metadata);
        let is_recent = is_recent(metadata);
        let waits = waits(&file);
        Self { file, path: path.into(), stamp, is_recent, waits }
    }

    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        (self.stamp, self.is_recent) = (Stamp::new(&metadata), is_recent(&metadata));
        Ok(())
    }

    /// Returns `true` also for a header that was left half written.
    pub(crate) fn is_marked(&self) -> bool {
        let mut length = [0; LENGTH_BYTES];
        self.read_exact_at(&mut length, 0).is_ok() && is_marked(length)
    }

    // Without a holder of the lock, the header was left half written.
    fn wait_for_edit(&self) {
        let begun = Instant::now();
        while self.is_marked() && begun.elapsed() < MAX_WAIT {
            #[cfg(unix)]
            if self.file.try_lock_shared().is_ok() {
                // No edit is under way. If one has just ended, it has removed the mark.
                let _ = self.file.unlock();
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the entire file into memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if the file has become shorter; [`ErrorKind::TooLargeForMemory`].
    pub fn read_to_vec(&self) -> Result<Vec<u8>> {
        read_to_vec(self).map_err(|error| error.in_path(&self.path))
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileSource {
    fn byte_len(&self) -> u64 {
        self.stamp.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if Unkept::is_begun() {
            return self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }]);
        }
        positional::read_exact_at(&self.file, buf, offset)
    }

    // By one system call, where there is one.
    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        positional::read_ranges_at(&self.file, ranges)
    }

    /// On a network file system and in FUSE, where reads wait, a load has 16 under way. Other files
    /// are read by as many threads as there are cores.
    fn requests(&self) -> Option<Requests> {
        self.waits.then(Requests::of_waiting_file)
    }

    // On Unix this includes the time of the last change of any kind, which no program can set. It
    // may differ after a change of mode, owner, links or name, and for a file of several names.
    fn check_unchanged(&self) -> io::Result<()> {
        let check = || self.stamp.check(&self.file.metadata()?, &self.path);
        // When a link is made, the kernel sets the time a moment before the number of links, and
        // may be interrupted in between. So a file that seems to have changed is checked again, for
        // 63 ms.
        for exponent in 0..6 {
            if check().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1 << exponent));
        }
        check()
    }

    fn may_change_unseen(&self) -> bool {
        self.is_recent
    }

    // A file that was removed has not been replaced.
    fn is_replaced(&self) -> io::Result<bool> {
        match Identity::behind(&self.path)? {
            Some(there) => Ok(there != Identity::read(&self.file)?),
            None => Ok(false),
        }
    }
}

fn not_a_file(found: &'static str, path: &Path) -> Error {
    Error::from(ErrorKind::NotAFile { found }).in_path(path)
}

/// Returns whether the next change may get the same time.
fn is_recent(metadata: &Metadata) -> bool {
    let changed = time_of_change(metadata);
    // A time in the future comes from another clock, such as a file server's.
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_none_or(|age| age <= TIME_STEP)
}

#[cfg(unix)]
fn time_of_change(metadata: &Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;

    let seconds = Duration::from_secs(metadata.ctime().try_into().ok()?);
    let nanoseconds = Duration::from_nanos(metadata.ctime_nsec().try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds)?.checked_add(nanoseconds)
}

// Not reported, and the time of writing may lag behind.
#[cfg(not(unix))]
fn time_of_change(_: &Metadata) -> Option<SystemTime> {
    None
}
