//! Edits that are interrupted at every step; several at once ([`races`]).

#[cfg(unix)]
mod races;

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use super::{Edit, Edited, is_torn as is_left_torn, restore_header};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::{crash_at, fail_at, without};
use crate::io::testing::names_in;
use crate::save;
use crate::save::SaveOptions;
use crate::tensor::TensorView;

const DATA: [u8; 5000] = [7; 5000];

/// A change, how it has to be made, and its name.
type Change = (fn(Edit<'_>) -> Edit<'_>, Edited, &'static str);

const CHANGES: [Change; 8] = [
    (|edit| edit.in_place(true).set_metadata([("format", "pt")]), Edited::InPlace, "set metadata"),
    (|edit| edit.in_place(true).clear_metadata(), Edited::InPlace, "clear metadata"),
    (|edit| edit.in_place(true).rename([("a", "b"), ("b", "a")]), Edited::InPlace, "swap names"),
    (|edit| edit.set_metadata([("format", "pt")]), Edited::Rewritten, "set metadata in a new file"),
    (
        |edit| edit.in_place(true).set_metadata([("long", "x".repeat(5000))]),
        Edited::Rewritten,
        "set long metadata",
    ),
    (|edit| edit.remove(["a"]), Edited::Rewritten, "remove the first"),
    (|edit| edit.remove(["a", "b", "c"]), Edited::Rewritten, "remove all"),
    (
        |edit| {
            let view = TensorView::new(Dtype::U8, &[5], &DATA[..5]);
            edit.remove(["b"]).append([("b", view.unwrap())]).rename([("a", "d")])
        },
        Edited::Rewritten,
        "replace one",
    ),
];

pub(super) fn create(path: &Path) -> Vec<u8> {
    let view = |len: &'static [usize; 1]| TensorView::new(Dtype::U8, len, &DATA[..len[0]]).unwrap();
    let tensors = [("a", view(&[5000])), ("b", view(&[3])), ("c", view(&[0]))];
    save(path, tensors, &SaveOptions::new().align(4096).metadata([("k", "v"), ("other", "value")]))
        .unwrap();
    fs::read(path).unwrap()
}

/// The file after the change, and how it was made.
fn changed(change: fn(Edit<'_>) -> Edit<'_>) -> (Vec<u8>, Edited) {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    create(&path);
    let edit = change(Edit::open(&path).unwrap());
    let outcome = edit.dry_run().unwrap();
    assert_eq!(edit.apply().unwrap(), outcome);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    Checkpoint::open(&path).unwrap().read_all(&Default::default()).unwrap();
    (fs::read(&path).unwrap(), outcome)
}

#[test]
fn the_old_file_or_the_new_one_wherever_an_edit_is_interrupted() {
    for (change, expected, name) in CHANGES {
        let (new, outcome) = changed(change);
        assert_eq!(outcome, expected, "{name}");
        for n in 0.. {
            let directory = tempdir().unwrap();
            let path = directory.path().join("model.safetensors");
            let old = create(&path);
            let edit = || -> Result<Edited> { change(Edit::open(&path)?).apply() };
            let (result, failed) = fail_at(n, edit);
            let found = fs::read(&path).unwrap();
            let Some(step) = failed else {
                result.unwrap();
                assert!(n >= 7, "{name}: only {n} steps");
                break;
            };
            if step == "remove the backup" {
                // The edit is done. The next edit removes what stayed behind.
                result.unwrap();
                assert_eq!(names_in(directory.path()).len(), 2);
                assert!(!restore_header(&path).unwrap());
                assert!(found == new, "{name}");
            } else if step == "link" {
                // If a file cannot be linked to a name, a copy is used.
                result.unwrap();
                assert!(found == new, "{name}");
            } else {
                let error = result.unwrap_err();
                assert_eq!(error.file(), path.to_str());
                let done = outcome == Edited::Rewritten && step == "sync the directory";
                match error.kind() {
                    ErrorKind::NotDurable(_) => assert!(done, "{name}: {error}"),
                    ErrorKind::Io(_) => assert!(!done, "{name}: {error}"),
                    _ => unreachable!("{name}: {error}"),
                }
                assert!(found == if done { &*new } else { &*old }, "{name}: {step}");
            }
            assert_eq!(
                names_in(directory.path()),
                ["model.safetensors"],
                "{name}: litter at {step}"
            );
            Checkpoint::open(&path).unwrap().read_all(&Default::default()).unwrap();
        }
    }
}

/// As if the process ended: no later step happens either, and the next edit restores the file.
#[test]
fn the_next_edit_restores_what_a_crash_left() {
    let mut torn = 0;
    for (change, _, name) in CHANGES {
        let (new, outcome) = changed(change);
        for n in 0.. {
            let directory = tempdir().unwrap();
            let path = directory.path().join("model.safetensors");
            let old = create(&path);
            let (_, failed) =
                crash_at(n, || -> Result<Edited> { change(Edit::open(&path)?).apply() });
            let Some(step) = failed else { break };
            let found = fs::read(&path).unwrap();
            let is_torn = found != old && found != new;
            torn += usize::from(is_torn);
            assert!(!is_torn || outcome == Edited::InPlace, "{name}: {step}");
            // `is_torn` and opening read-only find this out, and change nothing.
            let names = names_in(directory.path());
            assert_eq!(is_left_torn(&path).unwrap(), is_torn, "{name}: {step}");
            let looked = Edit::open_read_only(&path).map(|edit| edit.dry_run().is_ok());
            assert!(is_torn || looked.unwrap(), "{name}: {step}");
            assert!(
                fs::read(&path).unwrap() == found && names_in(directory.path()) == names,
                "{name}: {step}"
            );
            if n % 2 == 0 {
                assert_eq!(restore_header(&path).unwrap(), is_torn, "{name}: {step}");
            } else {
                Edit::open(&path).unwrap();
            }
            let found = fs::read(&path).unwrap();
            assert!(found == old || found == new && !is_torn, "{name}: {step}");
            assert_eq!(
                names_in(directory.path()),
                ["model.safetensors"],
                "{name}: litter at {step}"
            );
        }
    }
    assert!(torn >= 3, "the test should have torn headers, and tore {torn}");
}

#[test]
fn a_read_only_edit_plans_the_same_and_cannot_be_applied() {
    for (change, expected, name) in CHANGES {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let old = create(&path);
        // Another edit has locked the file.
        let _locked = Edit::open(&path).unwrap();
        let edit = change(Edit::open_read_only(&path).unwrap());
        assert_eq!(edit.dry_run().unwrap(), expected, "{name}");
        let error = edit.apply().unwrap_err();
        assert!(error.to_string().ends_with("the file was opened read-only"), "{name}: {error}");
        assert!(fs::read(&path).unwrap() == old, "{name}");
        assert_eq!(names_in(directory.path()), ["model.safetensors"], "{name}");
    }
}

/// If two writes can have the same time, readers could accept a mixture of two headers.
#[test]
fn where_times_are_coarse_a_new_file_is_written() {
    for (change, outcome, name) in CHANGES {
        let (new, _) = changed(change);
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        create(&path);
        let edit = change(Edit::open(&path).unwrap());
        assert_eq!(edit.dry_run().unwrap(), outcome, "{name}");
        let found = without("fine times", || edit.apply().unwrap());
        assert_eq!(found, Edited::Rewritten, "{name}");
        assert!(fs::read(&path).unwrap() == new, "{name}");
        assert_eq!(names_in(directory.path()), ["model.safetensors"], "{name}");
    }
}

/// A held lock means that an edit is under way. Without a lock, the mark was left by an interrupted
/// edit.
#[cfg(unix)]
#[test]
fn opening_waits_for_an_edit_that_is_under_way() {
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let old = create(&path);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&crate::header::mark(1), 0).unwrap();
    // The machine may be slow once, but not each time.
    let fails_at_once = |_| {
        let begun = Instant::now();
        assert!(matches!(Checkpoint::open(&path).unwrap_err().kind(), ErrorKind::TornHeader));
        begun.elapsed() < Duration::from_millis(900)
    };
    assert!((0..5).any(fails_at_once), "no other process edits");
    file.lock().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| Checkpoint::open(&path).map(|checkpoint| checkpoint.len()));
        std::thread::sleep(Duration::from_millis(100));
        file.write_all_at(&old[..8], 0).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 3);
    });
    file.write_all_at(&crate::header::mark(1), 0).unwrap();
    assert!(matches!(Checkpoint::open(&path).unwrap_err().kind(), ErrorKind::TornHeader));
}
