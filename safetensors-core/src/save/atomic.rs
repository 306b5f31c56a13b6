//! [`AtomicFile`]: a file that takes its place complete, or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{Error, ErrorKind, Result};

/// A new file beside its destination, without the destination's name until it is complete.
///
/// Dropped before [`commit`](AtomicFile::commit), it leaves nothing behind.
pub(super) struct AtomicFile {
    temp: NamedTempFile,
    destination: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file in the destination's directory. A link is followed: what it leads to is replaced.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let destination = follow_links(path)?;
        match fs::metadata(&destination) {
            Ok(metadata) if metadata.is_dir() => return Err(not_a_file("a directory", path)),
            Ok(metadata) if !metadata.is_file() => return Err(not_a_file("a special file", path)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(error, path)),
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".safetensors.tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Every permission that the umask leaves, as for any new file, and not the private mode of temporary files.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let temp = builder.tempfile_in(directory(&destination)).map_err(|error| Error::io(error, path))?;
        Ok(Self { temp, destination })
    }

    /// The file to write to.
    pub(super) fn file(&self) -> &File {
        self.temp.as_file()
    }

    /// Gives the file its name, replacing what had it. If `durable`, waits until both have reached the disk.
    pub(super) fn commit(self, durable: bool) -> io::Result<()> {
        if durable {
            self.temp.as_file().sync_all()?;
        }
        let directory = directory(&self.destination).to_owned();
        self.temp.persist(self.destination).map_err(|error| error.error)?;
        // A directory can be opened and synchronised on Unix only; elsewhere the rename is as durable as it gets.
        if durable && cfg!(unix) {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }
}

/// The directory of a file; a bare name lies in the current one.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The path that a chain of links ends at, which need not exist.
fn follow_links(path: &Path) -> Result<PathBuf> {
    // As many as the kernel follows.
    const MAX_LINKS: usize = 40;
    let mut followed = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&followed) {
            Ok(target) => followed = directory(&followed).join(target),
            // Not a link, or nothing there yet.
            Err(_) => return Ok(followed),
        }
    }
    Err(Error::io(io::Error::other("too many levels of symbolic links"), path))
}

fn not_a_file(found: &'static str, path: &Path) -> Error {
    Error::from(ErrorKind::NotAFile { found }).in_path(path)
}
