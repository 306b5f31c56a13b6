//! Small files next to a checkpoint, such as settings, perhaps from a stranger.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::file::FileSource;
use crate::format::error::{Error, ErrorKind, Result};

/// Finds the path to open for a file below a directory. Links may lead below it, and from a
/// snapshot of the Hub's cache to a blob.
///
/// # Errors
///
/// [`ErrorKind::NotAFile`] for a name or a link out of the directory; [`ErrorKind::Io`].
#[doc(hidden)]
pub fn find(home: &Path, name: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    let name = name.as_ref();
    let path = home.join(name);
    let leads_out = |found| Err(Error::from(ErrorKind::NotAFile { found }).in_path(&path));
    let mut has_link = false;
    let mut at = home.to_owned();
    for component in name.components() {
        match component {
            Component::Normal(part) => at.push(part),
            Component::CurDir => continue,
            _ => return leads_out("a path that leads out of its directory"),
        }
        match fs::symlink_metadata(&at) {
            Ok(found) => has_link |= found.is_symlink(),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(Error::io(error, &path)),
        }
    }
    if !has_link {
        return Ok(Some(path));
    }
    let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
    let real = home.canonicalize().and_then(|home| Ok((home, path.canonicalize()?)));
    match real {
        Ok((home, target)) if target.starts_with(&home) || is_blob(&home, &target) => {
            Ok(Some(target))
        }
        Ok(_) => leads_out("a link that leads out of its directory; put a copy there"),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Error::io(error, &path)),
    }
}

/// Opens a regular file that [`find`] finds, or fails with [`ErrorKind::NotAFile`].
#[doc(hidden)]
pub fn open(home: &Path, name: impl AsRef<Path>) -> Result<Option<FileSource>> {
    let name = name.as_ref();
    let Some(path) = find(home, name)? else { return Ok(None) };
    match FileSource::open_now(&path) {
        // It was removed since.
        Err(error) if matches!(error.kind(), ErrorKind::Io(error) if is_absent(error)) => Ok(None),
        opened => opened.map(Some).map_err(|error| error.moved(&path, &home.join(name))),
    }
}

/// [Opens](open) and reads a file of at most `most` bytes.
#[doc(hidden)]
pub fn read(home: &Path, name: impl AsRef<Path>, most: u64) -> Result<Option<Vec<u8>>> {
    let name = name.as_ref();
    let Some(file) = open(home, name)? else { return Ok(None) };
    read_open(&file, &home.join(name), most).map(Some)
}

/// Reads a regular file of at most `most` bytes, wherever links lead.
#[doc(hidden)]
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_open(&FileSource::open_now(path)?, path, most)
}

fn read_open(file: &FileSource, path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The length that the system reports may be wrong, or change.
    let read = file.file().take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(error, path))?;
    if bytes.len() as u64 <= most {
        return Ok(bytes);
    }
    let found = file.file().metadata().map_or(0, |found| found.len()).max(bytes.len() as u64);
    let problem = format!("expected at most {most} bytes, found {found}");
    Err(Error::io(io::Error::other(problem), path))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns `true` if `home` is a snapshot in the Hub's cache, and the target a blob of its
/// repository or, in newer caches, of all.
fn is_blob(home: &Path, target: &Path) -> bool {
    let snapshots = home.ancestors().find(|it| it.ends_with("snapshots"));
    let repository = snapshots.and_then(Path::parent);
    let is_below =
        |it: &Path| it.join("blobs").canonicalize().is_ok_and(|blobs| target.starts_with(blobs));
    repository.is_some_and(|it| it.join("blobs").is_dir() && it.ancestors().take(2).any(is_below))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use tempfile::tempdir;

    use super::*;

    fn write(path: PathBuf) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn names_and_links_stay_below_the_directory() {
        let dir = tempdir().unwrap();
        let home = dir.path().join("home");
        write(home.join("a/file"));
        write(dir.path().join("secret"));
        write(dir.path().join("home2/file"));
        for (target, link) in [
            ("a/file", "below"),
            ("below", "twice"),
            ("a", "folder"),
            ("../home/a/file", "around"),
            ("../secret", "out"),
            ("../home2/file", "sibling"),
            ("..", "up"),
            ("/dev/zero", "device"),
            ("nowhere", "dangling"),
            ("out", "chain"),
            ("loop", "loop"),
        ] {
            symlink(target, home.join(link)).unwrap();
        }
        for name in ["a/file", "./a/file", "below", "twice", "folder/file", "around"] {
            assert_eq!(read(&home, name, 1).unwrap().as_deref(), Some(&b"x"[..]), "{name}");
        }
        for name in ["absent", "absent/file", "a/file/file", "dangling"] {
            assert!(read(&home, name, 1).unwrap().is_none(), "{name}");
        }
        let absolute = dir.path().join("secret");
        let outside = ["out", "sibling", "up/secret", "device", "chain", "../secret", "a/../below"];
        for name in outside.into_iter().map(Path::new).chain([&*absolute]) {
            let error = read(&home, name, 1).unwrap_err();
            assert!(error.to_string().contains("leads out of its directory"), "{error}");
            assert_eq!(error.file(), home.join(name).to_str());
        }
        assert!(read(&home, "loop", 1).is_err());
        // The directory itself may be a link, and relative.
        symlink(&home, dir.path().join("link")).unwrap();
        assert!(read(&dir.path().join("link"), "below", 1).unwrap().is_some());
        assert!(find(Path::new(""), "Cargo.toml").unwrap().is_some());
    }

    #[test]
    fn only_regular_files_of_some_bytes_are_read() {
        let dir = tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "four").unwrap();
        fs::create_dir(at("directory")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
        File::create(at("hole")).unwrap().set_len(1 << 30).unwrap();
        for (name, most, expected) in [
            ("file", 3, "expected at most 3 bytes, found 4"),
            ("hole", 100, "expected at most 100 bytes, found 1073741824"),
            ("fifo", 9, "found a special file"),
            ("directory", 9, "found a directory"),
        ] {
            for read in
                [read(dir.path(), name, most).map(drop), read_file(&at(name), most).map(drop)]
            {
                let error = read.unwrap_err();
                assert!(error.to_string().ends_with(expected), "{error}");
                assert_eq!(error.file(), at(name).to_str());
            }
        }
        assert_eq!(read(dir.path(), "file", 4).unwrap().unwrap(), b"four");
        assert_eq!(read_file(&at("file"), u64::MAX).unwrap(), b"four");
    }

    #[test]
    fn links_to_blobs_are_followed_in_a_cache_of_the_hub() {
        let dir = tempdir().unwrap();
        let snapshot = dir.path().join("models--a--b/snapshots/0123");
        fs::create_dir_all(snapshot.join("unet")).unwrap();
        write(dir.path().join("models--a--b/blobs/own"));
        write(dir.path().join("blobs/ab/shared"));
        write(dir.path().join("models--a--c/blobs/other"));
        write(dir.path().join("models--a--b/refs/main"));
        let link = |target, name| symlink(target, snapshot.join(name)).unwrap();
        link("../../blobs/own", "own");
        link("../../../blobs/own", "unet/own");
        symlink("../../blobs/ab/shared", dir.path().join("models--a--b/blobs/shared")).unwrap();
        link("../../blobs/shared", "shared");
        link("../../../models--a--c/blobs/other", "other");
        link("../../refs/main", "ref");
        for name in ["own", "unet/own", "shared"] {
            assert!(read(&snapshot, name, 1).unwrap().is_some(), "{name}");
        }
        assert!(read(&snapshot.join("unet"), "own", 1).unwrap().is_some());
        for name in ["other", "ref"] {
            assert!(read(&snapshot, name, 1).is_err(), "{name}");
        }
    }
}
