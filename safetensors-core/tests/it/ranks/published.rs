//! Directories with complete attempts, and attempts that cannot be completed.

use safetensors_core::error::{IndexProblem, RankProblem};
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver};
use safetensors_testing::tensors::unread;

use super::{fill_of, problem, save_rank};
use crate::support::*;

fn is_complete(error: &Error) -> bool {
    matches!(problem(error), RankProblem::AttemptComplete { .. })
}

/// All ranks together save one file, which has no index.
fn replicated(world_size: usize) -> RankPlan {
    let rules = RankRules::new().parse_rule("*=replicate").unwrap();
    rules.plan_tensors([("w", Dtype::U8, vec![2])], world_size).unwrap()
}

fn save_replicated(
    directory: &Path,
    (rank, world_size): (usize, usize),
    attempt: &str,
    fill: u8,
) -> Result<RankSaved> {
    let values = [fill; 2];
    let tensor = [("w", TensorView::from_slice(&[2], &values)?)];
    RankSaver::new(&replicated(world_size), rank, attempt).save(
        directory,
        tensor,
        &ShardOptions::new(),
    )
}

/// A rank that is started again, because it was killed before it could report its end.
#[test]
fn a_rank_that_is_repeated_after_one_file_was_published() {
    let directory = tempdir().unwrap();
    for world_size in [1, 3] {
        let attempt = format!("step-{world_size}");
        for rank in 0..world_size {
            let saved = save_replicated(directory.path(), (rank, world_size), &attempt, 1).unwrap();
            assert_eq!(matches!(saved, RankSaved::Complete(_)), rank == world_size - 1);
        }
        for rank in 0..world_size {
            let error =
                save_replicated(directory.path(), (rank, world_size), &attempt, 2).unwrap_err();
            assert!(is_complete(&error), "{error}");
        }
        assert_eq!(names_in(directory.path()), ["model.safetensors"]);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!((fill_of(&checkpoint), checkpoint.audit().unwrap().len()), (1, 0));
        assert_eq!(checkpoint.metadata()["safetensors_bridge.attempt"], attempt);
    }
    // A copy in another directory is no attempt of that directory.
    let to = tempdir().unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    Rewrite::from_checkpoint(&checkpoint).save_sharded(to.path(), &ShardOptions::new()).unwrap();
    save_replicated(to.path(), (0, 1), "step-3", 2).unwrap();
    assert_eq!(fill_of(&Checkpoint::open(to.path()).unwrap()), 2);
}

/// No attempt can have a greater number, so it counts as one that cannot be read.
#[test]
fn an_attempt_with_the_largest_number_stops_no_other() {
    let (directory, other) = place(".model.safetensors.index.json.other.ranks");
    fs::create_dir(&other).unwrap();
    let manifest = format!(r#"{{"sequence":{},"digest":""}}"#, u64::MAX);
    fs::write(other.join("attempt.json"), manifest).unwrap();
    for rank in 0..2 {
        save_rank(directory.path(), (rank, 2), "a", 1).unwrap();
    }
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 1);
    assert!(other.exists());
    // The last number but one can be followed.
    let manifest = format!(r#"{{"sequence":{},"digest":""}}"#, u64::MAX - 1);
    fs::write(other.join("attempt.json"), manifest).unwrap();
    for rank in 0..2 {
        save_rank(directory.path(), (rank, 2), "b", 2).unwrap();
    }
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
    assert!(!other.exists());
}

/// 1,001 tensors among 1,000 ranks are more parts than an index may name.
#[test]
fn an_index_of_too_many_parts_is_refused_before_writing() {
    let directory = tempdir().unwrap();
    let rules = RankRules::new().parse_rule("*=split:0").unwrap();
    let names: Vec<_> = (0..1_001).map(|i| i.to_string()).collect();
    let tensors = names.iter().map(|name| (name.as_str(), Dtype::U8, vec![1_000]));
    let plan = rules.plan_tensors(tensors, 1_000).unwrap();
    let too_many = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::BadIndex { problem: IndexProblem::TooManyEntries { limit: 1_000_000 } }
        )
    };
    let error = plan.check_index(&ShardOptions::new()).unwrap_err();
    assert!(too_many(&error), "{error}");
    let parts = names.iter().map(|name| (name, unread(1)));
    let error = RankSaver::new(&plan, 0, "a")
        .save(directory.path(), parts, &ShardOptions::new())
        .unwrap_err();
    assert!(too_many(&error) && error.file() == directory.path().to_str(), "{error}");
    let added = names.iter().try_fold(Rewrite::default(), |all: Rewrite<'_>, name| {
        all.add(name.as_str(), unread(1_000))
    });
    let error = added.unwrap().plan_ranks(&rules, 1_000, &SaveOptions::new()).unwrap_err();
    assert!(too_many(&error), "{error}");
    assert!(names_in(directory.path()).is_empty());
}
