use std::fs;
use std::path::Path;

use tempfile::tempdir;

use super::AtomicDirectory;
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::{crash_at, fail_at, without};
use crate::io::hidden::previous;
use crate::io::lock::DirectoryLock;
use crate::io::testing::names_in;
use crate::save::{SaveOptions, save};
use crate::tensor::TensorView;

/// Puts a directory of two files in place. Both have the same content.
pub(super) fn put(path: &Path, content: &str) -> Result<()> {
    let new = AtomicDirectory::create(path)?;
    for name in ["a", "b"] {
        fs::write(new.path().join(name), content).unwrap();
    }
    new.commit()
}

/// The content of the directory's two files, which must be the same; `None` if there is none.
pub(super) fn content(path: &Path) -> Option<String> {
    path.exists().then(|| {
        assert_eq!(names_in(path), ["a", "b"]);
        let [a, b] = ["a", "b"].map(|name| fs::read_to_string(path.join(name)).unwrap());
        assert_eq!(a, b);
        a
    })
}

fn on_every_system(test: impl Fn()) {
    test();
    without("exchange of names", test);
}

#[test]
fn a_directory_appears_and_is_replaced_as_a_whole() {
    on_every_system(|| {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        put(&path, "one").unwrap();
        assert_eq!(content(&path).unwrap(), "one");
        put(&path, "two").unwrap();
        assert_eq!(content(&path).unwrap(), "two");
        assert_eq!(names_in(dir.path()), ["epoch"]);
        drop(AtomicDirectory::create(&path).unwrap());
        assert_eq!(names_in(dir.path()), ["epoch"]);
        assert!(AtomicDirectory::remove(&path).unwrap());
        assert!(!AtomicDirectory::remove(&path).unwrap());
        assert!(names_in(dir.path()).is_empty());
    });
}

/// After each failing step the path has the old directory, complete, and nothing else is left.
#[test]
fn a_failure_leaves_the_old_directory() {
    on_every_system(|| {
        for old in [None, Some("old")] {
            for n in 0.. {
                let dir = tempdir().unwrap();
                let path = dir.path().join("epoch");
                if let Some(old) = old {
                    put(&path, old).unwrap();
                }
                let (result, step) = fail_at(n, || put(&path, "new"));
                let Some(step) = step else {
                    result.unwrap();
                    assert!(n > 4, "few steps");
                    break;
                };
                let found = content(&path);
                match result {
                    Err(error) if matches!(error.kind(), ErrorKind::NotDurable(_)) => {
                        assert_eq!(found.as_deref(), Some("new"), "{step}")
                    }
                    Err(_) => assert_eq!(found.as_deref(), old, "{step}"),
                    Ok(()) => assert_eq!(found.as_deref(), Some("new"), "{step}"),
                }
                let left = names_in(dir.path());
                assert!(left.iter().all(|name| name == "epoch"), "{step}: {left:?}");
            }
        }
    });
}

/// A directory that cannot be removed stays. One that is removed is gone, whatever fails then.
#[test]
fn a_removal_that_fails_says_whether_the_directory_is_still_there() {
    let mut not_durable = 0;
    for n in 0.. {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        put(&path, "old").unwrap();
        let (result, step) = fail_at(n, || AtomicDirectory::remove(&path));
        let Some(step) = step else { break };
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::NotDurable(_)) => {
                assert_eq!((content(&path), error.file()), (None, path.to_str()), "{step}");
                not_durable += 1;
            }
            Err(_) => assert_eq!(content(&path).as_deref(), Some("old"), "{step}"),
            Ok(removed) => assert_eq!((removed, content(&path)), (true, None), "{step}"),
        }
        assert!(names_in(dir.path()).iter().all(|name| name == "epoch"), "{step}");
    }
    assert_eq!(not_durable, 1);
}

#[test]
fn a_directory_is_removed_only_if_the_condition_holds() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("epoch");
    assert!(!AtomicDirectory::remove_if(&path, |_| panic!("there is none")).unwrap());
    put(&path, "old").unwrap();
    assert!(!AtomicDirectory::remove_if(&path, |_| false).unwrap());
    let removed = AtomicDirectory::remove_if(&path, |found| {
        assert!(DirectoryLock::try_for(dir.path()).unwrap().is_none());
        content(found).as_deref() == Some("old")
    });
    assert!(removed.unwrap());
    assert!(names_in(dir.path()).is_empty());
}

/// Only the hidden name belongs to an old directory.
#[test]
fn a_directory_that_the_user_calls_previous_is_left_alone() {
    on_every_system(|| {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        let backup = dir.path().join("epoch.previous");
        put(&backup, "backup").unwrap();
        for text in ["one", "two", "three"] {
            put(&path, text).unwrap();
            assert_eq!(content(&backup).as_deref(), Some("backup"));
        }
        assert!(AtomicDirectory::remove(&path).unwrap());
        assert!(!AtomicDirectory::repair(&path).unwrap());
        assert_eq!(names_in(dir.path()), ["epoch.previous"]);
    });
}

/// As if the process was killed at each step, so that nothing is cleaned up.
#[test]
fn a_killed_process_leaves_the_old_directory_or_the_new_one() {
    on_every_system(|| {
        for n in 0.. {
            let dir = tempdir().unwrap();
            let path = dir.path().join("epoch");
            put(&path, "old").unwrap();
            let (_, step) = crash_at(n, || put(&path, "new"));
            let Some(step) = step else { break };
            AtomicDirectory::repair(&path).unwrap();
            let found = content(&path).unwrap();
            assert!(["old", "new"].contains(&&*found), "{step}");
            put(&path, "third").unwrap();
            assert_eq!(content(&path).unwrap(), "third");
            assert_eq!(names_in(dir.path()), ["epoch"], "{step}");
        }
    });
}

/// As if the process was killed just before it removed the old directory.
#[test]
fn a_new_directory_that_is_empty_stays() {
    on_every_system(|| {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        put(&previous(&path), "old").unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!AtomicDirectory::repair(&path).unwrap());
        assert!(names_in(&path).is_empty());
        put(&path, "new").unwrap();
        assert_eq!(content(&path).as_deref(), Some("new"));
        assert_eq!(names_in(dir.path()), ["epoch"]);
        // Nor does the old one come back when the new one is removed.
        put(&previous(&path), "old").unwrap();
        assert!(AtomicDirectory::remove(&path).unwrap());
        assert!(!AtomicDirectory::repair(&path).unwrap());
        assert!(names_in(dir.path()).is_empty());
    });
}

/// Two of three writers began when there was an empty directory.
#[test]
fn without_overwrite_only_an_empty_directory_is_replaced() {
    on_every_system(|| {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        let create = |content: &str| {
            let new = AtomicDirectory::create(&path).unwrap().overwrite(false);
            for name in ["a", "b"] {
                fs::write(new.path().join(name), content).unwrap();
            }
            new
        };
        let nothing = create("one");
        fs::create_dir(&path).unwrap();
        let empty = create("two");
        nothing.commit().unwrap();
        for late in [empty, create("three")] {
            let error = late.commit().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
            assert_eq!(error.file(), path.to_str());
        }
        assert_eq!(content(&path).as_deref(), Some("one"));
        assert_eq!(names_in(dir.path()), ["epoch"]);
    });
}

#[cfg(unix)]
#[test]
fn what_a_killed_process_left_is_removed_and_nothing_else() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("epoch");
    let used = AtomicDirectory::create(&path).unwrap();
    let others = [".epoch.aB3dE.tmp", ".epoch-1.aB3dE6.tmp", "epoch.aB3dE6.tmp"];
    for name in others.into_iter().chain([".epoch.aB3dE6.tmp"]) {
        fs::create_dir_all(dir.path().join(name).join("new")).unwrap();
        fs::write(dir.path().join(name).join(".lock"), "").unwrap();
    }
    AtomicDirectory::clean(&path);
    assert!(used.path().exists());
    drop(used);
    let mut others = others.map(String::from);
    others.sort();
    assert_eq!(names_in(dir.path()), others);
}

#[test]
fn what_is_no_directory_is_refused() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("epoch");
    fs::write(&path, "a file").unwrap();
    for error in
        [AtomicDirectory::create(&path).map(drop), AtomicDirectory::remove(&path).map(drop)]
    {
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    AtomicDirectory::create(dir.path().join("no/parent")).unwrap_err();
    assert_eq!(names_in(dir.path()), ["epoch"]);
}

#[test]
fn errors_name_the_file_at_its_destination() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("epoch");
    let new = AtomicDirectory::create(&path).unwrap();
    fs::create_dir(new.path().join("w")).unwrap();
    let weight = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    let error = save(new.path().join("w"), [("w", weight)], &SaveOptions::new()).unwrap_err();
    assert_eq!(new.locate(error).file(), path.join("w").to_str());
}

#[cfg(unix)]
#[test]
fn the_mode_follows_the_umask_or_the_old_directory() {
    use std::os::unix::fs::PermissionsExt;

    on_every_system(|| {
        let dir = tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (path, plain) = (dir.path().join("epoch"), dir.path().join("plain"));
        fs::create_dir(&plain).unwrap();
        put(&path, "one").unwrap();
        assert_eq!(mode(&path), mode(&plain));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        put(&path, "two").unwrap();
        assert_eq!(mode(&path), 0o700);
    });
}

/// Two writers of one directory, and a reader. Only where names are exchanged does the reader find
/// a directory at all times.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
#[test]
fn a_reader_always_finds_a_directory() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("epoch");
    put(&path, "first").unwrap();
    std::thread::scope(|scope| {
        let writers: Vec<_> = ["one", "two"]
            .map(|content| scope.spawn(|| (0..20).for_each(|_| put(&path, content).unwrap())))
            .into_iter()
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            assert!(path.join("a").exists() || path.join("b").exists());
        }
    });
    content(&path).unwrap();
    assert_eq!(names_in(dir.path()), ["epoch"]);
}
