//! [`Identity`]: the file behind a name.

use std::fs::File;
use std::io;
use std::path::Path;

/// The identity of a file among all that exist now: of all its hard links, also after a rename.
///
/// A new file may get the identity of a removed one. Where that matters, hold the file open, or
/// compare its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Identity {
    /// The device or, on Windows, the volume.
    #[cfg(any(unix, windows, target_os = "wasi"))]
    device: u64,
    /// The inode or, on Windows, the index of the file.
    #[cfg(any(unix, windows, target_os = "wasi"))]
    inode: u64,
    /// For systems without such numbers.
    #[cfg(not(any(unix, windows, target_os = "wasi")))]
    created: Option<std::time::SystemTime>,
}

impl Identity {
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        system::read(file)
    }

    /// Does not follow a link.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        unless_missing(system::at(path, false))
    }

    /// Follows links.
    pub(crate) fn behind(path: &Path) -> io::Result<Option<Self>> {
        unless_missing(system::at(path, true))
    }

    /// Returns the number on its device; 0 where there are none.
    pub(crate) fn number(&self) -> u64 {
        #[cfg(any(unix, windows, target_os = "wasi"))]
        return self.inode;
        #[cfg(not(any(unix, windows, target_os = "wasi")))]
        0
    }
}

/// Returns the number of hard links; 1 where it is unknown.
pub(crate) fn links(file: &File) -> io::Result<u64> {
    system::links(file)
}

// std panics where there are no processes.
pub(crate) fn process_id() -> u32 {
    if cfg!(target_family = "wasm") { 0 } else { std::process::id() }
}

/// Returns `None` if the file does not exist.
pub(crate) fn unless_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(not(any(windows, target_os = "wasi")))]
mod system {
    use std::fs::{self, File, Metadata};
    use std::io;
    use std::path::Path;

    use super::Identity;

    pub(super) fn read(file: &File) -> io::Result<Identity> {
        file.metadata().map(identity)
    }

    pub(super) fn at(path: &Path, follow: bool) -> io::Result<Identity> {
        let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
        metadata.map(identity)
    }

    #[cfg(unix)]
    fn identity(metadata: Metadata) -> Identity {
        use std::os::unix::fs::MetadataExt;
        Identity { device: metadata.dev(), inode: metadata.ino() }
    }

    #[cfg(unix)]
    pub(super) fn links(file: &File) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(file.metadata()?.nlink())
    }

    #[cfg(not(unix))]
    fn identity(metadata: Metadata) -> Identity {
        Identity { created: metadata.created().ok() }
    }

    #[cfg(not(unix))]
    pub(super) fn links(_: &File) -> io::Result<u64> {
        Ok(1)
    }
}

// std has these numbers for nightly compilers only.
#[cfg(target_os = "wasi")]
mod system {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use rustix::fs::{Stat, fstat, lstat, stat};

    use super::Identity;

    pub(super) fn read(file: &File) -> io::Result<Identity> {
        Ok(identity(fstat(file)?))
    }

    pub(super) fn at(path: &Path, follow: bool) -> io::Result<Identity> {
        Ok(identity(if follow { stat(path) } else { lstat(path) }?))
    }

    fn identity(found: Stat) -> Identity {
        Identity { device: found.st_dev, inode: found.st_ino }
    }

    pub(super) fn links(file: &File) -> io::Result<u64> {
        Ok(fstat(file)?.st_nlink)
    }
}

// Only an open file has its numbers. The time of creation is no substitute: a new file takes over
// the time of a file that had its name shortly before.
#[cfg(windows)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    use super::Identity;

    const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;

    pub(super) fn read(file: &File) -> io::Result<Identity> {
        let found = winapi_util::file::information(file)?;
        Ok(Identity { device: found.volume_serial_number(), inode: found.file_index() })
    }

    pub(super) fn at(path: &Path, follow: bool) -> io::Result<Identity> {
        // Directories are opened only with this flag. No access is asked for, so it does not matter
        // how others have opened the file.
        let link = if follow { 0 } else { FILE_FLAG_OPEN_REPARSE_POINT };
        let mut options = OpenOptions::new();
        options.access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS | link);
        of(&options.open(path)?)
    }

    pub(super) fn links(file: &File) -> io::Result<u64> {
        Ok(winapi_util::file::information(file)?.number_of_links())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_keeps_it_under_all_its_names_and_a_new_one_has_another() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old"), "").unwrap();
        let open = File::open(at("old")).unwrap();
        let old = Identity::read(&open).unwrap();
        assert_eq!(Identity::at(&at("old")).unwrap(), Some(old));
        assert_eq!(links(&open).unwrap(), 1);
        fs::hard_link(at("old"), at("link")).unwrap();
        assert_eq!(links(&open).unwrap(), 2);
        assert_eq!(Identity::behind(&at("link")).unwrap(), Some(old));
        fs::rename(at("old"), at("renamed")).unwrap();
        assert_eq!(Identity::at(&at("renamed")).unwrap(), Some(old));
        assert_eq!(Identity::at(&at("old")).unwrap(), None);
        // Windows gives it the time of creation of the old file with this name.
        fs::write(at("old"), "").unwrap();
        assert_ne!(Identity::at(&at("old")).unwrap(), Some(old));
        assert_ne!(Identity::at(directory.path()).unwrap(), Some(old));
    }
}
