//! Saves for ranks by one process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use crate::checkpoint::{SavedShards, ShardOptions, fill_of, save_sharded};
use crate::file::io::failpoint::{Interrupted, interrupt_everywhere};
use crate::file::io::testing::{directory_in_memory, names_in, save_until_clean};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::{Sink, TensorBuf, TensorSource};
use crate::model::rewrite::Rewrite;
use crate::ranks::{RankPlan, RankRules, RankSaver};

/// A matrix of bytes, or one that fails when it is asked for them.
struct Matrix(Option<u8>);

impl TensorSource for Matrix {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &[4, 2]
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let overflow = || Error::from(ErrorKind::ShapeOverflow { shape: vec![4, 2] });
        sink(&[self.0.ok_or_else(overflow)?; 8])
    }
}

fn plan() -> RankPlan {
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let rules = rules.parse_rule("b=replicate").unwrap();
    rules.plan_tensors(["w", "b"].map(|name| (name, Dtype::U8, vec![4, 2])), 2).unwrap()
}

fn save_ranks(to: &Path, fill: u8, is_dcp: bool) -> Result<SavedShards> {
    let rewrite = Rewrite::new().add("w", Matrix(Some(fill)))?.add("b", Matrix(Some(fill)))?;
    let options = ShardOptions::new().dcp(is_dcp).beside("config.json", "new");
    rewrite.save_ranks(to, &plan(), "attempt", &options)
}

fn bytes_in(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| (name.clone(), fs::read(directory.join(name)).unwrap());
    names_in(directory).into_iter().map(read).collect()
}

#[test]
fn files_of_one_process_equal_the_files_of_the_ranks() {
    for is_dcp in [false, true] {
        let directory = tempdir().unwrap();
        let (one, each) = (directory.path().join("one"), directory.path().join("each"));
        let saved = save_ranks(&one, 5, is_dcp).unwrap();
        assert_eq!(saved.files.len(), 2);
        let plan = plan();
        for rank in 0..2 {
            let half = TensorBuf::from_vec(vec![2, 2], vec![5_u8; 4]).unwrap();
            let whole = TensorBuf::from_vec(vec![4, 2], vec![5_u8; 8]).unwrap();
            let saver = RankSaver::new(&plan, rank, "attempt");
            let options = ShardOptions::new().dcp(is_dcp).beside("config.json", "new");
            saver.save(&each, [("w", half), ("b", whole)], &options).unwrap();
        }
        assert_eq!(bytes_in(&one), bytes_in(&each));
        assert_eq!(bytes_in(&one).len(), if is_dcp { 3 } else { 4 });
    }
}

#[test]
fn an_error_in_the_tensors_leaves_nothing() {
    for is_dcp in [false, true] {
        let directory = tempdir().unwrap();
        let rewrite = Rewrite::new().add("w", Matrix(Some(1))).unwrap();
        let rewrite = rewrite.add("b", Matrix(None)).unwrap();
        let options = ShardOptions::new().dcp(is_dcp);
        let new = directory.path().join("new/directory");
        let error = rewrite.save_ranks(new, &plan(), "attempt", &options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShapeOverflow { .. }), "{error}");
        assert!(names_in(directory.path()).is_empty());
    }
}

/// The directory opens as the old checkpoint or the new one. A failure leaves nothing else, and the
/// next save, also one that is not for ranks, removes the leftovers of a kill.
#[test]
fn the_old_checkpoint_or_the_new_one_wherever_a_save_is_interrupted() {
    for has_old in [false, true] {
        let setup = || {
            let directory = directory_in_memory();
            if has_old {
                save_ranks(&directory.path().join("model"), 1, false).unwrap();
            }
            directory
        };
        let act = |directory: &TempDir| save_ranks(&directory.path().join("model"), 2, false);
        let check = |directory: TempDir, interrupted: Option<Interrupted>, result: Result<_>| {
            let model = directory.path().join("model");
            let is_new = model.is_dir() && (!has_old || fill_of(&model, 16) == 2);
            let is_killed = interrupted.is_some_and(|it| it.killed);
            if let (Err(error), false) = (&result, is_killed) {
                let is_in_place =
                    matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_));
                assert_eq!(is_new, is_in_place, "{interrupted:?}: {error}");
                assert!(is_new || has_old || names_in(directory.path()).is_empty());
            }
            if is_killed {
                let save = || save_sharded(&model, [("w", Matrix(Some(3)))], &ShardOptions::new());
                save_until_clean(&model, || _ = save().unwrap());
            } else if model.is_dir() {
                let names = names_in(&model);
                let is_clean = names.iter().all(|name| !name.starts_with('.'));
                assert!(is_clean, "{interrupted:?}: {names:?}");
            }
        };
        let steps = interrupt_everywhere(setup, act, check);
        assert!(steps.len() > 15, "{steps:?}");
    }
}

/// PyTorch's files have no index. Until all are there, the directory does not open. After a failure
/// the file next to them is the earlier one.
#[test]
fn files_of_pytorch_are_all_there_or_none_after_a_failure() {
    for has_old in [false, true] {
        let setup = || {
            let directory = directory_in_memory();
            if has_old {
                fs::create_dir(directory.path().join("model")).unwrap();
                fs::write(directory.path().join("model/config.json"), "old").unwrap();
            }
            directory
        };
        let act = |directory: &TempDir| save_ranks(&directory.path().join("model"), 2, true);
        let check = |directory: TempDir, interrupted: Option<Interrupted>, result: Result<_>| {
            let model = directory.path().join("model");
            match (result, interrupted) {
                (Ok(_), _) => assert_eq!(fill_of(&model, 16), 2),
                (Err(error), _) if matches!(error.kind(), ErrorKind::NotDurable(_)) => {
                    assert_eq!(fill_of(&model, 16), 2, "{error}");
                }
                (Err(_), Some(Interrupted { killed: true, .. })) => {}
                (Err(error), _) if has_old => {
                    let config = fs::read_to_string(model.join("config.json")).unwrap();
                    assert_eq!((&*config, names_in(&model).len()), ("old", 1), "{error}");
                }
                (Err(error), _) => assert!(names_in(directory.path()).is_empty(), "{error}"),
            }
        };
        let steps = interrupt_everywhere(setup, act, check);
        assert!(steps.len() > 15, "{steps:?}");
    }
}
