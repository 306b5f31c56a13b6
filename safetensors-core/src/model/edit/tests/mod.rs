//! Edits that are interrupted at every step; several at once ([`races`]).

#[cfg(unix)]
mod races;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Edit, Edited, is_torn as is_left_torn, restore_header};
use crate::checkpoint::Checkpoint;
use crate::file::io::failpoint::{Interrupted, interrupt_everywhere, without};
use crate::file::io::testing::{names_in, place, save_until_clean};
use crate::file::save::SaveOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorView;
use crate::save;

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
    let options = SaveOptions::new().durable(false).align(4096);
    save(path, tensors, &options.metadata([("k", "v"), ("other", "value")])).unwrap();
    fs::read(path).unwrap()
}

/// The file after the change, and how it was made.
fn changed(change: fn(Edit<'_>) -> Edit<'_>) -> (Vec<u8>, Edited) {
    let (directory, path) = place("model.safetensors");
    create(&path);
    let edit = change(Edit::open(&path).unwrap());
    let outcome = edit.dry_run().unwrap();
    assert_eq!(edit.apply().unwrap(), outcome);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    Checkpoint::open(&path).unwrap().read_all(&Default::default()).unwrap();
    (fs::read(&path).unwrap(), outcome)
}

/// A file, and the bytes that it has before a change.
struct Place {
    directory: TempDir,
    path: PathBuf,
    old: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let (directory, path) = place("model.safetensors");
        Self { old: create(&path), path, directory }
    }

    fn found(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    /// Edits the file in its place, and as a new file.
    fn edit_twice(&self) {
        for (in_place, value) in [(true, "x"), (false, "y")] {
            let edit = Edit::open(&self.path).unwrap().in_place(in_place);
            edit.set_metadata([("k", value)]).apply().unwrap();
        }
    }

    fn names(&self) -> Vec<String> {
        names_in(self.directory.path())
    }
}

#[test]
fn the_old_file_or_the_new_one_wherever_an_edit_is_interrupted() {
    let mut torn = 0;
    for (change, expected, name) in CHANGES {
        let (new, outcome) = changed(change);
        assert_eq!(outcome, expected, "{name}");
        let edit = |place: &Place| -> Result<Edited> { change(Edit::open(&place.path)?).apply() };
        let steps = interrupt_everywhere(Place::new, edit, |place, interrupted, result| {
            let at = &format!("{name}: {interrupted:?}");
            match interrupted {
                None => assert_eq!(result.unwrap(), outcome, "{at}"),
                Some(Interrupted { step, killed: false }) => {
                    check_after_a_failure(&place, step, outcome, result, &new, at);
                }
                Some(Interrupted { killed: true, .. }) => {
                    torn += usize::from(restored_after_a_kill(&place, outcome, &new, at));
                    save_until_clean(place.directory.path(), || place.edit_twice());
                }
            }
            assert_eq!(place.names(), ["model.safetensors"], "{at}");
            Checkpoint::open(&place.path).unwrap().read_all(&Default::default()).unwrap();
        });
        assert!(steps.len() >= 7, "{name}: only {steps:?}");
    }
    assert!(torn >= 3, "the test should have torn headers, and tore {torn}");
}

fn check_after_a_failure(
    place: &Place,
    step: &str,
    outcome: Edited,
    result: Result<Edited>,
    new: &[u8],
    at: &str,
) {
    let found = place.found();
    if step == "remove the backup" {
        // The edit is done. The next edit removes the leftovers.
        result.unwrap();
        assert_eq!(place.names().len(), 2, "{at}");
        assert!(!restore_header(&place.path).unwrap(), "{at}");
        assert!(found == new, "{at}");
    } else if step == "link" {
        // If a file cannot be linked to a name, a copy is used.
        result.unwrap();
        assert!(found == new, "{at}");
    } else {
        let error = result.unwrap_err();
        assert_eq!(error.file(), place.path.to_str(), "{at}");
        let done = outcome == Edited::Rewritten && step == "sync the directory";
        match error.kind() {
            ErrorKind::NotDurable(_) => assert!(done, "{at}: {error}"),
            ErrorKind::Io(_) => assert!(!done, "{at}: {error}"),
            _ => unreachable!("{at}: {error}"),
        }
        assert!(found == if done { new } else { &*place.old }, "{at}");
    }
}

/// Restores the file as the next edit does. Returns `true` if its header was torn.
fn restored_after_a_kill(place: &Place, outcome: Edited, new: &[u8], at: &str) -> bool {
    let (path, found, names) = (&place.path, place.found(), place.names());
    let is_torn = found != place.old && found != new;
    assert!(!is_torn || outcome == Edited::InPlace, "{at}");
    // `is_torn` and opening read-only find this out, and change nothing.
    assert_eq!(is_left_torn(path).unwrap(), is_torn, "{at}");
    let looked = Edit::open_read_only(path).map(|edit| edit.dry_run().is_ok());
    assert!(is_torn || looked.unwrap(), "{at}");
    assert!(place.found() == found && place.names() == names, "{at}");
    assert_eq!(restore_header(path).unwrap(), is_torn, "{at}");
    let restored = place.found();
    assert!(restored == place.old || restored == new && !is_torn, "{at}");
    is_torn
}

#[test]
fn a_read_only_edit_plans_the_same_and_cannot_be_applied() {
    for (change, expected, name) in CHANGES {
        let (directory, path) = place("model.safetensors");
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
        let (directory, path) = place("model.safetensors");
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

    let (_directory, path) = place("model.safetensors");
    let old = create(&path);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&crate::format::header::mark(1), 0).unwrap();
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
    file.write_all_at(&crate::format::header::mark(1), 0).unwrap();
    assert!(matches!(Checkpoint::open(&path).unwrap_err().kind(), ErrorKind::TornHeader));
}
