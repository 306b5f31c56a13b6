//! How a save replaces a file: whole or not at all, with the usual mode for a new file, and through
//! links.

use safetensors_testing::tensors::{broken, bytes_by};

use crate::support::*;

/// A tensor of `len` bytes `value`, in pieces, that fails after this many bytes.
fn filled(value: u8, len: usize, fails_after: Option<usize>) -> impl TensorSource {
    bytes_by(len, move |sink| {
        let piece = [value; 1000];
        let given = fails_after.unwrap_or(len);
        for start in (0..given).step_by(piece.len()) {
            sink(&piece[..piece.len().min(given - start)])?;
        }
        if fails_after.is_some() { Err(broken("the source broke")) } else { Ok(()) }
    })
}

/// Saves two tensors of `value`, without waiting for the disk.
fn save_filled(path: &Path, value: u8) -> Result<(), Error> {
    let tensors =
        [("a", filled(value, 10_000, None)), ("b", filled(value, 3 + value as usize, None))];
    save(path, tensors, &SaveOptions::new().durable(false))
}

/// The value that the tensors at a path are filled with, all of them.
fn filled_with(path: &Path) -> u8 {
    let checkpoint = Checkpoint::open(path).unwrap();
    let bufs = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    let value = bufs[0].bytes()[0];
    assert!(
        bufs.iter().all(|buf| buf.bytes().iter().all(|byte| *byte == value)),
        "parts of several saves"
    );
    assert_eq!(
        bufs.iter().map(|buf| buf.bytes().len()).collect::<Vec<_>>(),
        [10_000, 3 + value as usize]
    );
    value
}

#[test]
fn a_new_file_and_one_in_its_place() {
    let (directory, path) = place("model.safetensors");
    // The long one first: nothing of it may be left at the end of the short one.
    for value in [200, 1] {
        save_filled(&path, value).unwrap();
        assert_eq!(filled_with(&path), value);
        assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    }
    save(&path, [("a", filled(7, 10, None))], &SaveOptions::new()).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 1, "durable");
}

/// The source fails as if a disk broke or were full.
#[test]
fn a_source_that_fails_midway_leaves_the_old_file_and_no_litter() {
    let (directory, path) = place("model.safetensors");
    for old in [None, Some(5)] {
        if let Some(value) = old {
            save_filled(&path, value).unwrap();
        }
        for (position, len, fails_after) in
            [(0, 10_000, 0), (1, 10_000, 4_500), (1, 10_000, 10_000), (63, 5_000_000, 4_000_000)]
        {
            let source = |i| {
                let len = if i == position { len } else { 100 };
                filled(9, len, (i == position).then_some(fails_after))
            };
            let tensors = (0..64).map(|i| (format!("t{i:02}"), source(i)));
            let error = refused!(save(&path, tensors, &SaveOptions::new()), ErrorKind::Io(_));
            assert_eq!(
                (error.file(), error.tensor()),
                (path.to_str(), Some(&*format!("t{position:02}")))
            );
            assert!(error.to_string().contains("the source broke"), "{error}");
            match old {
                Some(value) => assert_eq!(filled_with(&path), value),
                None => assert!(!path.exists()),
            }
            assert_eq!(names_in(directory.path()).len(), usize::from(old.is_some()), "litter");
        }
    }
}

/// The system refuses the length, or the source gives fewer bytes than it said. In both cases
/// nothing is left behind.
#[test]
fn a_file_that_no_disk_can_hold() {
    let (directory, path) = place("model.safetensors");
    let promise = filled(1, 1 << (usize::BITS - 2), Some(10));
    let error = refused!(save(&path, [("a", promise)], &SaveOptions::new()), ErrorKind::Io(_));
    assert_eq!(error.file(), path.to_str());
    assert!(names_in(directory.path()).is_empty(), "litter");
}

#[test]
fn missing_directories_are_created_and_a_failed_save_removes_them() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("here")).unwrap();
    let fails = [("a", filled(1, 10, Some(5)))];
    let path = directory.path().join("here/new/deep/model.safetensors");
    let error = save(&path, fails, &SaveOptions::new()).unwrap_err();
    assert_eq!(error.file(), path.to_str());
    assert!(names_in(&directory.path().join("here")).is_empty(), "{error}");
    for options in [SaveOptions::new().durable(false), SaveOptions::new()] {
        save(&path, [("a", filled(1, 10, None))], &options).unwrap();
        assert_eq!(names_in(path.parent().unwrap()), ["model.safetensors"]);
        fs::remove_dir_all(directory.path().join("here/new")).unwrap();
    }
}

#[test]
fn impossible_destinations() {
    let directory = tempdir().unwrap();
    let file = write(directory.path(), "file", "");
    for path in [file.join("model.safetensors"), file.join("missing/model.safetensors")] {
        let error = refused!(save_filled(&path, 1), ErrorKind::Io(_));
        assert_eq!(error.file(), path.to_str());
    }
    let error =
        refused!(save_filled(directory.path(), 1), ErrorKind::NotAFile { found: "a directory" });
    assert_eq!(error.file(), directory.path().to_str());
    assert_eq!(names_in(directory.path()), ["file"]);
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_is_followed() {
        let directory = tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("files")).unwrap();
        fs::create_dir(at("links")).unwrap();
        save_filled(&at("files/abc"), 1).unwrap();
        symlink("../files/abc", at("links/relative")).unwrap();
        symlink(at("files/abc"), at("links/absolute")).unwrap();
        symlink("relative", at("links/chain")).unwrap();
        symlink("../links", at("files/folder")).unwrap();
        symlink("folder/chain", at("files/through a folder")).unwrap();
        for (value, link) in [
            (2, "links/relative"),
            (3, "links/absolute"),
            (4, "links/chain"),
            (5, "files/through a folder"),
        ] {
            save_filled(&at(link), value).unwrap();
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link} is a link still");
            assert!(fs::symlink_metadata(at("files/abc")).unwrap().is_file());
            assert_eq!(filled_with(&at("files/abc")), value, "{link}");
        }
        assert_eq!(names_in(&at("links")), ["absolute", "chain", "relative"]);
        assert_eq!(names_in(&at("files")), ["abc", "folder", "through a folder"]);
    }

    #[test]
    fn a_dangling_link_is_filled() {
        let directory = tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("target", at("link")).unwrap();
        save_filled(&at("link"), 1).unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(filled_with(&at("target")), 1);

        symlink("missing folder/target", at("lost")).unwrap();
        let error = save_filled(&at("lost"), 1).unwrap_err();
        assert_eq!(io_kind(&error), io::ErrorKind::NotFound, "{error}");
        assert_eq!(error.file(), at("lost").to_str());
        assert_eq!(names_in(directory.path()), ["link", "lost", "target"]);
    }

    /// The longest chain is the one that the system follows for any other file.
    #[test]
    fn a_long_chain_of_links() {
        let directory = tempdir().unwrap();
        let at = |i: usize| directory.path().join(format!("{i}"));
        save_filled(&at(0), 1).unwrap();
        for i in 1..=45 {
            symlink(at(i - 1), at(i)).unwrap();
        }
        for i in [1, 10, 39, 40, 41, 45] {
            let opens = fs::File::open(at(i)).is_ok();
            let saved = save_filled(&at(i), i as u8);
            if cfg!(target_os = "linux") {
                assert_eq!(saved.is_ok(), opens, "{i} links");
            }
            if saved.is_ok() {
                assert_eq!(filled_with(&at(0)), i as u8);
            }
        }
        assert_eq!(names_in(directory.path()).len(), 46);
    }

    #[test]
    fn a_circle_of_links_is_an_error() {
        let directory = tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("itself", at("itself")).unwrap();
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        for link in ["itself", "a", "b"] {
            let error = refused!(save_filled(&at(link), 1), ErrorKind::Io(_));
            assert_eq!(error.file(), at(link).to_str());
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert_eq!(names_in(directory.path()), ["a", "b", "itself"]);
    }

    #[test]
    fn only_files_are_replaced() {
        let directory = tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        make_fifo(&at("fifo"));
        fs::create_dir(at("folder")).unwrap();
        symlink("fifo", at("link to fifo")).unwrap();
        symlink("folder", at("link to folder")).unwrap();
        symlink("/dev/full", at("link to device")).unwrap();
        for (name, expected) in [
            ("fifo", "a special file"),
            ("folder", "a directory"),
            ("link to fifo", "a special file"),
            ("link to folder", "a directory"),
            ("link to device", "a special file"),
        ] {
            let path = at(name);
            let error = must_not_hang(move || save_filled(&path, 1)).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::NotAFile { found } if *found == expected),
                "{name}: {error}"
            );
            assert_eq!(error.file(), at(name).to_str());
        }
        assert_eq!(names_in(directory.path()).len(), 5);
    }

    /// Other names of the old file keep the old file: a save makes a new one.
    #[test]
    fn a_hard_link_keeps_the_old_file() {
        let directory = tempdir().unwrap();
        let (path, other) =
            (directory.path().join("model.safetensors"), directory.path().join("other"));
        save_filled(&path, 1).unwrap();
        fs::hard_link(&path, &other).unwrap();
        save_filled(&path, 2).unwrap();
        assert_eq!((filled_with(&path), filled_with(&other)), (2, 1));
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
    }

    #[test]
    fn a_directory_that_may_not_be_written_to() {
        let (directory, path) = place("model.safetensors");
        save_filled(&path, 1).unwrap();
        let set_mode =
            |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o555);
        // An administrator may write everywhere, and then the save must succeed.
        let allowed = fs::File::create(directory.path().join("probe")).is_ok();
        let saved = save_filled(&path, 2);
        set_mode(0o755);
        match saved {
            Ok(()) => assert!(allowed && filled_with(&path) == 2),
            Err(error) => {
                assert!(!allowed && filled_with(&path) == 1);
                assert_eq!(io_kind(&error), io::ErrorKind::PermissionDenied, "{error}");
                assert_eq!(error.file(), path.to_str());
                assert_eq!(names_in(directory.path()), ["model.safetensors"]);
            }
        }
    }
}

#[test]
fn a_file_without_tensors() {
    let (directory, path) = place("empty.safetensors");
    save(&path, [] as [(&str, TensorView<'_>); 0], &SaveOptions::new()).unwrap();
    assert!(Checkpoint::open(directory.path()).unwrap().is_empty());
    assert_eq!(fs::metadata(&path).unwrap().len(), 16);
}
