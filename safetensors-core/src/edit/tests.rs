//! Edits that are interrupted at every step.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use super::{Edit, Edited, is_torn as is_left_torn, recover};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::{crash_at, fail_at};
use crate::save;
use crate::save::SaveOptions;
use crate::tensor::TensorView;

const DATA: [u8; 5000] = [7; 5000];

/// A change, whether the header's place suffices for it, and its name.
type Change = (fn(Edit<'_>) -> Edit<'_>, Edited, &'static str);

const CHANGES: [Change; 8] = [
    (|edit| edit.set_metadata([("format", "pt")]), Edited::InPlace, "set metadata"),
    (|edit| edit.clear_metadata(), Edited::InPlace, "clear metadata"),
    (|edit| edit.rename([("a", "b"), ("b", "a")]), Edited::InPlace, "swap names"),
    (
        |edit| edit.in_place(false).set_metadata([("format", "pt")]),
        Edited::Rewritten,
        "set metadata in a new file",
    ),
    (
        |edit| edit.set_metadata([("long", "x".repeat(5000))]),
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

fn create(path: &Path) -> Vec<u8> {
    let view = |len: &'static [usize; 1]| TensorView::new(Dtype::U8, len, &DATA[..len[0]]).unwrap();
    let tensors = [("a", view(&[5000])), ("b", view(&[3])), ("c", view(&[0]))];
    save(path, tensors, &SaveOptions::new().align(4096).metadata([("k", "v"), ("other", "value")]))
        .unwrap();
    fs::read(path).unwrap()
}

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// What the file is after the change, and how it came about.
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
                // The edit is done; what stayed behind is removed by whoever opens the file next.
                result.unwrap();
                assert_eq!(names_in(directory.path()).len(), 2);
                assert!(!recover(&path).unwrap());
                assert!(found == new, "{name}");
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Io(_)), "{name}: {error}");
                assert_eq!(error.file(), path.to_str());
                let done = outcome == Edited::Rewritten && step == "sync the directory";
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

/// As when the process ends: nothing after the step happens either, and whoever comes next puts
/// things right.
#[test]
fn the_next_one_restores_what_a_crash_left() {
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
            // Who only looks finds it out and leaves everything as it is.
            let names = names_in(directory.path());
            assert_eq!(is_left_torn(&path).unwrap(), is_torn, "{name}: {step}");
            let looked = Edit::open_read_only(&path).map(|edit| edit.dry_run().is_ok());
            assert!(is_torn || looked.unwrap(), "{name}: {step}");
            assert!(
                fs::read(&path).unwrap() == found && names_in(directory.path()) == names,
                "{name}: {step}"
            );
            if n % 2 == 0 {
                assert_eq!(recover(&path).unwrap(), is_torn, "{name}: {step}");
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
fn an_edit_that_only_looks_plans_the_same_and_cannot_be_applied() {
    for (change, expected, name) in CHANGES {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let old = create(&path);
        // Somebody else edits it meanwhile.
        let _locked = Edit::open(&path).unwrap();
        let edit = change(Edit::open_read_only(&path).unwrap());
        assert_eq!(edit.dry_run().unwrap(), expected, "{name}");
        let error = edit.apply().unwrap_err();
        assert!(
            error.to_string().ends_with("the file was opened to be looked at only"),
            "{name}: {error}"
        );
        assert!(fs::read(&path).unwrap() == old, "{name}");
        assert_eq!(names_in(directory.path()), ["model.safetensors"], "{name}");
    }
}

/// A backup that is not this file's, however it came to lie there, changes nothing.
#[test]
fn a_backup_of_another_file_is_ignored() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let backup = directory.path().join(".model.safetensors.header-backup");
    let old = create(&path);
    let header = &old[..4096];
    let altered = |from: &str, to: &str| {
        let at = header.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        [&header[..at], to.as_bytes(), &header[at + from.len()..]].concat()
    };
    let other_value = altered(r#""value""#, r#""eulav""#);
    let third_value = altered(r#""value""#, r#""VALUE""#);
    let other_len = altered("5000", "4000");
    // The file could be a mixture of these two, but for its length.
    let mixture = [&other_len[..], &other_value].concat();
    let shorter = [&8_u64.to_le_bytes()[..], b"{}      "].concat();
    for (name, bytes) in [
        ("another header of this length", [&other_value[..], &third_value].concat()),
        ("of a file of another length", mixture),
        ("of a header of another length", [&shorter[..], &shorter].concat()),
        ("cut off", header[..100].to_vec()),
        ("empty", Vec::new()),
        ("an absurd length", [&[0xff; 8][..], header].concat()),
    ] {
        fs::write(&backup, bytes).unwrap();
        assert!(!recover(&path).unwrap(), "{name}");
        assert!(fs::read(&path).unwrap() == old, "{name}");
    }
    // A header that is no mixture, because a disk did worse than to tear it, is restored too if it
    // cannot be read.
    fs::write(&backup, [header, &other_value].concat()).unwrap();
    let broken = [&old[..100], &[0; 50], &old[150..]].concat();
    fs::write(&path, broken).unwrap();
    assert!(recover(&path).unwrap());
    assert!(fs::read(&path).unwrap() == old);
    // Nor does one keep the next edit from being made.
    fs::write(&backup, "no backup").unwrap();
    assert_eq!(Edit::open(&path).unwrap().clear_metadata().apply().unwrap(), Edited::InPlace);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}
