//! Saves that are interrupted at every step.

use std::fs;
use std::io::Write;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use super::AtomicFile;
use crate::checkpoint::Checkpoint;
use crate::file::io::failpoint::{Interrupted, fail_at, interrupt_everywhere, without};
use crate::file::io::testing::{directory_in_memory, names_in, place, save_until_clean};
use crate::file::save::{SaveOptions, StreamWriter, serialize};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorView;
use crate::save;

const DATA: [u8; 64] = [7; 64];

const NAME: &str = "model.safetensors";

fn tensors() -> [(&'static str, TensorView<'static>); 2] {
    let view = |len: &'static [usize; 1]| TensorView::new(Dtype::U8, len, &DATA[..len[0]]).unwrap();
    [("a", view(&[64])), ("b", view(&[3]))]
}

fn streamed(path: &Path) -> Result<()> {
    let specs = tensors().map(|(name, view)| (name, view.dtype(), view.shape()));
    let writer = StreamWriter::create(path, specs, &SaveOptions::new())?;
    writer.tensor("b")?.write_from(&tensors()[1].1)?;
    writer.tensor("a")?.write_bytes_at(32, &DATA[32..])?;
    writer.tensor("a")?.write_bytes_at(0, &DATA[..32])?;
    writer.finish()
}

/// A system with files without a name, and one without.
const SYSTEMS: [fn(&dyn Fn()); 2] = [|f| f(), |f| without("files without a name", f)];

/// Checks the error of a save that fails at a step. Returns whether the new file is in place.
#[track_caller]
fn check_failed(step: &str, result: Result<()>, path: &Path) -> bool {
    // If a file cannot be linked to a name, a copy is used.
    if step == "link" {
        result.unwrap();
        return true;
    }
    let error = result.unwrap_err();
    assert_eq!(error.file(), path.to_str());
    // After the rename the new file is in its place, and only its durability is in doubt.
    let is_new = step == "sync the directory";
    match error.kind() {
        ErrorKind::NotDurable(_) => assert!(is_new, "{step}: {error}"),
        ErrorKind::Io(_) => assert!(!is_new, "{step}: {error}"),
        _ => unreachable!("{step}: {error}"),
    }
    is_new
}

#[test]
fn the_old_file_or_the_new_one_wherever_a_save_is_interrupted() {
    let saved = |path: &Path| save(path, tensors(), &SaveOptions::new());
    let new = serialize(tensors(), &SaveOptions::new()).unwrap();
    let interrupted = |run: &dyn Fn(&Path) -> Result<()>, old: Option<&[u8]>| {
        let setup = || {
            let directory = directory_in_memory();
            if let Some(old) = old {
                fs::write(directory.path().join(NAME), old).unwrap();
            }
            directory
        };
        let act = |directory: &TempDir| run(&directory.path().join(NAME));
        interrupt_everywhere(setup, act, |directory, interrupted, result| {
            let path = directory.path().join(NAME);
            let found = fs::read(&path).ok();
            let is_new = match interrupted {
                Some(Interrupted { step, killed: false }) => check_failed(step, result, &path),
                Some(_) => found.as_ref() == Some(&new),
                None => {
                    result.unwrap();
                    Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
                    true
                }
            };
            let expected = if is_new { Some(&*new) } else { old };
            assert_eq!(found.as_deref(), expected, "{interrupted:?}");
            let is_killed = interrupted.is_some_and(|it| it.killed);
            if is_killed {
                save_until_clean(directory.path(), || saved(&path).unwrap());
            }
            let (names, is_there) = (names_in(directory.path()), is_killed || found.is_some());
            assert_eq!(names.len(), usize::from(is_there), "{interrupted:?}: {names:?}");
        })
    };
    for run in [&saved as &dyn Fn(&Path) -> Result<()>, &streamed] {
        for old in [None, Some(&b"the old file"[..])] {
            for system in SYSTEMS {
                system(&|| {
                    let mut steps = interrupted(run, old);
                    steps.retain(|step| !["link", "permissions"].contains(step));
                    assert_eq!(steps[..2], ["create", "reserve"]);
                    let last = ["sync the file", "rename", "sync the directory"];
                    assert_eq!(steps[steps.len() - 3..], last);
                    let between = &steps[2..steps.len() - 3];
                    // The header, and both tensors together or each piece alone.
                    assert!(between.len() >= 2, "{steps:?}");
                    assert!(between.iter().all(|step| *step == "write"), "{steps:?}");
                });
            }
        }
    }
}

/// Any other file, as [`AtomicFile`] writes it.
#[test]
fn a_file_of_another_kind_is_as_safe() {
    let replaced = |path: &Path| {
        let mut file = AtomicFile::create(path, &SaveOptions::new())?;
        file.write_all(b"new").and_then(|()| file.flush())?;
        file.commit()
    };
    for system in SYSTEMS {
        system(&|| {
            let setup = || {
                let directory = directory_in_memory();
                fs::write(directory.path().join("notes.txt"), b"old").unwrap();
                directory
            };
            let act = |directory: &TempDir| replaced(&directory.path().join("notes.txt"));
            let steps = interrupt_everywhere(setup, act, |directory, interrupted, result| {
                let path = directory.path().join("notes.txt");
                let is_new = match interrupted {
                    Some(Interrupted { step, killed: false }) => check_failed(step, result, &path),
                    _ => fs::read(&path).unwrap() == b"new",
                };
                let expected: &[u8] = if is_new { b"new" } else { b"old" };
                assert_eq!(fs::read(&path).unwrap(), expected, "{interrupted:?}");
                if interrupted.is_some_and(|it| it.killed) {
                    save_until_clean(directory.path(), || replaced(&path).unwrap());
                }
                assert_eq!(names_in(directory.path()), ["notes.txt"], "{interrupted:?}");
            });
            assert!(steps.len() >= 5, "{steps:?}");
        });
    }
}

/// Some file systems refuse to synchronise any directory. The file has its name by then, so the
/// error must not look like a failed save.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_synchronised() {
    use super::atomic::sync_directory;

    sync_directory(Path::new("/proc")).unwrap();
    assert_eq!(
        sync_directory(Path::new("/nowhere at all")).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn a_write_that_failed_can_be_repeated() {
    let (_directory, path) = place("model.safetensors");
    let writer =
        StreamWriter::create(&path, [("a", Dtype::U8, [64])], &SaveOptions::new()).unwrap();
    let a = writer.tensor("a").unwrap();
    a.append(&DATA[..10]).unwrap();
    let (result, failed) = fail_at(0, || a.append(&DATA[10..20]));
    assert_eq!(failed, Some("write"));
    assert_eq!(result.unwrap_err().tensor(), Some("a"));
    assert_eq!(a.written(), 10);
    a.append(&DATA[10..]).unwrap();
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert_eq!(read.bytes(), DATA);
}

#[test]
fn a_save_that_must_not_overwrite_fails_at_each_step_without_a_trace() {
    let options = SaveOptions::new().overwrite(false);
    for system in SYSTEMS {
        system(&|| {
            let act = |directory: &TempDir| save(directory.path().join(NAME), tensors(), &options);
            interrupt_everywhere(
                || tempdir().unwrap(),
                act,
                |directory, interrupted, saved| {
                    let path = directory.path().join(NAME);
                    let is_new = match interrupted {
                        Some(Interrupted { step, killed: false }) => {
                            check_failed(step, saved, &path)
                        }
                        Some(_) => {
                            let save = || save(&path, tensors(), &SaveOptions::new()).unwrap();
                            save_until_clean(directory.path(), save);
                            true
                        }
                        None => path.exists(),
                    };
                    let names = names_in(directory.path());
                    assert_eq!(names.len(), usize::from(is_new), "{interrupted:?}: {names:?}");
                },
            );
            let (directory, path) = place(NAME);
            save(&path, tensors(), &options).unwrap();
            let old = fs::read(&path).unwrap();
            // The file appears when the check at the beginning is done.
            let other = directory.path().join("other");
            let mut file = AtomicFile::create(&other, &options).unwrap();
            file.write_all(&[1]).unwrap();
            fs::hard_link(&path, &other).unwrap();
            let error = file.commit().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
            assert_eq!(fs::read(&other).unwrap(), old);
            // A commit that failed can be repeated, and leaves nothing if it is not.
            fs::remove_file(&other).unwrap();
            file.commit().unwrap();
            assert_eq!(fs::read(&other).unwrap(), [1]);
            fs::remove_file(&other).unwrap();
            let file = AtomicFile::create(&other, &options).unwrap();
            fs::hard_link(&path, &other).unwrap();
            drop({ file }.commit().unwrap_err());
            assert_eq!(names_in(directory.path()), [NAME, "other"]);
        });
    }
}
