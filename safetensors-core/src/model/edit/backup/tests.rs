//! Which backup of a header restores which file, and which does not.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use super::Backup;
use crate::checkpoint::Checkpoint;
use crate::file::io::SafeTensors;
use crate::file::io::failpoint::crash_at;
use crate::file::io::testing::{names_in, place};
use crate::file::save::SaveOptions;
use crate::format::error::{ErrorKind, Result};
use crate::format::header::{LENGTH_BYTES, mark};
use crate::format::tensor::TensorView;
use crate::model::audit::Finding;
use crate::model::edit::tests::create;
use crate::model::edit::{Edit, is_torn, restore_header};
use crate::save;

const NAME: &str = "model.safetensors";
const BACKUP: &str = ".model.safetensors.header-backup";

/// An edit of many bytes at both ends of the header.
fn edit(path: &Path) -> Result<()> {
    let long = "x".repeat(2000);
    let edit = Edit::open(path)?.in_place(true);
    edit.set_metadata([("k", "w"), ("zz", &long)]).apply().map(drop)
}

/// A file with a header that an edit left half written, and the backup. Returns its path and its
/// former bytes.
fn torn(directory: &Path) -> (PathBuf, Vec<u8>) {
    let path = directory.join(NAME);
    let old = create(&path);
    for n in 0.. {
        assert!(crash_at(n, || edit(&path)).1.is_some(), "no step tears the header");
        let changed = fs::read(&path).unwrap()[8..] != old[8..];
        if changed && is_torn(&path).unwrap() {
            return (path, old);
        }
        restore_header(&path).unwrap();
        names_in(directory).iter().for_each(|name| fs::remove_file(directory.join(name)).unwrap());
        assert!(create(&path) == old);
    }
    unreachable!()
}

/// Asserts that every function finds the file half written, and none changes it.
#[track_caller]
fn is_found_torn(path: &Path) {
    let before = fs::read(path).unwrap();
    for error in [
        Checkpoint::open(path).unwrap_err(),
        Edit::open(path).unwrap_err(),
        Edit::open_read_only(path).unwrap_err(),
        restore_header(path).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::TornHeader), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    assert!(matches!(SafeTensors::parse(&before).unwrap_err().kind(), ErrorKind::TornHeader));
    assert!(!is_torn(path).unwrap(), "it cannot be restored");
    assert!(fs::read(path).unwrap() == before);
}

#[test]
fn the_next_edit_reports_that_the_header_was_restored() {
    let directory = tempdir().unwrap();
    let (path, old) = torn(directory.path());
    assert!(matches!(Checkpoint::open(&path).unwrap_err().kind(), ErrorKind::TornHeader));
    assert!(!Edit::open_read_only(&path).is_ok_and(|edit| edit.was_restored()));
    let edit = Edit::open(&path).unwrap();
    assert!(edit.was_restored());
    assert!(fs::read(&path).unwrap() == old);
    assert_eq!(names_in(directory.path()), [NAME]);
    drop(edit);
    assert!(!Edit::open(&path).unwrap().was_restored());
}

/// It was moved, and its backup was not.
#[test]
fn a_torn_file_without_its_backup_is_torn() {
    let directory = tempdir().unwrap();
    let (path, _) = torn(directory.path());
    let moved = directory.path().join("moved.safetensors");
    fs::rename(&path, &moved).unwrap();
    is_found_torn(&moved);
    // With it, under its new name, the file can be restored.
    let backup = directory.path().join(".moved.safetensors.header-backup");
    fs::rename(directory.path().join(BACKUP), &backup).unwrap();
    assert!(restore_header(&moved).unwrap());
    Checkpoint::open(&moved).unwrap();
}

/// In a directory that was copied, the backup is another file's.
#[test]
fn a_backup_restores_no_copy() {
    let directory = tempdir().unwrap();
    let (path, _) = torn(directory.path());
    let copy = tempdir().unwrap();
    fs::copy(&path, copy.path().join(NAME)).unwrap();
    fs::copy(directory.path().join(BACKUP), copy.path().join(BACKUP)).unwrap();
    is_found_torn(&copy.path().join(NAME));
    assert_eq!(names_in(copy.path()).len(), 2, "the backup stays");
    assert!(restore_header(&path).unwrap());
}

/// Two edits that were interrupted; the first left the backup.
#[test]
fn the_backup_of_an_earlier_edit_restores_nothing() {
    let directory = tempdir().unwrap();
    let (path, old) = torn(directory.path());
    let backup = fs::read(directory.path().join(BACKUP)).unwrap();
    assert!(restore_header(&path).unwrap());
    assert!(fs::read(&path).unwrap() == old);
    for n in 0.. {
        assert!(crash_at(n, || edit(&path)).1.is_some(), "no step tears the header");
        if is_torn(&path).unwrap() && fs::read(&path).unwrap()[8..] != old[8..] {
            break;
        }
        restore_header(&path).unwrap();
        assert!(fs::read(&path).unwrap() == old);
    }
    fs::write(directory.path().join(BACKUP), backup).unwrap();
    is_found_torn(&path);
}

/// The file is valid and newer than the backup next to it: the same file, of the same length, with
/// a header of the same length that could be a mixture of the two in the backup.
#[test]
fn a_sound_file_is_never_changed() {
    let directory = tempdir().unwrap();
    let (path, old) = torn(directory.path());
    let backup = fs::read(directory.path().join(BACKUP)).unwrap();
    let at = old.windows(3).position(|window| window == b"\"k\"").unwrap();
    let mut newer = old.clone();
    newer[at + 1] = b'K';
    for sound in [&old, &newer] {
        // Written into the same inode.
        let mut file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all(sound).unwrap();
        fs::write(directory.path().join(BACKUP), &backup).unwrap();
        let findings = Checkpoint::open(&path).unwrap().audit().unwrap();
        let expected =
            Finding::HeaderBackup { file: path.clone(), backup: directory.path().join(BACKUP) };
        assert_eq!(findings, [expected]);
        assert!(!is_torn(&path).unwrap());
        assert!(!restore_header(&path).unwrap());
        assert!(fs::read(&path).unwrap() == *sound);
        assert_eq!(names_in(directory.path()), [NAME], "the backup is of no use");
        assert_eq!(Checkpoint::open(&path).unwrap().audit().unwrap(), []);
    }
}

#[test]
fn a_file_that_is_replaced_takes_its_backup_along() {
    let directory = tempdir().unwrap();
    let (path, _) = torn(directory.path());
    assert!(directory.path().join(BACKUP).exists());
    let view = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    save(&path, [("w", view)], &SaveOptions::new()).unwrap();
    assert_eq!(names_in(directory.path()), [NAME]);
    // A file that is no backup by its content stays, under any name.
    fs::write(directory.path().join(BACKUP), "notes of mine").unwrap();
    save(&path, [("w", view)], &SaveOptions::new()).unwrap();
    assert_eq!(names_in(directory.path()).len(), 2);
    assert_eq!(Checkpoint::open(&path).unwrap().audit().unwrap(), []);
    assert!(!restore_header(&path).unwrap());
    edit(&path).unwrap();
}

#[test]
fn a_backup_that_is_damaged_or_no_file_restores_nothing() {
    let directory = tempdir().unwrap();
    let (path, old) = torn(directory.path());
    let at = directory.path().join(BACKUP);
    let backup = fs::read(&at).unwrap();
    for damaged in [&b""[..], b"notes", &backup[..8], &backup[..backup.len() - 1]] {
        fs::write(&at, damaged).unwrap();
        is_found_torn(&path);
    }
    fs::remove_file(&at).unwrap();
    fs::create_dir(&at).unwrap();
    is_found_torn(&path);
    fs::remove_dir(&at).unwrap();
    #[cfg(unix)]
    {
        fs::write(directory.path().join("elsewhere"), &backup).unwrap();
        std::os::unix::fs::symlink("elsewhere", &at).unwrap();
        is_found_torn(&path);
        fs::remove_file(&at).unwrap();
    }
    // Bytes that neither header has.
    fs::write(&at, &backup).unwrap();
    let found = fs::read(&path).unwrap();
    let mut other = found.clone();
    other[100..150].fill(0);
    for (bytes, expected) in [(&other, false), (&found, true)] {
        let mut file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all(bytes).unwrap();
        if expected {
            assert!(restore_header(&path).unwrap());
        } else {
            is_found_torn(&path);
        }
    }
    assert!(fs::read(&path).unwrap() == old);
}

fn backup() -> Backup {
    let header = |fill: u8| [&2000_u64.to_le_bytes()[..], &[fill; 2000]].concat();
    Backup { mark: mark(7), inode: 1, file_len: 5, old: header(b'o'), new: header(b'n') }
}

#[test]
fn a_damaged_backup_is_ignored() {
    let bytes = backup().to_bytes();
    let read = Backup::from_bytes(&bytes).unwrap();
    assert_eq!((read.mark, read.inode, read.file_len), (mark(7), 1, 5));
    assert!(read.old == backup().old && read.new == backup().new);
    for i in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1;
        assert!(Backup::from_bytes(&damaged).is_none(), "byte {i}");
        assert!(Backup::from_bytes(&bytes[..i]).is_none(), "{i} bytes");
    }
}

/// The hash is correct, so that only the length can be wrong.
#[test]
fn an_absurd_length_is_no_backup() {
    for length in [0, 1, 1999, 2001, u64::MAX, u64::MAX / 2] {
        let mut absurd = backup();
        absurd.old[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        assert!(Backup::from_bytes(&absurd.to_bytes()).is_none(), "{length}");
    }
}

#[test]
fn only_headers_that_an_interruption_can_leave_are_accepted() {
    let backup = backup();
    let with = |length: [u8; 8], text: &dyn Fn(usize) -> u8| {
        [&length[..], &(8..2008).map(text).collect::<Vec<_>>()].concat()
    };
    let length = 2000_u64.to_le_bytes();
    // A prefix of the new header, as the end of a process leaves it.
    for k in [8, 9, 511, 512, 513, 1000, 2007, 2008] {
        let torn = |i: usize| if i < k { b'n' } else { b'o' };
        assert!(backup.can_result_from_an_interruption(&with(mark(7), &torn)), "{k}");
        assert!(
            backup.can_result_from_an_interruption(&with(mark(7), &|i| if i < k {
                b'o'
            } else {
                b'n'
            })),
            "{k}"
        );
        // A file without the mark is sound, or not ours.
        assert!(!backup.can_result_from_an_interruption(&with(length, &torn)), "{k}");
        assert!(!backup.can_result_from_an_interruption(&with(mark(8), &torn)), "{k}");
    }
    // Some sectors, as a power cut leaves them.
    assert!(backup.can_result_from_an_interruption(&with(mark(7), &|i| {
        if (i / 512).is_multiple_of(2) { b'n' } else { b'o' }
    })));
    // Half a mark.
    let (old, mark) = (length, mark(7));
    for length in [[&mark[..4], &old[4..]].concat(), [&old[..4], &mark[4..]].concat()] {
        assert!(
            backup.can_result_from_an_interruption(&with(length.try_into().unwrap(), &|_| b'o'))
        );
    }
    // Nothing that writes front to back leaves this.
    for text in [
        &(|i: usize| if i.is_multiple_of(2) { b'n' } else { b'o' }) as &dyn Fn(usize) -> u8,
        &|i| if (100..200).contains(&i) { b'n' } else { b'o' },
        &|i| if i == 1500 { b'x' } else { b'n' },
        &|_| 0,
    ] {
        assert!(!backup.can_result_from_an_interruption(&with(mark, text)));
    }
}

/// Gives a file to another user. Only an administrator can do that; otherwise the test prints that
/// it is skipped.
#[cfg(unix)]
fn give_away(path: &Path) -> bool {
    let given = std::os::unix::fs::chown(path, Some(1234), None);
    if let Err(error) = &given {
        eprintln!("SKIPPED: only an administrator can give a file to another user: {error}");
    }
    given.is_ok()
}

/// A backup that the owner of the file may not use is no help after an interruption.
#[cfg(unix)]
#[test]
fn the_file_of_another_user_is_not_edited_in_place() {
    use crate::file::io::failpoint::{interrupt_everywhere, without};
    use crate::model::edit::Edited;

    let setup = || {
        let (directory, path) = place(NAME);
        create(&path);
        give_away(&path).then_some((directory, path))
    };
    if setup().is_none() {
        return;
    }
    let edit = |place: &Option<(tempfile::TempDir, PathBuf)>| {
        let (_, path) = place.as_ref().unwrap();
        let edit = || Edit::open(path)?.in_place(true).set_metadata([("k", "w")]).apply();
        without("files of other users", edit)
    };
    interrupt_everywhere(setup, edit, |place, interrupted, edited| {
        let (directory, path) = place.unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{interrupted:?}: {e}"));
        if interrupted.is_none() {
            assert_eq!(edited.unwrap(), Edited::Rewritten);
            assert_eq!(checkpoint.metadata()["k"], "w");
            assert_eq!(names_in(directory.path()), [NAME]);
        }
    });
}

#[cfg(unix)]
#[test]
fn a_backup_of_ones_own_restores_the_file_of_another_user() {
    let directory = tempdir().unwrap();
    let (path, old) = torn(directory.path());
    if give_away(&path) {
        assert!(restore_header(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), old);
    }
}
