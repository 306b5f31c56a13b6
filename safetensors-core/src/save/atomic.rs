//! [`AtomicFile`]: a file that takes its place complete, or not at all.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::SaveOptions;
use super::permissions::{is_read_only, take_after};
use super::temporary::TempFile;
use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;
pub(crate) use crate::io::hidden::directory;
use crate::io::hidden::{header_backup, is_header_backup};

/// A file of any content that takes its place complete, or not at all: until
/// [`commit`](AtomicFile::commit), and after any failure, its path has what it had before.
///
/// On Linux it has no name until the commit, where the file system can do that. Elsewhere it is
/// written under a hidden name beside its destination: `.NAME.ID.tmp`, with six letters or digits
/// for `ID`. Dropped before the commit, it leaves nothing behind. A process that is killed may leave
/// the hidden file; on Unix the next save to the same path removes it.
///
/// Every write goes to the system at once: put an [`io::BufWriter`] around it for small ones.
///
/// The limit of a process for the size of its files (`ulimit -f`) is an error of kind
/// [`io::ErrorKind::FileTooLarge`], if the process ignores or handles the signal `SIGXFSZ`. The
/// system ends other processes.
///
/// ```
/// use std::io::Write;
///
/// use safetensors_core::save::AtomicFile;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("names.txt");
/// std::fs::write(&path, "the old file")?;
///
/// let mut file = AtomicFile::create(&path)?;
/// writeln!(file, "embed.weight")?;
/// assert_eq!(std::fs::read_to_string(&path)?, "the old file");
/// file.commit()?;
/// assert_eq!(std::fs::read_to_string(&path)?, "embed.weight\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    temp: TempFile,
    /// As the caller named it, for messages.
    path: PathBuf,
    /// Where links lead from there.
    destination: PathBuf,
    durable: bool,
}

impl AtomicFile {
    /// Creates the file, which has yet to take its place. A file that replaces another gets its
    /// mode and, where the system allows it, its owner and group. The mode of any other one follows
    /// the umask.
    ///
    /// A link is followed, also one that leads to nothing yet: what it leads to is replaced, and
    /// the link stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] if the path has something else than a regular file, such as a FIFO
    /// or a device, which is left alone; [`ErrorKind::ReadOnlyFile`] if it has a file that nobody
    /// may write to; [`ErrorKind::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_with(path, &SaveOptions::new())
    }

    /// [`create`](AtomicFile::create) with what the options say of
    /// [durability](SaveOptions::durable) and of
    /// [read-only files](SaveOptions::replace_read_only). The others are not looked at.
    ///
    /// # Errors
    ///
    /// Those of [`create`](AtomicFile::create).
    pub fn create_with(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        let path = path.as_ref();
        let create = || {
            let destination = destination(path)?;
            let original = replaceable(&destination, options.replace_read_only)?;
            let file =
                Self::create_in_place_of(destination, original.as_ref()).map_err(ErrorKind::Io)?;
            Ok(Self { path: path.into(), durable: options.durable, ..file })
        };
        create().map_err(|error: Error| error.in_path(path))
    }

    /// Whether [`commit`](AtomicFile::commit) waits until the file and its name have reached the
    /// disk, so that a power cut loses nothing. On by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// [`create`](AtomicFile::create) in place of whatever is there, even a link. If it is to have
    /// the permissions of another file, it has them before anything is written to it.
    pub(crate) fn create_in_place_of(
        destination: PathBuf,
        permissions_of: Option<&Metadata>,
    ) -> io::Result<Self> {
        let temp = TempFile::create(&destination, permissions_of.is_some())?;
        if let Some(original) = permissions_of {
            take_after(temp.file(), original)?;
        }
        Ok(Self { temp, path: destination.clone(), destination, durable: true })
    }

    /// The path that the file will have, after links.
    pub(super) fn destination(&self) -> &Path {
        &self.destination
    }

    /// The open file, to be written in other ways: at positions, say.
    pub fn file(&self) -> &File {
        self.temp.file()
    }

    /// Gives the file its name, replacing what had it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]: the path then has what it had before, and no temporary file stays behind.
    /// [`ErrorKind::NotDurable`]: the new file is in its place, but its directory could not be
    /// synchronised.
    pub fn commit(self) -> Result<()> {
        let path = self.path.clone();
        self.persist().map_err(|kind| Error::from(kind).in_path(&path))
    }

    /// [`commit`](AtomicFile::commit), for callers who know better which path the error is about.
    pub(crate) fn persist(self) -> Result<(), ErrorKind> {
        let Self { temp, destination, durable, .. } = self;
        if durable {
            sync(temp.file()).map_err(ErrorKind::Io)?;
        }
        temp.persist(&destination).map_err(ErrorKind::Io)?;
        remove_header_backup(&destination);
        if durable {
            sync_directory(directory(&destination)).map_err(ErrorKind::NotDurable)?;
        }
        Ok(())
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

/// Waits until the file's bytes and length have reached the disk.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    failpoint::hit("sync the file")?;
    file.sync_all()
}

/// Waits until the names in a directory have reached the disk, where the system can.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    failpoint::hit("sync the directory")?;
    // A directory can be opened and synchronised on Unix only; elsewhere a rename is as durable as
    // it gets.
    if !cfg!(unix) {
        return Ok(());
    }
    // The same holds for a directory that may be written to but not read, and for file systems,
    // mostly of networks, that refuse this for any directory. It says nothing about the files, so
    // it is no reason to fail.
    match File::open(directory).and_then(|directory| directory.sync_all()) {
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

/// Checks whether a path can have a file, as far as that is known before one is created.
pub(crate) fn check(path: &Path, replace_read_only: bool) -> Result<()> {
    let check = || {
        let destination = destination(path)?;
        replaceable(&destination, replace_read_only)?;
        refuse_other_than_directory(directory(&destination))
    };
    check().map_err(|error| error.in_path(path))
}

/// What is known of the file that a new one replaces, if there is one. A read-only one is refused
/// unless it may be replaced. Links are not followed.
pub(crate) fn replaceable(path: &Path, replace_read_only: bool) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Ok(None),
        Ok(found) if is_read_only(&found) && !replace_read_only => {
            Err(ErrorKind::ReadOnlyFile.into())
        }
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ErrorKind::Io(error).into()),
    }
}

/// Removes the backup of the header of a file that was replaced: what it could restore is gone. One
/// that stays does no harm.
pub(crate) fn remove_header_backup(destination: &Path) {
    let path = header_backup(destination);
    if is_header_backup(&path) {
        let _ = failpoint::hit("remove the backup").and_then(|()| fs::remove_file(path));
    }
}

/// Refuses what is there and is no directory, or not there.
pub(crate) fn refuse_other_than_directory(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(ErrorKind::Io(io::ErrorKind::NotADirectory.into()).into()),
        Err(error) => Err(ErrorKind::Io(error).into()),
    }
}

/// Refuses what is there and is no regular file, without opening it.
pub(crate) fn refuse_special(path: &Path) -> Result<()> {
    let found = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(metadata) if metadata.is_dir() => "a directory",
        Ok(_) => "a special file",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ErrorKind::Io(error).into()),
    };
    Err(ErrorKind::NotAFile { found }.into())
}

/// Where links lead from a path that is to have a file. What is there and is no regular file is
/// refused, and so is the name of a directory.
pub(crate) fn destination(path: &Path) -> Result<PathBuf> {
    // Before links are followed: some links of the system, such as those to pipes, lead to no path.
    refuse_special(path)?;
    if path
        .as_os_str()
        .as_encoded_bytes()
        .last()
        .is_some_and(|&last| std::path::is_separator(last.into()))
    {
        return Err(ErrorKind::Io(io::ErrorKind::IsADirectory.into()).into());
    }
    let destination = follow_links(path)?;
    refuse_special(&destination)?;
    Ok(destination)
}

/// The path that a chain of links ends at, which need not exist.
fn follow_links(path: &Path) -> Result<PathBuf> {
    // As many as the kernel follows.
    const MAX_LINKS: usize = 40;
    let mut followed = path.to_owned();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&followed) {
            Ok(target) => followed = directory(&followed).join(target),
            // Not a link, or nothing there yet.
            Err(_) => return Ok(followed),
        }
    }
    Err(Error::io(io::Error::other("too many levels of symbolic links"), path))
}
