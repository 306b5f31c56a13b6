//! Saving from ranks: which rank completes it, and the files that stay or are refused.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use safetensors_core::checkpoint::Contention;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankRules, RankSaved, RankSaver};

use super::{fill_of, parts, plan, problem, save_rank};
use crate::support::*;

fn complete(saved: &RankSaved) -> bool {
    matches!(saved, RankSaved::Complete(_))
}

#[test]
fn the_last_of_many_threads_completes_it() {
    const RANKS: usize = 8;
    let directory = tempdir().unwrap();
    let is_done = AtomicBool::new(false);
    for turn in 1..=5_u8 {
        let (completed, barrier) = (AtomicUsize::new(0), Barrier::new(RANKS + 1));
        let previous = turn - 1;
        std::thread::scope(|scope| {
            for rank in 0..RANKS {
                let (completed, barrier) = (&completed, &barrier);
                let (directory, is_done) = (directory.path(), &is_done);
                scope.spawn(move || {
                    barrier.wait();
                    let attempt = format!("step-{turn}");
                    let saved = save_rank(directory, (rank, RANKS), &attempt, turn);
                    is_done.fetch_or(saved.is_err(), Ordering::SeqCst);
                    let saved = saved.unwrap();
                    completed.fetch_add(usize::from(complete(&saved)), Ordering::SeqCst);
                });
            }
            // A reader sees the old checkpoint or the new one at every moment.
            scope.spawn(|| {
                barrier.wait();
                while completed.load(Ordering::SeqCst) == 0 && !is_done.load(Ordering::SeqCst) {
                    match Checkpoint::open(directory.path()) {
                        Ok(checkpoint) => {
                            let fill = fill_of(&checkpoint);
                            assert!(fill == previous || fill == turn, "{fill} of {turn}");
                        }
                        Err(error) => assert_eq!(previous, 0, "{error}"),
                    }
                }
            });
        });
        assert_eq!(completed.into_inner(), 1);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(fill_of(&checkpoint), turn);
        assert_eq!(names_in(directory.path()).len(), RANKS + 1);
    }
}

#[test]
fn each_file_is_an_ordinary_one() {
    let directory = tempdir().unwrap();
    for rank in 0..3 {
        save_rank(directory.path(), (rank, 3), "a", 7).unwrap();
    }
    let names = names_in(directory.path());
    assert_eq!(names.len(), 4);
    let mut tensors = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = fs::read(directory.path().join(name)).unwrap();
        let file = SafeTensors::parse(bytes).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
        tensors.extend(file.views().map(|view| view.0.to_owned()));
    }
    tensors.sort();
    assert_eq!(
        tensors,
        [
            "columns.part-00001-of-00003",
            "columns.part-00002-of-00003",
            "columns.part-00003-of-00003",
            "norm",
            "rows.part-00001-of-00003",
            "rows.part-00002-of-00003",
            "rows.part-00003-of-00003",
        ]
    );
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.len(), 3);
    for part in checkpoint.into_parts().unwrap() {
        assert!(part.audit().unwrap().is_empty());
    }
    let index = fs::read(directory.path().join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["safetensors_bridge.attempt"], "a");
    assert_eq!(index["metadata"]["total_size"], 18 + 14 + 5);
}

#[test]
fn a_rank_that_saves_again_replaces_its_own_parts() {
    let directory = tempdir().unwrap();
    let save = |rank, fill| save_rank(directory.path(), (rank, 3), "a", fill).unwrap();
    assert_eq!(save(0, 9), RankSaved::Waiting { missing: 2 });
    assert_eq!(save(1, 2), RankSaved::Waiting { missing: 1 });
    assert_eq!(save(0, 2), RankSaved::Waiting { missing: 1 });
    assert_eq!(save(1, 2), RankSaved::Waiting { missing: 1 });
    assert!(complete(&save(2, 2)));
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
    // The attempt is complete. Its name is not taken for another save by mistake.
    let error = save_rank(directory.path(), (0, 3), "a", 3).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::AttemptComplete { .. }), "{error}");
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
}

#[test]
fn parts_of_two_attempts_never_mix() {
    let directory = tempdir().unwrap();
    let save = |rank, attempt, fill| save_rank(directory.path(), (rank, 3), attempt, fill);
    // Rank 2 of the first attempt is killed.
    save(0, "first", 1).unwrap();
    save(1, "first", 1).unwrap();
    save(2, "second", 2).unwrap();
    save(1, "second", 2).unwrap();
    assert!(Checkpoint::open(directory.path()).is_err());
    assert!(complete(&save(0, "second", 2).unwrap()));
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
    // The first attempt is gone. A rank of it that comes late waits for the others.
    assert_eq!(names_in(directory.path()).len(), 4);
    assert_eq!(save(2, "first", 1).unwrap(), RankSaved::Waiting { missing: 2 });
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
}

#[test]
fn an_earlier_attempt_that_is_complete_first_leaves_the_later_one() {
    let directory = tempdir().unwrap();
    let save = |rank, attempt, fill| save_rank(directory.path(), (rank, 2), attempt, fill).unwrap();
    save(0, "first", 1);
    save(0, "second", 2);
    assert!(complete(&save(1, "first", 1)));
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 1);
    assert!(complete(&save(1, "second", 2)));
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
}

/// A job is started again with other numbers of ranks, while parts of the first are still there.
#[test]
fn another_number_of_ranks() {
    let directory = tempdir().unwrap();
    let save =
        |rank, attempt: &str, fill| save_rank(directory.path(), rank, attempt, fill).unwrap();
    save((0, 3), "three", 1);
    save((2, 3), "three", 1);
    for (world_size, fill) in [(2, 2), (5, 3), (1, 4), (3, 5)] {
        let attempt = format!("{world_size}-ranks");
        for rank in (0..world_size).rev() {
            assert_eq!(complete(&save((rank, world_size), &attempt, fill)), rank == 0);
        }
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(fill_of(&checkpoint), fill);
        let has_index = world_size > 1;
        assert_eq!(names_in(directory.path()).len(), world_size + usize::from(has_index));
    }
}

/// Each rank runs twice at once, such as one that was believed to be dead.
#[test]
fn the_same_ranks_at_once() {
    const RANKS: usize = 3;
    for turn in 1..=10_u8 {
        let directory = tempdir().unwrap();
        let (completed, barrier) = (AtomicUsize::new(0), Barrier::new(2 * RANKS));
        std::thread::scope(|scope| {
            for i in 0..2 * RANKS {
                let (completed, barrier, directory) = (&completed, &barrier, directory.path());
                scope.spawn(move || {
                    barrier.wait();
                    match save_rank(directory, (i % RANKS, RANKS), "a", turn) {
                        Ok(saved) if complete(&saved) => {
                            _ = completed.fetch_add(1, Ordering::SeqCst)
                        }
                        Ok(_) => {}
                        Err(error) => {
                            let is_complete =
                                matches!(problem(&error), RankProblem::AttemptComplete { .. });
                            assert!(is_complete, "{error}");
                        }
                    }
                });
            }
        });
        assert_eq!(completed.into_inner(), 1);
        assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), turn);
        assert_eq!(names_in(directory.path()).len(), RANKS + 1);
    }
}

/// While rank 0 of the first attempt writes, the second attempt is completed, and rank 1 begins the
/// first one again.
#[test]
fn a_superseded_attempt_is_refused_and_can_restart() {
    let directory = tempdir().unwrap();
    let plan = plan(2);
    let tensors = plan.tensors().map(|tensor| {
        let shape = tensor.part(0).unwrap().shape(tensor.shape()).unwrap();
        (
            tensor.name(),
            Overtaken { directory: directory.path(), shape, runs: AtomicBool::new(false) },
        )
    });
    let tensors: Vec<_> = tensors.collect();
    tensors[0].1.runs.store(true, Ordering::SeqCst);
    let error = RankSaver::new(&plan, 0, "first")
        .save(directory.path(), tensors, &ShardOptions::new())
        .unwrap_err();
    assert!(matches!(problem(&error), RankProblem::AttemptSuperseded { .. }), "{error}");
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
    assert!(complete(&save_rank(directory.path(), (0, 2), "first", 1).unwrap()));
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 1);
}

/// A part of rank 0. While it is written, other ranks save.
#[derive(Debug)]
struct Overtaken<'d> {
    directory: &'d Path,
    shape: Vec<usize>,
    runs: AtomicBool,
}

impl TensorSource for Overtaken<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut safetensors_core::save::Sink<'_>) -> Result<()> {
        if self.runs.swap(false, Ordering::SeqCst) {
            save_rank(self.directory, (0, 2), "second", 2)?;
            save_rank(self.directory, (1, 2), "second", 2)?;
            save_rank(self.directory, (1, 2), "first", 1)?;
        }
        sink(&vec![1; self.shape.iter().product()])
    }
}

/// Ranks wait for one another, so nothing is busy for them.
#[test]
fn contention_has_no_effect() {
    let directory = tempdir().unwrap();
    let options = ShardOptions::new().contention(Contention::Fail);
    let plan = RankRules::new().parse_rule("*=split:0").unwrap();
    let plan = plan.plan_tensors([("w", Dtype::U8, vec![8])], 8).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let (directory, plan, options) = (directory.path(), &plan, &options);
            scope.spawn(move || {
                let part = [("w", TensorBuf::from_vec(vec![1], vec![rank as u8]).unwrap())];
                RankSaver::new(plan, rank, "a").save(directory, part, options).unwrap();
            });
        }
    });
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().shape(), [8]);
}

/// One rank, no tensors, more ranks than parts, files that are divided further.
#[test]
fn unusual_numbers_of_files() {
    let options = ShardOptions::new().metadata([("license", "mit")]).max_shard_size(4.into());
    for (world_size, shape, files) in
        [(1, vec![4], 1), (1, vec![0], 1), (3, vec![1], 1), (2, vec![16], 2), (2, vec![2], 2)]
    {
        let directory = tempdir().unwrap();
        let rules = RankRules::new().parse_rule("*=uneven:0").unwrap();
        let names = ["a", "b"];
        let tensors = names.map(|name| (name, Dtype::U8, shape.clone()));
        let plan = rules.plan_tensors(tensors, world_size).unwrap();
        for rank in 0..world_size {
            let parts = parts(&plan, rank, 3);
            RankSaver::new(&plan, rank, "a").save(directory.path(), parts, &options).unwrap();
        }
        let context = format!("{world_size} ranks, {shape:?}");
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let sources = checkpoint.files()[0].safetensors().source().sources().count();
        assert!(sources >= files, "{context}");
        assert_eq!(checkpoint.metadata()["license"], "mit", "{context}");
        let found: Vec<_> =
            checkpoint.tensors().map(|it| (it.name(), it.shape().to_vec())).collect();
        assert_eq!(found, names.map(|name| (name, shape.clone())), "{context}");
        for rank in 0..world_size {
            let parts = plan.read(&checkpoint, rank, &LoadOptions::new()).unwrap();
            assert!(
                parts.iter().all(|part| part.as_slice::<u8>().unwrap().iter().all(|&v| v == 3))
            );
        }
        // Saving something else removes all of it. Some systems keep the name of a file for as long
        // as it is open.
        drop(checkpoint);
        let one = TensorView::from_slice(&[1], &[1_u8]).unwrap();
        let options = ShardOptions::new().save_options(SaveOptions::new().durable(false));
        save_sharded(directory.path(), [("one", one)], &options).unwrap();
        assert_eq!(names_in(directory.path()), ["model.safetensors"], "{context}");
    }
}

#[cfg(unix)]
#[test]
fn a_read_only_file_and_a_full_disk_leave_the_old_checkpoint() {
    use std::os::unix::fs::PermissionsExt;

    use safetensors_core::ranks::RankTensor;

    let directory = tempdir().unwrap();
    for rank in 0..2 {
        save_rank(directory.path(), (rank, 2), "old", 1).unwrap();
    }
    save_rank(directory.path(), (0, 2), "new", 2).unwrap();
    let file = directory.path().join("model-00001-of-00002.safetensors");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    refused!(save_rank(directory.path(), (1, 2), "new", 2), ErrorKind::ReadOnlyFile);
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(complete(&save_rank(directory.path(), (1, 2), "new", 2).unwrap()));

    // The disk is full while the second rank writes.
    let plan = plan(2);
    let options = ShardOptions::new();
    let full = |tensor: &RankTensor| Full(tensor.part(1).unwrap().shape(tensor.shape()).unwrap());
    let tensors: Vec<_> = plan.tensors().map(|tensor| (tensor.name(), full(tensor))).collect();
    save_rank(directory.path(), (0, 2), "third", 3).unwrap();
    refused!(
        RankSaver::new(&plan, 1, "third").save(directory.path(), tensors, &options),
        ErrorKind::Io(_)
    );
    assert_eq!(fill_of(&Checkpoint::open(directory.path()).unwrap()), 2);
    assert!(complete(&save_rank(directory.path(), (1, 2), "third", 3).unwrap()));
}

/// Stands for a tensor that cannot be written, because the disk is full.
#[derive(Debug)]
#[cfg_attr(not(unix), allow(dead_code, reason = "its test is for Unix"))]
struct Full(Vec<usize>);

impl TensorSource for Full {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.0
    }

    fn write_to(&self, _: &mut safetensors_core::save::Sink<'_>) -> Result<()> {
        Err(ErrorKind::Io(std::io::ErrorKind::StorageFull.into()).into())
    }
}
