//! [`AtomicFile`]: a file that takes its place complete, or not at all.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;

/// A file of any content that takes its place complete, or not at all: until
/// [`commit`](AtomicFile::commit), and after any failure, its path has what it had before.
///
/// It is written under a hidden temporary name beside its destination. Dropped before the commit,
/// it leaves nothing behind; a process that is killed may leave the temporary file, whose name ends
/// in `.safetensors.tmp` and which can be removed.
///
/// Every write goes to the system at once: put an [`io::BufWriter`] around it for small ones.
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
    temp: NamedTempFile,
    /// As the caller named it, for messages.
    path: PathBuf,
    /// Where links lead from there.
    destination: PathBuf,
    durable: bool,
}

impl AtomicFile {
    /// Creates the temporary file. Its mode follows the umask, as that of any new file.
    ///
    /// A link is followed, also one that leads to nothing yet: what it leads to is replaced, and
    /// the link stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] if the path has something else than a regular file, such as a FIFO
    /// or a device, which is left alone; [`ErrorKind::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let create = || {
            let destination = destination(path)?;
            let file = Self::create_in_place_of(destination).map_err(ErrorKind::Io)?;
            Ok(Self { path: path.into(), ..file })
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

    /// [`create`](AtomicFile::create) in place of whatever is there, even a link.
    pub(crate) fn create_in_place_of(destination: PathBuf) -> io::Result<Self> {
        failpoint::hit("create")?;
        // Opened here, so that it has every permission that the umask leaves, as any new file, and
        // not the private mode of temporary files; and so that an error is the system's, and says
        // nothing of a name that nobody asked for.
        let open = |path: &Path| File::options().read(true).write(true).create_new(true).open(path);
        let mut builder = tempfile::Builder::new();
        let temp = builder
            .prefix(".")
            .suffix(".safetensors.tmp")
            .make_in(directory(&destination), open)?;
        Ok(Self { temp, path: destination.clone(), destination, durable: true })
    }

    /// The open file, to be written in other ways: at positions, say.
    pub fn file(&self) -> &File {
        self.temp.as_file()
    }

    /// Gives the file the permissions of another and, where the system allows it, its owner.
    pub(crate) fn take_after(&self, original: &Metadata) -> io::Result<()> {
        failpoint::hit("permissions")?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let own = self.file().metadata()?;
            if (own.uid(), own.gid()) != (original.uid(), original.gid()) {
                // Only an administrator can give files away. Others own what they edit, or it
                // becomes theirs.
                let _ = std::os::unix::fs::fchown(
                    self.file(),
                    Some(original.uid()),
                    Some(original.gid()),
                );
            }
        }
        // After the owner: a change of owner can take permissions away.
        self.file().set_permissions(original.permissions())
    }

    /// Gives the file its name, replacing what had it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]. The path then has what it had before and no temporary file stays behind;
    /// only if the directory cannot be synchronised after the file has taken its place is it the
    /// new one.
    pub fn commit(self) -> Result<()> {
        let path = self.path.clone();
        self.persist().map_err(|error| Error::io(error, &path))
    }

    /// [`commit`](AtomicFile::commit), for callers who know better which path the error is about.
    pub(crate) fn persist(self) -> io::Result<()> {
        if self.durable {
            sync(self.temp.as_file())?;
        }
        let directory = directory(&self.destination).to_owned();
        failpoint::hit("rename")?;
        self.temp.persist(self.destination).map_err(|error| error.error)?;
        if self.durable { sync_directory(&directory) } else { Ok(()) }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temp.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temp.as_file_mut().flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temp.as_file_mut().seek(to)
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
pub(crate) fn check(path: &Path) -> Result<()> {
    let check = || {
        let destination = destination(path)?;
        refuse_other_than_directory(directory(&destination))
    };
    check().map_err(|error| error.in_path(path))
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

/// The directory of a file; a bare name lies in the current one.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
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
