//! The files that are edited: permissions, owners, links, locks, and files that cannot be edited.

use std::io;

use safetensors_core::edit::{Edited, restore_header};

use super::names;
use crate::support::*;

/// A malformed file is not touched, and the error says why.
#[test]
fn malformed_files_are_not_edited() {
    let directory = tempdir().unwrap();
    let path = write(directory.path(), "model.safetensors", file("{} x", 0));
    let error = refused!(Edit::open(&path), ErrorKind::Json { .. });
    assert_eq!(error.file(), path.to_str());
    assert!(!restore_header(&path).unwrap());
    fs::write(&path, file("{}", 1)).unwrap();
    assert!(matches!(
        Edit::open(&path).unwrap_err().kind(),
        ErrorKind::TrailingData { expected: 0, found: 1 }
    ));
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn only_files_are_edited() {
    let (directory, path) = place("missing");
    for result in [Edit::open(&path).map(drop), restore_header(&path).map(drop)] {
        let error = result.unwrap_err();
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        assert!(matches!(error.kind(), ErrorKind::Io(error) if missing(error)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    refused!(Edit::open(directory.path()), ErrorKind::NotAFile { found: "a directory" });
    assert!(names_in(directory.path()).is_empty());
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::super::{parse, roomy_file};
    use super::*;

    fn edit_twice(path: &Path) {
        let edit = Edit::open(path).unwrap().in_place(true);
        let edit = edit.set_metadata([("edited", "in place")]);
        assert_eq!(edit.apply().unwrap(), Edited::InPlace);
        assert_eq!(parse(path).metadata()["edited"], "in place");
        assert_eq!(Edit::open(path).unwrap().remove(["a"]).apply().unwrap(), Edited::Rewritten);
        assert_eq!(names(path), ["b", "c"]);
    }

    #[test]
    fn the_owner_stays() {
        let (_directory, path) = roomy_file();
        if std::os::unix::fs::chown(&path, Some(12345), Some(54321)).is_err() {
            eprintln!("skipped: only an administrator can give files away");
            return;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        edit_twice(&path);
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (12345, 54321, 0o640)
        );
    }

    #[test]
    fn links_are_followed() {
        let (directory, path) = roomy_file();
        let folder = directory.path().join("snapshots");
        fs::create_dir(&folder).unwrap();
        symlink("../model.safetensors", folder.join("link")).unwrap();
        edit_twice(&folder.join("link"));
        assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(names_in(&folder), ["link"]);
        assert_eq!(names_in(directory.path()), ["model.safetensors", "snapshots"]);
    }

    #[test]
    fn in_place_is_the_same_file_and_rewritten_is_another() {
        let (_directory, path) = roomy_file();
        let (mut open, mut old) = (fs::File::open(&path).unwrap(), Vec::new());
        edit_twice(&path);
        assert_ne!(fs::metadata(&path).unwrap().ino(), open.metadata().unwrap().ino());
        io::Read::read_to_end(&mut open, &mut old).unwrap();
        assert_eq!(SafeTensors::parse(&old).unwrap().metadata()["edited"], "in place");
    }

    #[test]
    fn only_one_edits_at_a_time() {
        let (_directory, path) = roomy_file();
        let first = Edit::open(&path).unwrap();
        for result in [Edit::open(&path).map(drop), restore_header(&path).map(drop)] {
            let error = result.unwrap_err();
            let busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
            assert!(matches!(error.kind(), ErrorKind::Io(error) if busy(error)), "{error}");
            assert_eq!(error.file(), path.to_str());
        }
        assert_eq!(Checkpoint::open(&path).unwrap().len(), 3, "readers are let in");
        first.remove(["a"]).apply().unwrap();
        drop(Edit::open(&path).unwrap());
    }

    #[test]
    fn special_files_are_refused() {
        let (directory, fifo) = place("fifo");
        make_fifo(&fifo);
        symlink("/dev/null", directory.path().join("device")).unwrap();
        for name in ["fifo", "device"] {
            let path = directory.path().join(name);
            refused!(
                must_not_hang(move || Edit::open(path).map(drop)),
                ErrorKind::NotAFile { found: "a special file" }
            );
        }
    }

    /// The mode decides, because an administrator may write to any file.
    #[test]
    fn a_read_only_file_is_not_edited() {
        let (directory, path) = roomy_file();
        let before = fs::read(&path).unwrap();
        for mode in [0o444, 0o400, 0o555] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            for result in [Edit::open(&path).map(drop), restore_header(&path).map(drop)] {
                let error = refused!(result, ErrorKind::ReadOnlyFile);
                assert_eq!(error.file(), path.to_str());
            }
            assert_eq!(Edit::open_read_only(&path).unwrap().dry_run().unwrap(), Edited::Unchanged);
        }
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    }

    #[test]
    fn a_read_only_file_is_replaced_on_request_and_never_written_to() {
        let (directory, path) = roomy_file();
        let before = fs::read(&path).unwrap();
        fs::hard_link(&path, directory.path().join("name")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let edit = Edit::open_to_replace(&path).unwrap().in_place(true);
        assert_eq!(edit.set_metadata([("a", "b")]).apply().unwrap(), Edited::Rewritten);
        assert_eq!(fs::read(directory.path().join("name")).unwrap(), before);
        assert_ne!(fs::read(&path).unwrap(), before);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        // One that may be written to is edited as ever.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let edit = Edit::open_to_replace(&path).unwrap().in_place(true);
        assert_eq!(edit.set_metadata([("a", "c")]).apply().unwrap(), Edited::InPlace);
    }

    /// An administrator may write everywhere, and then the edits must succeed.
    #[test]
    fn directories_that_may_not_be_written_to() {
        let denied = |error: &Error| matches!(error.kind(), ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied);
        let (directory, path) = roomy_file();
        let before = fs::read(&path).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let allowed = fs::File::create(directory.path().join("probe")).is_ok();
        let _ = fs::remove_file(directory.path().join("probe"));
        for edit in
            [Edit::clear_metadata, |edit: Edit<'static>| edit.in_place(true).clear_metadata()]
        {
            match edit(Edit::open(&path).unwrap()).apply() {
                Ok(_) => assert!(allowed),
                Err(error) => {
                    assert!(!allowed && denied(&error) && error.file() == path.to_str(), "{error}");
                    assert_eq!(fs::read(&path).unwrap(), before);
                }
            }
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    }
}

#[test]
fn changes_of_the_file_since_it_was_opened_are_not_lost() {
    let (dir, path) = place("model.safetensors");
    let data = [1_u8, 2, 3, 4];
    let old = TensorView::new(Dtype::U8, &[4], &data).unwrap();
    let changes: [fn(Edit<'static>) -> Edit<'static>; 3] = [
        |edit| edit.set_metadata([("k", "v")]),
        |edit| edit.in_place(true).set_metadata([("k", "v")]),
        |edit| edit.remove(["w"]),
    ];
    for change in changes {
        // Another save replaces the file.
        save(&path, [("w", old)], &SaveOptions::new().metadata([("k", "w")])).unwrap();
        let edit = change(Edit::open(&path).unwrap());
        save(&path, [("new", old)], &SaveOptions::new()).unwrap();
        let saved = fs::read(&path).unwrap();
        let error = edit.apply().unwrap_err();
        assert!(error.to_string().contains("since it was opened"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), saved);

        // Another program writes to the file in place.
        save(&path, [("w", old)], &SaveOptions::new().metadata([("k", "w")])).unwrap();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        let edit = change(Edit::open(&path).unwrap());
        let len = fs::metadata(&path).unwrap().len();
        let mut file = fs::File::options().write(true).open(&path).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(len - 1)).unwrap();
        std::io::Write::write_all(&mut file, &[9]).unwrap();
        let written = fs::read(&path).unwrap();
        let error = edit.apply().unwrap_err();
        assert!(error.to_string().contains("since it was opened"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), written);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no litter");
    }
}
