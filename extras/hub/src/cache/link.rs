//! [`link`]: links a file of a snapshot to its blob.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{create_parent, unique};

/// Makes `pointer`, a path in a snapshot, a relative link to the blob, replacing an entry in one
/// step.
///
/// Without links in the system, moves the file there if it `is_new`, so that no other snapshot
/// needs the blob, and otherwise copies it. Another process may have done so first. `depth` is the
/// number of directories from the repository's to the pointer.
pub(crate) fn link(blob: &Path, pointer: &Path, depth: usize, is_new: bool) -> io::Result<()> {
    link_by(symlink, blob, pointer, depth, is_new)
}

fn link_by(
    symlink: impl FnOnce(&Path, &Path) -> io::Result<()>,
    blob: &Path,
    pointer: &Path,
    depth: usize,
    is_new: bool,
) -> io::Result<()> {
    let name = blob.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut target: PathBuf = std::iter::repeat_n("..", depth).collect();
    target.push("blobs");
    target.push(name);
    if fs::read_link(pointer).is_ok_and(|link| link == target) {
        return Ok(());
    }
    create_parent(pointer)?;
    let temporary = pointer.with_file_name(unique::name(".", ".tmp"));
    let placed = match symlink(&target, &temporary) {
        Ok(()) => fs::rename(&temporary, pointer),
        Err(error) if !means_no_links(&error) => Err(error),
        Err(_) if is_new => fs::rename(blob, pointer),
        Err(_) => fs::copy(blob, &temporary).and_then(|_| fs::rename(&temporary, pointer)),
    };
    let Err(error) = placed else { return Ok(()) };
    let _ = fs::remove_file(&temporary);
    if error.kind() == io::ErrorKind::NotFound
        && !blob.exists()
        && fs::symlink_metadata(pointer).is_ok_and(|it| it.is_file())
    {
        return Ok(());
    }
    Err(error)
}

fn means_no_links(error: &io::Error) -> bool {
    // FAT answers EPERM. A directory that may not be written is EACCES, and another error.
    #[cfg(unix)]
    let codes = {
        use rustix::io::Errno;
        [Errno::PERM, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS].map(Errno::raw_os_error)
    };
    // ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED, ERROR_PRIVILEGE_NOT_HELD.
    #[cfg(not(unix))]
    let codes = [1, 50, 1314];
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(dir: &Path) -> PathBuf {
        let blob = dir.join("blobs/e");
        fs::create_dir_all(dir.join("blobs")).unwrap();
        fs::write(&blob, "content").unwrap();
        blob
    }

    #[cfg(unix)]
    #[test]
    fn links_are_relative_and_replace_existing_files() {
        let dir = tempfile::tempdir().unwrap();
        let blob = blob(dir.path());
        let pointer = dir.path().join("snapshots/c/a/b.safetensors");
        for _ in 0..2 {
            link(&blob, &pointer, 3, true).unwrap();
            assert_eq!(fs::read_link(&pointer).unwrap(), Path::new("../../../blobs/e"));
            assert_eq!(fs::read(&pointer).unwrap(), b"content");
        }
        fs::remove_file(&pointer).unwrap();
        fs::write(&pointer, "other").unwrap();
        link(&blob, &pointer, 3, false).unwrap();
        assert_eq!(fs::read(&pointer).unwrap(), b"content");
        assert_eq!(fs::read_dir(pointer.parent().unwrap()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_name_may_be_as_long_as_the_file_system_takes() {
        let dir = tempfile::tempdir().unwrap();
        let blob = blob(dir.path());
        for (len, is_taken) in [(255, true), (256, false)] {
            let pointer = dir.path().join("snapshots/c").join("x".repeat(len));
            assert_eq!(link(&blob, &pointer, 2, true).is_ok(), is_taken, "{len}");
        }
        assert_eq!(fs::read_dir(dir.path().join("snapshots/c")).unwrap().count(), 1);
    }

    #[test]
    fn without_links_the_file_itself_is_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let fail = |_: &Path, _: &Path| Err(io::ErrorKind::Unsupported.into());
        for is_new in [false, true] {
            let blob = blob(dir.path());
            let pointer = dir.path().join("snapshots/c/model.safetensors");
            link_by(fail, &blob, &pointer, 2, is_new).unwrap();
            assert_eq!(fs::read(&pointer).unwrap(), b"content");
            assert!(!fs::symlink_metadata(&pointer).unwrap().is_symlink());
            assert_eq!(blob.exists(), !is_new);
        }
    }

    #[test]
    fn another_process_may_have_moved_the_file_there() {
        let dir = tempfile::tempdir().unwrap();
        let fail = |_: &Path, _: &Path| Err(io::ErrorKind::Unsupported.into());
        let blob = blob(dir.path());
        let pointer = dir.path().join("snapshots/c/model.safetensors");
        link_by(fail, &blob, &pointer, 2, true).unwrap();
        for is_new in [false, true] {
            link_by(fail, &blob, &pointer, 2, is_new).unwrap();
            assert_eq!(fs::read(&pointer).unwrap(), b"content");
            let absent = dir.path().join("snapshots/c/absent");
            let error = link_by(fail, &blob, &absent, 2, is_new).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn only_a_system_without_links_gets_a_copy() {
        use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let dir = tempfile::tempdir().unwrap();
        let blob = blob(dir.path());
        let pointer = dir.path().join("snapshots/c/model.safetensors");
        for kind in [StorageFull, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem] {
            for is_new in [false, true] {
                let fail = |_: &Path, _: &Path| Err(io::Error::from(kind));
                let found = link_by(fail, &blob, &pointer, 2, is_new).unwrap_err();
                assert_eq!(found.kind(), kind);
                assert!(blob.exists() && fs::symlink_metadata(&pointer).is_err(), "{kind}");
            }
        }
        // EPERM, or a privilege that the user does not have.
        let code = if cfg!(unix) { 1 } else { 1314 };
        let fail = |_: &Path, _: &Path| Err(io::Error::from_raw_os_error(code));
        link_by(fail, &blob, &pointer, 2, false).unwrap();
        assert_eq!(fs::read(&pointer).unwrap(), b"content");
    }
}
