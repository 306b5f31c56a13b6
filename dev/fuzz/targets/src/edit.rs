//! Edits that are interrupted, and the next edit after them.
//!
//! The input describes a file, an edit of it, the step at which the process ends, how far the
//! header was written, and damage to the files next to it. Afterwards the file is the old one, the
//! new one, or as damaged as it was before: never one with yet another header.

use std::fs;
use std::path::Path;

use safetensors_core::edit::{Edit, Edited, is_torn, restore_header};
use safetensors_core::failpoint::{crash_at, fail_at};
use safetensors_core::save::Order;
use safetensors_core::{Result, SafeTensors, SaveOptions, save};

use crate::input::Input;
use crate::scratch;
use crate::tensors::{self, Tensor};

/// The name of the edited file.
const NAME: &str = "model.safetensors";

/// Files next to the edited one, by name.
type Neighbours = Vec<(std::ffi::OsString, Vec<u8>)>;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (options, mut tensors) = old_file(&mut input);
    tensors.dedup_by(|a, b| a.name == b.name);
    let scratch = scratch::directory();
    let calm = scratch.path().join("calm");
    let stormy = scratch.path().join("stormy");
    for directory in [&calm, &stormy] {
        fs::create_dir(directory).unwrap();
        let views = tensors.iter().map(|tensor| (&tensor.name, tensor.view()));
        if save(directory.join(NAME), views, &options).is_err() {
            // A name is a duplicate, or is reserved.
            return;
        }
    }
    let changes = Changes::from_input(&mut input, &tensors);

    let (calm, path) = (calm.join(NAME), stormy.join(NAME));
    let old = fs::read(&calm).unwrap();
    let planned = Edit::open(&calm).map(|edit| changes.made_to(edit)).unwrap().dry_run();
    let outcome = match changes.made_to(Edit::open(&calm).unwrap()).apply() {
        Ok(outcome) => outcome,
        Err(error) => {
            assert_eq!(planned.unwrap_err().to_string(), error.to_string());
            assert_eq!(fs::read(&calm).unwrap(), old);
            return;
        }
    };
    assert_eq!(planned.unwrap(), outcome);
    let new = fs::read(&calm).unwrap();
    changes.are_in(&new, &old);
    assert_eq!(neighbours(&calm), []);

    interrupt(&mut input, &path, &changes, outcome, &old, &new);
}

/// How the old file is saved, and its tensors.
fn old_file(input: &mut Input<'_>) -> (SaveOptions, Vec<Tensor>) {
    let order = if input.flag() { Order::Given } else { Order::Alignment };
    let options = SaveOptions::new()
        .order(order)
        .align(8 << input.below(10))
        .digests(input.below(8) == 7)
        .durable(false)
        .metadata(tensors::metadata(input, 3));
    (options, tensors::some(input, 4))
}

/// The changes of an edit.
struct Changes {
    in_place: bool,
    durable: bool,
    clear: bool,
    set: Vec<(String, String)>,
    unset: Option<String>,
    renamed: Vec<(String, String)>,
    removed: Vec<String>,
    appended: Vec<Tensor>,
}

impl Changes {
    fn from_input(input: &mut Input<'_>, tensors: &[Tensor]) -> Self {
        let flags = input.byte();
        let name = |input: &mut Input<'_>| match tensors {
            [] => input.text(4),
            _ => tensors[input.below(tensors.len())].name.clone(),
        };
        let renamed = (0..input.below(3)).map(|_| (name(input), input.text(8))).collect();
        let removed = (0..input.below(8).saturating_sub(5)).map(|_| name(input)).collect();
        Self {
            in_place: flags & 1 == 0,
            durable: flags & 2 != 0,
            clear: flags & 12 == 12,
            set: tensors::metadata(input, 3),
            unset: (flags & 16 != 0).then(|| "k".into()),
            renamed,
            removed,
            appended: if flags & 96 == 96 { tensors::some(input, 2) } else { Vec::new() },
        }
    }

    fn made_to<'a>(&'a self, edit: Edit<'a>) -> Edit<'a> {
        let edit = if self.clear { edit.clear_metadata() } else { edit };
        edit.in_place(self.in_place)
            .durable(self.durable)
            .remove_metadata(&self.unset)
            .set_metadata(self.set.clone())
            .rename(self.renamed.clone())
            .remove(self.removed.clone())
            .append(self.appended.iter().map(|tensor| (&*tensor.name, tensor.view())))
    }

    /// The new file has the metadata and the tensors that the edit asks for.
    fn are_in(&self, new: &[u8], old: &[u8]) {
        let (new, old) = (SafeTensors::parse(new).unwrap(), SafeTensors::parse(old).unwrap());
        for (key, value) in &self.set {
            let last = self.set.iter().rev().find(|(other, _)| other == key);
            assert!(last.is_none_or(|(_, last)| value != last || new.metadata()[key] == *value));
        }
        let mut expected = old.header().len() + self.appended.len();
        for (name, view) in old.views() {
            let is_removed = self.removed.iter().any(|removed| removed == name);
            expected -= usize::from(is_removed);
            let renamed = self.renamed.iter().find(|(from, _)| from == name);
            let name = renamed.map_or(name, |(_, to)| to);
            if !is_removed {
                assert_eq!(new.view(name).unwrap(), view);
            }
        }
        for tensor in &self.appended {
            assert_eq!(new.view(&tensor.name).unwrap(), tensor.view());
        }
        assert_eq!(new.header().len(), expected);
    }
}

/// Makes the edit with an interruption, damages the files, and starts the next one.
fn interrupt(
    input: &mut Input<'_>,
    path: &Path,
    changes: &Changes,
    outcome: Edited,
    old: &[u8],
    new: &[u8],
) {
    let edit = || -> Result<Edited> { changes.made_to(Edit::open(path)?).apply() };
    let (only_fails, step) = (input.flag(), input.below(16));
    let (result, interrupted) = if only_fails { fail_at(step, edit) } else { crash_at(step, edit) };
    let found = fs::read(path).unwrap();
    let whole = found == old || found == new;
    if result.is_ok() {
        assert!(found == new, "an edit that was made is not in the file");
    }
    if interrupted.is_none() {
        assert!(result.is_ok());
        return;
    }
    assert!(whole || (outcome == Edited::InPlace && !only_fails), "torn: {interrupted:?}");
    assert_eq!(is_torn(path).unwrap(), !whole);

    let mut left = neighbours(path);
    if !whole && input.flag() {
        // So much of the header had been written, and its first bytes as they are.
        let data_start = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
        let written = 8 + input.u64() as usize % (data_start - 7);
        fs::write(path, [&found[..8], &new[8..written], &old[written..]].concat()).unwrap();
    }
    if !left.is_empty() && input.below(4) == 3 {
        return stale(input, path, &left);
    }
    let is_damaged = damage(input, path, &mut left);

    let before = fs::read(path).unwrap();
    let whole = before == old || before == new;
    let said = is_torn(path);
    let restored = restore_header(path);
    let after = fs::read(path).unwrap();
    if is_damaged {
        let untouched = after == before;
        assert!(after == old || after == new || untouched, "yet another header");
        assert!(!(whole && matches!(restored, Ok(true))) || after == old, "a sound file changed");
    } else {
        assert_eq!((said.unwrap(), restored.unwrap()), (!whole, !whole));
        assert!(after == if whole { &*before } else { old }, "not restored");
    }
    // A file that can be edited is complete.
    if let Ok(edit) = Edit::open(path) {
        edit.set_metadata([("next", "edit")]).apply().unwrap();
        let parsed = SafeTensors::parse(fs::read(path).unwrap()).unwrap();
        assert_eq!(parsed.metadata()["next"], "edit");
    } else {
        assert!(is_damaged, "a file that was restored cannot be edited");
    }
}

/// Files of an earlier edit are put next to a newer file, which must stay unchanged.
fn stale(input: &mut Input<'_>, path: &Path, left: &Neighbours) {
    restore_header(path).unwrap();
    let edit = Edit::open(path).unwrap().in_place(input.flag()).durable(false);
    edit.set_metadata(tensors::metadata(input, 2)).set_metadata([("newer", "1")]).apply().unwrap();
    let newer = fs::read(path).unwrap();
    left.iter().for_each(|(name, bytes)| fs::write(path.with_file_name(name), bytes).unwrap());
    assert!(!is_torn(path).unwrap(), "a newer file is called torn");
    assert!(!restore_header(path).unwrap(), "a newer file is called torn");
    assert!(fs::read(path).unwrap() == newer, "a stale backup changed a newer file");
}

/// Damages the files next to the file, and returns whether anything has changed.
fn damage(input: &mut Input<'_>, path: &Path, left: &mut Neighbours) -> bool {
    let mut is_damaged = false;
    for (name, bytes) in left {
        let before = bytes.clone();
        for _ in 0..input.below(4) {
            let at = input.u64() as usize;
            match input.below(6) {
                0 => bytes.truncate(at % (bytes.len() + 1)),
                1 => bytes.extend_from_slice(input.take(at % 64)),
                2 if !bytes.is_empty() => bytes.reverse(),
                _ if !bytes.is_empty() => {
                    let at = at % bytes.len();
                    bytes[at] ^= input.byte();
                }
                _ => {}
            }
        }
        if *bytes != before {
            is_damaged = true;
            fs::write(path.with_file_name(name), bytes).unwrap();
        }
    }
    is_damaged
}

/// Returns the other entries in the directory of a file.
fn neighbours(path: &Path) -> Neighbours {
    let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let mut neighbours: Neighbours = entries
        .filter(|entry| entry.file_name() != NAME)
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    neighbours.sort();
    neighbours
}
