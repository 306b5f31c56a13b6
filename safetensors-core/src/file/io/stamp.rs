//! [`Stamp`]: the state of a file at opening, which shows later changes.

use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::format::error::{Error, ErrorKind};

#[derive(Debug, thiserror::Error)]
#[error("the file has changed since it was opened: {0}")]
struct Changed(String);

pub(crate) fn says_changed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(error) if error.get_ref().is_some_and(|e| e.is::<Changed>()))
}

#[derive(Debug)]
pub(super) struct Stamp {
    pub(super) len: u64,
    /// Programs can set it.
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: Inode,
}

impl Stamp {
    pub(super) fn new(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            inode: Inode::new(metadata),
        }
    }

    pub(super) fn check(&self, now: &Metadata, path: &Path) -> io::Result<()> {
        let changed = |how: &str| Err(io::Error::other(Changed(how.into())));
        if now.len() != self.len {
            return changed(&format!("expected {} bytes, found {}", self.len, now.len()));
        }
        if now.modified().ok() != self.modified {
            return changed("it was written to");
        }
        #[cfg(unix)]
        if self.inode.may_have_been_written(&Inode::new(now), path) {
            return changed(
                "its time of change moved: it was written to and its time of writing set back, or \
                 one of its attributes was set",
            );
        }
        #[cfg(not(unix))]
        let _ = path;
        Ok(())
    }
}

// Every write moves the time of change, which programs cannot set. So do changes of mode, owner,
// links and name, which can be recognised, and an extended attribute, the time of access, and a
// second name that came and went, which count as writes.
#[cfg(unix)]
#[derive(Debug, PartialEq, Eq)]
struct Inode {
    changed: (i64, i64),
    place: (u64, u64),
    links: u64,
    mode: u32,
    owner: (u32, u32),
}

#[cfg(unix)]
impl Inode {
    fn new(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            place: (metadata.dev(), metadata.ino()),
            links: metadata.nlink(),
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
        }
    }

    /// Returns `true` if the file may have been written to, with the same length and time of
    /// writing.
    // Another mode, owner or link explains the time of change. So does a rename, removal or
    // replacement, as by an atomic save: then `path` leads elsewhere, and the bytes are the same.
    // So do several names, now or at opening: each save of checkpoints that share files adds one.
    // The price: a write into such a file with its length and time of writing set back is not seen.
    fn may_have_been_written(&self, now: &Self, path: &Path) -> bool {
        let other_cause =
            |now: &Self| (now.links, now.mode, now.owner) != (self.links, self.mode, self.owner);
        self.changed != now.changed
            && !other_cause(now)
            && self.links <= 1
            && std::fs::metadata(path).is_ok_and(|there| Self::new(&there).place == self.place)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, File, FileTimes, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::PathBuf;
    use std::time::Duration;

    use crate::file::io::{FileSource, ReadAt};

    /// Opens the file after the clock of the file system has moved on.
    fn open(name: &str) -> (tempfile::TempDir, PathBuf, FileSource) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, b"old bytes").unwrap();
        let source = FileSource::open(&path).unwrap();
        source.check_unchanged().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        (directory, path, source)
    }

    #[test]
    fn a_write_of_equal_length_is_seen_though_its_time_was_put_back() {
        let (_directory, path, source) = open("model.safetensors");
        let file = File::options().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"new bytes", 0).unwrap();
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), modified);
        let error = source.check_unchanged().unwrap_err().to_string();
        assert!(
            error.contains("has changed since it was opened: its time of change moved"),
            "{error}"
        );
    }

    #[test]
    fn new_links_modes_and_names_are_no_change() {
        let (directory, path, source) = open("model.safetensors");
        let other = directory.path().join("other.safetensors");
        fs::hard_link(&path, &other).unwrap();
        source.check_unchanged().unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        source.check_unchanged().unwrap();
        // Replaced, as by a save: the open file is the old one.
        let (directory, path, source) = open("model.safetensors");
        let new = directory.path().join("new.safetensors");
        fs::write(&new, b"new bytes").unwrap();
        fs::hard_link(&path, directory.path().join("kept.safetensors")).unwrap();
        fs::rename(&new, &path).unwrap();
        source.check_unchanged().unwrap();
        let mut bytes = [0; 9];
        source.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"old bytes");
        // Renamed, and deleted.
        let (_directory, path, source) = open("model.safetensors");
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        source.check_unchanged().unwrap();
        fs::remove_file(&elsewhere).unwrap();
        source.check_unchanged().unwrap();
    }

    #[test]
    fn names_may_come_and_go_while_there_are_several() {
        let (directory, path, source) = open("model.safetensors");
        let link = |name: &str| fs::hard_link(&path, directory.path().join(name)).unwrap();
        let unlink = |name: &str| fs::remove_file(directory.path().join(name)).unwrap();
        link("first");
        // From here on the file has two names, before and after.
        let two = FileSource::open(&path).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        link("second");
        unlink("first");
        for source in [&source, &two] {
            source.check_unchanged().unwrap();
            let mut bytes = [0; 9];
            source.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"old bytes");
        }
        unlink("second");
        two.check_unchanged().unwrap();
        // A write is still found.
        link("third");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"new bytes", 0).unwrap();
        for source in [&source, &two] {
            let error = source.check_unchanged().unwrap_err().to_string();
            assert!(error.ends_with("it was written to"), "{error}");
        }
        file.set_len(4).unwrap();
        let error = two.check_unchanged().unwrap_err().to_string();
        assert!(error.ends_with("expected 9 bytes, found 4"), "{error}");
    }

    #[test]
    fn a_shortened_file_is_an_error_with_both_lengths() {
        let (_directory, path, source) = open("model.safetensors");
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let expected = "the file has become shorter: expected at least 9 bytes, found 4";
        let error = source.read_exact_at(&mut [0; 9], 0).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        let error = source.read_exact_at(&mut [0; 2], 7).unwrap_err();
        assert_eq!(error.to_string(), expected);
        let error = source.check_unchanged().unwrap_err().to_string();
        assert!(error.ends_with("expected 9 bytes, found 4"), "{error}");
    }
}
