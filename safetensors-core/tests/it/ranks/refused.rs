//! Saves from ranks that are refused: another plan, other options, other tensors, ambiguous names.

use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankRules, RankSaver};

use super::{fill_of, parts, plan, problem, save_rank};
use crate::support::*;
#[cfg(unix)]
#[test]
fn another_plan_or_other_options_are_refused() {
    let directory = tempdir().unwrap();
    save_rank(directory.path(), (0, 2), "a", 1).unwrap();
    let error = save_rank(directory.path(), (1, 3), "a", 1).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::AttemptDiffers { .. }), "{error}");
    for options in [
        ShardOptions::new().metadata([("epoch", "2")]),
        ShardOptions::new().metadata([("format", "np")]),
        ShardOptions::new().max_shard_size(4.into()),
    ] {
        let parts = parts(&plan(2), 1, 1);
        let saved = RankSaver::new(&plan(2), 1, "a").save(directory.path(), parts, &options);
        let error = saved.unwrap_err();
        assert!(matches!(problem(&error), RankProblem::AttemptDiffers { .. }), "{error}");
    }
    for attempt in ["", "a/b", "..", "a b", "a.b", "é", &"x".repeat(65)] {
        let error = save_rank(directory.path(), (0, 2), attempt, 1).unwrap_err();
        assert!(matches!(problem(&error), RankProblem::BadAttempt { .. }), "{attempt}: {error}");
    }
}

#[test]
fn tensors_that_differ_from_the_plan_are_refused() {
    let directory = tempdir().unwrap();
    let values = [1_u8; 6];
    let rules = RankRules::new().parse_rule("*=split:0").unwrap();
    let plan = rules.plan_tensors([("w", Dtype::U8, vec![4]), ("v", Dtype::U8, vec![2])], 2);
    let plan = plan.unwrap();
    let save = |tensors: &[(&str, TensorView<'_>)]| {
        RankSaver::new(&plan, 1, "a")
            .save(directory.path(), tensors.to_vec(), &ShardOptions::new())
            .unwrap_err()
    };
    let shapes = [[0], [1], [2], [3], [4]];
    let view = |len: usize| TensorView::from_slice(&shapes[len], &values[..len]).unwrap();
    let error = save(&[("w", view(2)), ("x", view(1))]);
    let RankProblem::WrongTensors { rank: 1, missing, extra } = problem(&error) else {
        panic!("{error}")
    };
    assert_eq!((missing.as_slice(), extra.as_slice()), (&["v".into()][..], &["x".into()][..]));
    assert!(matches!(
        problem(&save(&[("w", view(2)), ("v", view(1)), ("w", view(2))])),
        RankProblem::WrongTensors { .. }
    ));
    let error = save(&[("w", view(4)), ("v", view(1))]);
    assert!(matches!(error.kind(), ErrorKind::WrongShape { .. }), "{error}");
    assert_eq!(error.tensor(), Some("w"));
    let halves = TensorView::new(Dtype::U16, &[1], &[1, 0]).unwrap();
    let error = save(&[("w", view(2)), ("v", halves)]);
    assert!(matches!(error.kind(), ErrorKind::WrongDtype { .. }), "{error}");
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_plan_with_ambiguous_names_is_refused() {
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let rules = rules.parse_rule("*=replicate").unwrap();
    let tensors = [("w", Dtype::U8, vec![2]), ("w.part-00001-of-00002", Dtype::U8, vec![1])];
    let plan = rules.plan_tensors(tensors, 2).unwrap();
    let directory = tempdir().unwrap();
    let none: [(&str, TensorView<'_>); 0] = [];
    refused!(
        RankSaver::new(&plan, 0, "a").save(directory.path(), none, &ShardOptions::new()),
        ErrorKind::DuplicateTensor
    );
}

/// A directory that looks like an attempt, and cannot be read, stops no other.
#[test]
fn another_attempt_that_is_malformed() {
    let (directory, other) = place(".model.safetensors.index.json.other.ranks");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("attempt.json"), "{").unwrap();
    for rank in 0..2 {
        save_rank(directory.path(), (rank, 2), "a", 1).unwrap();
    }
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 1);
    assert!(other.exists());
    refused!(save_rank(directory.path(), (0, 2), "other", 1), ErrorKind::Io(_));
    // Reading a FIFO would wait for a writer.
    #[cfg(unix)]
    {
        fs::remove_file(other.join("attempt.json")).unwrap();
        make_fifo(&other.join("attempt.json"));
        let path = directory.path().to_owned();
        let saved = must_not_hang(move || {
            ["b", "other"].map(|name| save_rank(&path, (0, 2), name, 1).map(drop))
        });
        saved[0].as_ref().unwrap();
        refused!(saved[1].as_ref(), ErrorKind::NotAFile { .. });
    }
}
