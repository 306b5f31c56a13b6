//! Steps of saving from ranks that fail or are the last of a killed process.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use tempfile::TempDir;

use super::{RankPlan, RankRules, RankSaved, RankSaver};
use crate::checkpoint::{Checkpoint, ShardOptions, fill_of, save_sharded};
use crate::file::io::failpoint::{Interrupted, call_at, interrupt_everywhere, without};
use crate::file::io::testing::{directory_in_memory, names_in};
use crate::file::load::LoadOptions;
use crate::file::save::SaveOptions;
use crate::format::error::{ErrorKind, RankProblem, Result};
use crate::format::tensor::{TensorBuf, TensorView};

const RANKS: usize = 2;

fn plan() -> RankPlan {
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let rules = rules.parse_rule("norm=replicate").unwrap();
    let dtype = crate::format::dtype::Dtype::U8;
    rules.plan_tensors([("w", dtype, vec![4, 2]), ("norm", dtype, vec![3])], RANKS).unwrap()
}

fn options() -> ShardOptions {
    ShardOptions::new().save_options(SaveOptions::new().durable(false))
}

/// Saves a rank's parts, which are filled with one number.
fn save_rank(directory: &Path, rank: usize, attempt: &str, fill: u8) -> Result<RankSaved> {
    let plan = plan();
    let parts: Vec<_> = plan
        .tensors()
        .map(|tensor| {
            let shape = tensor.part(rank).unwrap().shape(tensor.shape()).unwrap();
            let len = shape.iter().product();
            (tensor.name().to_owned(), TensorBuf::from_vec(shape, vec![fill; len]).unwrap())
        })
        .collect();
    RankSaver::new(&plan, rank, attempt).save(directory, parts, &options())
}

const COMPLETE: [&str; 3] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
];

/// Prepares a directory with nothing of ours, or with parts of an earlier save.
fn prepare(is_divided: bool) -> TempDir {
    let directory = directory_in_memory();
    if is_divided {
        for rank in 0..RANKS {
            save_rank(directory.path(), rank, "old", 1).unwrap();
        }
    } else {
        let whole = [1_u8; 8];
        let tensors = [
            ("w", TensorView::from_slice(&[4, 2], &whole).unwrap()),
            ("norm", TensorView::from_slice(&[3], &whole[..3]).unwrap()),
        ];
        save_sharded(directory.path(), tensors, &options().max_shard_size(8.into())).unwrap();
    }
    assert_eq!(fill_of(directory.path(), 11), 1);
    directory
}

/// Whatever step of the last rank fails, the directory opens as the old checkpoint or as the new
/// one, and the rank can save again.
#[test]
fn a_failing_or_killed_last_rank_leaves_the_old_or_the_new_checkpoint() {
    for is_divided in [true, false] {
        let setup = || {
            let directory = prepare(is_divided);
            let waiting = RankSaved::Waiting { missing: 1 };
            assert_eq!(save_rank(directory.path(), 1, "new", 2).unwrap(), waiting);
            directory
        };
        let act = |directory: &TempDir| save_rank(directory.path(), 0, "new", 2);
        let check = |directory: TempDir, interrupted: Option<Interrupted>, result: Result<_>| {
            let (path, context) = (directory.path(), format!("{is_divided}, {interrupted:?}"));
            let fill = fill_of(path, 11);
            match &result {
                Ok(saved) => {
                    assert_eq!(fill, 2, "{context}");
                    assert!(matches!(saved, RankSaved::Complete(_)), "{context}");
                }
                Err(error) => {
                    // An error after the new checkpoint is in place shows that.
                    let is_in_place =
                        matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_));
                    assert_eq!(fill, if is_in_place { 2 } else { 1 }, "{context}: {error}");
                }
            }
            match save_rank(path, 0, "new", 2) {
                Ok(RankSaved::Complete(_)) => {}
                Ok(waiting) => {
                    // Without links, a file is moved; its rank saves again.
                    assert_eq!(waiting, RankSaved::Waiting { missing: 1 }, "{context}");
                    save_rank(path, 1, "new", 2).unwrap();
                }
                Err(error) => {
                    let is_complete = matches!(
                        error.kind(),
                        ErrorKind::Ranks { problem: RankProblem::AttemptComplete { .. } }
                    );
                    assert!(is_complete, "{context}: {error}");
                }
            }
            assert_eq!(fill_of(path, 11), 2, "{context}");
            // The next save removes the leftovers.
            for rank in 0..RANKS {
                save_rank(path, rank, "next", 3).unwrap();
            }
            assert_eq!(fill_of(path, 11), 3, "{context}");
            assert_eq!(names_in(path), COMPLETE, "{context}");
        };
        assert!(interrupt_everywhere(setup, act, check).len() > 10);
    }
}

/// A rank that fails before the last one changes nothing, and can save again.
#[test]
fn a_failing_or_killed_first_rank_changes_nothing() {
    let act = |directory: &TempDir| save_rank(directory.path(), 0, "new", 2);
    let check = |directory: TempDir, interrupted: Option<Interrupted>, result: Result<_>| {
        let path = directory.path();
        assert_eq!(fill_of(path, 11), 1);
        let waiting = RankSaved::Waiting { missing: 1 };
        if let Ok(saved) = result {
            // Some steps have a second way, such as a copy for a link.
            assert_eq!(saved, waiting, "{interrupted:?}");
            return;
        }
        assert!(interrupted.is_some());
        // The other one comes first now.
        assert_eq!(save_rank(path, 1, "new", 2).unwrap(), waiting, "{interrupted:?}");
        assert!(matches!(save_rank(path, 0, "new", 2).unwrap(), RankSaved::Complete(_)));
        assert_eq!(fill_of(path, 11), 2);
        assert_eq!(names_in(path), COMPLETE);
    };
    assert!(interrupt_everywhere(|| prepare(true), act, check).len() > 3);
}

/// A rank that is killed while it removes the attempt leaves nothing else behind.
#[test]
fn the_attempt_is_removed_last() {
    for n in 0.. {
        let directory = prepare(true);
        let path = directory.path().to_owned();
        save_rank(&path, 1, "new", 2).unwrap();
        let names = Rc::new(RefCell::new(Vec::new()));
        let (seen, at) = (names.clone(), path.clone());
        let call = move || *seen.borrow_mut() = names_in(&at);
        let (saved, step) = call_at(n, call, || save_rank(&path, 0, "new", 2));
        saved.unwrap();
        assert!(step.is_some(), "no attempt was removed");
        if step == Some("remove an attempt") {
            let attempt = ".model.safetensors.index.json.new.ranks";
            names.borrow_mut().retain(|name| *name != ".safetensors.lock");
            assert_eq!(*names.borrow(), [&[attempt], &COMPLETE[..]].concat());
            break;
        }
    }
}

/// A rank that runs twice is slower than its twin, with which the attempt was complete.
#[test]
fn a_rank_does_not_bring_an_attempt_back() {
    let mut tried = 0;
    for n in 0.. {
        let directory = prepare(true);
        let attempt = directory.path().join(".model.safetensors.index.json.new.ranks");
        let removed = attempt.clone();
        let call = move || _ = fs::remove_dir_all(&removed);
        let (saved, step) = call_at(n, call, || save_rank(directory.path(), 0, "new", 2));
        match step {
            Some("create" | "write a file of a rank") => {
                saved.unwrap_err();
                assert!(!attempt.exists(), "{n}");
                tried += 1;
            }
            Some(_) => {}
            None => break,
        }
    }
    // The manifest, the rank's directory, and a file in it.
    assert!(tried >= 4, "{tried}");
}

/// Windows renames no directory in which another rank has a file open. Whenever the removal of an
/// older attempt is interrupted, its ranks can go on with it.
#[test]
fn attempts_that_cannot_be_renamed() {
    let setup = || {
        let directory = prepare(true);
        save_rank(directory.path(), 1, "older", 4).unwrap();
        save_rank(directory.path(), 1, "new", 2).unwrap();
        directory
    };
    let act = |directory: &TempDir| {
        without("renaming of directories", || save_rank(directory.path(), 0, "new", 2))
    };
    let check = |directory: TempDir, interrupted: Option<Interrupted>, saved: Result<_>| {
        let path = directory.path();
        if interrupted.is_none() {
            assert!(matches!(saved, Ok(RankSaved::Complete(_))), "{saved:?}");
            assert_eq!(fill_of(path, 11), 2);
            assert_eq!(names_in(path), COMPLETE);
            return;
        }
        let is_gone = !path.join(".model.safetensors.index.json.older.ranks").exists();
        if matches!(save_rank(path, 0, "older", 4).unwrap(), RankSaved::Waiting { .. }) {
            assert!(is_gone || saved.is_err(), "{interrupted:?}");
            assert!(matches!(save_rank(path, 1, "older", 4).unwrap(), RankSaved::Complete(_)));
        }
        assert_eq!(fill_of(path, 11), 4, "{interrupted:?}");
    };
    interrupt_everywhere(setup, act, check);
}

#[test]
fn ranks_save_into_a_directory_without_locks() {
    let directory = prepare(true);
    without("locks", || {
        save_rank(directory.path(), 1, "new", 2).unwrap();
        save_rank(directory.path(), 0, "new", 2).unwrap();
    });
    assert_eq!(fill_of(directory.path(), 11), 2);
}

/// The parts of a rank are read back by the plan that saved them.
#[test]
fn parts_are_read_back() {
    let directory = prepare(true);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    for rank in 0..RANKS {
        let parts = plan().read(&checkpoint, rank, &LoadOptions::new()).unwrap();
        let shapes: Vec<_> = parts.iter().map(|part| part.shape().to_vec()).collect();
        assert_eq!(shapes, [vec![2, 2], vec![3]]);
    }
}
