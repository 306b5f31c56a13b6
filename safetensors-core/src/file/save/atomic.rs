//! [`AtomicFile`]: a new file that appears complete, or not at all.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::SaveOptions;
use super::cached::{MAX_LINKS, check_cached};
use super::permissions::{is_read_only, take_after};
use super::temporary::TempFile;
use crate::file::hash::{Change, check_records};
use crate::file::io::copy::copy_range;
use crate::file::io::failpoint;
pub(crate) use crate::file::io::hidden::directory;
use crate::file::io::identity::unless_missing;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::names::refuse_impossible;
use crate::file::io::positional::write_all_at;
use crate::format::error::{Error, ErrorKind, Result};

/// A new file of any content that appears at its path complete, or not at all. Until
/// [`commit`](AtomicFile::commit), the path keeps its old file, if any.
///
/// On Linux the file has no name until then, if the file system supports that, otherwise a hidden
/// one next to its destination: `.NAME.ID.tmp`. A drop removes it. If the process is killed, the
/// next save to the path does, or in a directory of more than 1000 entries a later one.
///
/// Every write is a system call: wrap the file in an [`io::BufWriter`] for small ones. A write
/// beyond `ulimit -f` is an [`io::ErrorKind::FileTooLarge`] if the process ignores or handles
/// `SIGXFSZ`, which otherwise ends it.
///
/// ```
/// use std::io::Write;
///
/// use safetensors_core::SaveOptions;
/// use safetensors_core::save::AtomicFile;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("names.txt");
/// std::fs::write(&path, "the old file")?;
///
/// let mut file = AtomicFile::create(&path, &SaveOptions::new())?;
/// writeln!(file, "embed.weight")?;
/// assert_eq!(std::fs::read_to_string(&path)?, "the old file");
/// file.commit()?;
/// assert_eq!(std::fs::read_to_string(&path)?, "embed.weight\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    temp: TempFile,
    /// As the caller gave it, for messages.
    path: PathBuf,
    /// After following links.
    pub(super) destination: PathBuf,
    durable: bool,
    overwrite: bool,
    is_in_place: bool,
    /// Held during a commit.
    lock: Option<DirectoryLock>,
}

impl AtomicFile {
    /// Creates the file without a name. Only the options for [durability](SaveOptions::durable),
    /// [read-only files](SaveOptions::replace_read_only), [caches of the
    /// Hub](SaveOptions::replace_cached) and [existing files](SaveOptions::overwrite) apply.
    ///
    /// It gets the mode and, where allowed, the owner and group of the file that it replaces, or a
    /// mode by the umask. Follows links, also dangling ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`], such as for a FIFO; [`ErrorKind::ReadOnlyFile`];
    /// [`ErrorKind::InHubCache`]; [`ErrorKind::FileExists`]; [`ErrorKind::Io`].
    pub fn create(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        let path = path.as_ref();
        let (destination, original) =
            destination_to_replace(path, options).map_err(|error| error.in_path(path))?;
        let file = Self::create_in_place_of(destination, original.as_ref())
            .map_err(|error| Error::io(error, path))?;
        let SaveOptions { durable, overwrite, .. } = *options;
        Ok(Self { path: path.into(), durable, overwrite, ..file })
    }

    #[must_use]
    pub(crate) fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Replaces any entry at the path, even a link. The permissions apply before anything is
    /// written.
    pub(crate) fn create_in_place_of(
        destination: PathBuf,
        permissions_of: Option<&Metadata>,
    ) -> io::Result<Self> {
        // Private until it has the mode of the old file: with the default mode, others could read a
        // private checkpoint while it is written.
        let temp = TempFile::create(&destination, permissions_of.is_some())?;
        Self::from_temp(temp, destination, permissions_of)
    }

    /// Copies the open file's bytes and permissions, and shares its blocks where possible.
    pub(crate) fn copy_in_place_of(
        destination: PathBuf,
        original: &File,
        metadata: &Metadata,
    ) -> io::Result<Self> {
        if let Ok(temp) = TempFile::cloned(original, &destination) {
            return Self::from_temp(temp, destination, Some(metadata));
        }
        let new = Self::create_in_place_of(destination, Some(metadata))?;
        failpoint::hit("set the length").and_then(|()| new.file().set_len(metadata.len()))?;
        copy_range(original, 0, new.file(), 0, metadata.len())?;
        Ok(new)
    }

    fn from_temp(
        temp: TempFile,
        destination: PathBuf,
        permissions_of: Option<&Metadata>,
    ) -> io::Result<Self> {
        if let Some(original) = permissions_of {
            take_after(temp.file(), original)?;
        }
        Ok(Self {
            temp,
            path: destination.clone(),
            destination,
            durable: true,
            overwrite: true,
            is_in_place: false,
            lock: None,
        })
    }

    /// Returns the open file, for example to write at positions.
    pub fn file(&self) -> &File {
        self.temp.file()
    }

    /// Writes bytes at a position, from any thread. Afterwards the position of [`Write`] depends on
    /// the system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = write_all_at(self.file(), bytes, offset);
        written.map_err(|error| Error::from(ErrorKind::Io(error)).in_path(&self.path))
    }

    /// Gives the file its name, and replaces the old file. Waits for a sharded save or an edit that
    /// is putting files in place in the directory. Nothing must be written after a success.
    ///
    /// # Errors
    ///
    /// After an error, this can be called again. [`ErrorKind::FileExists`] for a file that must
    /// stay; [`ErrorKind::Io`]: the path keeps the old file; [`ErrorKind::NotDurable`]: the new
    /// file is in place, but may not survive a power cut.
    pub fn commit(&mut self) -> Result<()> {
        let committed = self.begin_commit().and_then(|()| self.commit_held());
        committed.map_err(|error| error.in_path(&self.path))
    }

    /// Synchronises the file, and keeps other writers from the directory until
    /// [`commit_held`](Self::commit_held) or the drop.
    pub(crate) fn begin_commit(&mut self) -> Result<()> {
        if self.lock.is_some() || self.is_in_place {
            return Ok(());
        }
        // A rename alone survives a killed process, but after a power cut the name could lead to a
        // file without its data. The disk may take long, so this comes before the lock, for which
        // others may wait.
        self.sync()?;
        let lock = DirectoryLock::wait_for(directory(&self.destination))?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Lets others write. The file can be committed later.
    pub(crate) fn end_commit(&mut self) {
        self.lock = None;
    }

    /// Commits after [`begin_commit`](Self::begin_commit). The caller adds the path to errors.
    pub(crate) fn commit_held(&mut self) -> Result<()> {
        // Whether this fails or not, other writers wait no longer.
        let lock = self.lock.take();
        if !self.is_in_place {
            self.put_in_place()?;
        }
        drop(lock);
        if self.durable {
            sync_directory(directory(&self.destination)).map_err(ErrorKind::NotDurable)?;
        }
        Ok(())
    }

    fn put_in_place(&mut self) -> Result<()> {
        if self.overwrite {
            self.temp.persist(&self.destination)?;
        } else {
            self.temp.persist_new(&self.destination).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => ErrorKind::FileExists,
                _ => ErrorKind::Io(error),
            })?;
        }
        self.is_in_place = true;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.durable { sync(self.file()) } else { Ok(()) }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temp.file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temp.file_mut().flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temp.file_mut().seek(to)
    }
}

pub(crate) fn sync(file: &File) -> io::Result<()> {
    failpoint::hit("sync the file")?;
    flush(file)
}

pub(crate) fn sync_path(path: &Path) -> io::Result<()> {
    // Some systems can synchronise only a file that is open for writing. On Unix a file may be
    // read-only.
    sync(&File::options().read(cfg!(unix)).write(!cfg!(unix)).open(path)?)
}

// On macOS this also empties the drive's cache (`F_FULLFSYNC`), as `sync_all` does, or on network
// file systems without that, writes as far as `fsync`.
#[cfg(target_vendor = "apple")]
fn flush(file: &File) -> io::Result<()> {
    use rustix::io::Errno;

    file.sync_all().or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTSUP | Errno::NOTTY | Errno::INVAL) => Ok(rustix::fs::fsync(file)?),
        _ => Err(error),
    })
}

#[cfg(not(target_vendor = "apple"))]
fn flush(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Does nothing where the system cannot.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    failpoint::hit("sync the directory")?;
    // Only Unix can open and synchronise a directory. On other systems a rename is as durable as it
    // can be.
    if !cfg!(unix) {
        return Ok(());
    }
    // A directory without read permission cannot be synchronised either, and some network file
    // systems refuse it for every directory. The files are not affected, so these errors are
    // ignored.
    match File::open(directory).and_then(|directory| flush(&directory)) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Fails if it is known beforehand that a save would.
pub(crate) fn check(path: &Path, options: &SaveOptions) -> Result<()> {
    let checked = destination_to_replace(path, options)
        .and_then(|(destination, _)| refuse_other_than_directory(directory(&destination)));
    checked.map_err(|error| error.in_path(path))
}

/// Returns the path to save to, and the metadata of a file there. Fails for a file that must stay.
fn destination_to_replace(
    path: &Path,
    options: &SaveOptions,
) -> Result<(PathBuf, Option<Metadata>)> {
    let destination = destination(path)?;
    let original = replaceable(&destination, options)?;
    check_cached(path, options)?;
    if original.is_some() {
        check_records(path, &destination, Change::File)?;
    }
    Ok((destination, original))
}

/// Returns the metadata of the regular file to replace. Fails for one that must stay. Follows no
/// links.
pub(crate) fn replaceable(path: &Path, options: &SaveOptions) -> Result<Option<Metadata>> {
    match unless_missing(fs::symlink_metadata(path))? {
        Some(_) if !options.overwrite => Err(ErrorKind::FileExists.into()),
        Some(found) if found.is_file() => {
            if is_read_only(&found) && !options.replace_read_only {
                return Err(ErrorKind::ReadOnlyFile.into());
            }
            Ok(Some(found))
        }
        _ => Ok(None),
    }
}

pub(crate) fn refuse_other_than_directory(path: &Path) -> Result<()> {
    match fs::metadata(path)? {
        metadata if metadata.is_dir() => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::NotADirectory).into()),
    }
}

/// Fails for anything but a regular file or a link, without opening it.
pub(crate) fn refuse_special(found: io::Result<Metadata>) -> Result<()> {
    let found = match unless_missing(found)? {
        Some(found) if found.is_dir() => "a directory",
        Some(found) if !found.is_file() && !found.is_symlink() => "a special file",
        _ => return Ok(()),
    };
    Err(ErrorKind::NotAFile { found }.into())
}

/// Follows links. Fails for anything but a regular file, and after a separator.
pub(crate) fn destination(path: &Path) -> Result<PathBuf> {
    refuse_impossible(path)?;
    // This comes before links are followed, because some links of the system, such as those to
    // pipes, lead to no path.
    refuse_special(fs::metadata(path))?;
    if path
        .as_os_str()
        .as_encoded_bytes()
        .last()
        .is_some_and(|&last| std::path::is_separator(last.into()))
    {
        return Err(ErrorKind::Io(io::ErrorKind::IsADirectory.into()).into());
    }
    let destination = follow_links(path)?;
    refuse_special(fs::metadata(&destination))?;
    Ok(destination)
}

/// Returns the end of the chain, which need not exist.
fn follow_links(path: &Path) -> Result<PathBuf> {
    let mut followed = path.to_owned();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&followed) {
            Ok(target) => followed = directory(&followed).join(target),
            // This is not a link, or does not exist yet.
            Err(_) => return Ok(followed),
        }
    }
    Err(Error::io(io::Error::other("too many levels of symbolic links"), path))
}
