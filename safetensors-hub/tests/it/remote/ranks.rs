//! Saving from ranks to a store: many at once, read back, and beside other saves. What happens if
//! a request fails is tested beside the code.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_core::checkpoint::store::Store;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver, RankTensor};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, LoadOptions, ReadAt, Result, SaveOptions, ShardOptions, TensorBuf,
};
use safetensors_hub::remote::{RemoteOptions, RemoteStore, open};

use super::server::Server;
use super::{pattern, tensors};

pub(crate) fn plan(ranks: usize) -> RankPlan {
    let rules = RankRules::new().parse_rule("*.up=split:0").unwrap();
    let rules = rules.parse_rule("*.down=split:1").unwrap().parse_rule("norm=replicate").unwrap();
    let tensors = [
        ("0.up", Dtype::U8, vec![24, 30]),
        ("0.down", Dtype::U8, vec![30, 24]),
        ("norm", Dtype::U8, vec![33]),
    ];
    rules.plan_tensors(tensors, ranks).unwrap()
}

/// The parts of a rank, filled with one number.
pub(crate) fn parts(plan: &RankPlan, rank: usize, fill: u8) -> Vec<(String, TensorBuf)> {
    let part = |tensor: &RankTensor| {
        let shape = tensor.part(rank).unwrap().shape(tensor.shape()).unwrap();
        let len = shape.iter().product();
        (tensor.name().to_owned(), TensorBuf::from_vec(shape, vec![fill; len]).unwrap())
    };
    plan.tensors().map(part).collect()
}

fn save_filled(
    address: &str,
    (rank, ranks): (usize, usize),
    attempt: &str,
    fill: u8,
) -> Result<RankSaved> {
    let plan = plan(ranks);
    // Two files a rank.
    let options = ShardOptions::new().max_shard_size(200.into());
    RemoteOptions::new().save_rank(
        address,
        &RankSaver::new(&plan, rank, attempt),
        parts(&plan, rank, fill),
        &options,
    )
}

/// The number that fills all tensors.
pub(crate) fn fill_of<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<u8> {
    let tensors = checkpoint.read_all(&LoadOptions::new().threads(1))?;
    let bytes: Vec<u8> = tensors.iter().flat_map(TensorBuf::bytes).copied().collect();
    assert_eq!(bytes.len(), 2 * 720 + 33);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
    Ok(bytes[0])
}

fn names(address: &str) -> Vec<String> {
    let store = RemoteStore::new(address, &RemoteOptions::new()).unwrap();
    let entries = store.list(&store.path()).unwrap().into_iter();
    let mut names: Vec<_> = entries.map(|entry| entry.name).collect();
    names.sort();
    names
}

/// Counts a thread that has ended, also by a panic.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Ranks in several orders and all at once, while a reader opens the checkpoint again and again.
#[test]
fn many_ranks_at_once() {
    const RANKS: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    for address in ["memory:///ranks/many".into(), format!("file://{}/m", dir.path().display())] {
        for turn in 1..=6_u8 {
            let (done, barrier) = (AtomicUsize::new(0), Barrier::new(RANKS + 1));
            let completed = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for position in 0..RANKS {
                    // Each turn begins with another rank.
                    let rank = (position * 5 + usize::from(turn)) % RANKS;
                    let (address, barrier, completed) = (&address, &barrier, &completed);
                    let done = &done;
                    scope.spawn(move || {
                        barrier.wait();
                        let _ended = Ended(done);
                        let attempt = format!("step-{turn}");
                        let saved = save_filled(address, (rank, RANKS), &attempt, turn);
                        let is_complete = matches!(saved, Ok(RankSaved::Complete(_)));
                        completed.fetch_add(usize::from(is_complete), Ordering::SeqCst);
                        saved.unwrap();
                    });
                }
                scope.spawn(|| {
                    barrier.wait();
                    while done.load(Ordering::SeqCst) < RANKS {
                        match open(&address) {
                            // The files of the earlier checkpoint may be removed once it is open.
                            Ok(checkpoint) => match fill_of(&checkpoint) {
                                Ok(fill) => assert!(fill == turn || fill == turn - 1, "{fill}"),
                                Err(error) => {
                                    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
                                }
                            },
                            Err(error) => assert_eq!(turn, 1, "{error}"),
                        }
                    }
                });
            });
            assert!(completed.into_inner() >= 1);
            assert_eq!(fill_of(&open(&address).unwrap()).unwrap(), turn);
        }
        if address.starts_with("memory") {
            let expected = ["model.safetensors.index.json", "model.step-6.ranks"];
            assert_eq!(names(&address), expected);
        }
    }
}

#[test]
fn the_files_are_those_of_a_local_save() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan(3));
    let mut parts: Vec<_> = (0..3).map(|rank| parts(&plan, rank, 0)).collect();
    for (seed, (_, buf)) in parts.iter_mut().flatten().enumerate() {
        let len = buf.bytes().len();
        *buf = TensorBuf::from_vec(buf.shape().to_vec(), pattern(len, seed)).unwrap();
    }
    // The replicated tensor is the same on all ranks.
    let norm = parts[0][2].clone();
    parts.iter_mut().for_each(|parts| parts[2] = norm.clone());
    let options = ShardOptions::new().metadata([("epoch", "3")]);
    let address = "memory:///ranks/local";
    for rank in [2, 0, 1] {
        let tensors = || parts[rank].iter().map(|(name, buf)| (name, buf));
        let local = RankSaver::new(&plan, rank, "a").save(dir.path(), tensors(), &options).unwrap();
        let remote = RemoteOptions::new()
            .save_rank(address, &RankSaver::new(&plan, rank, "a"), tensors(), &options)
            .unwrap();
        match (local, remote) {
            (RankSaved::Complete(local), RankSaved::Complete(remote)) => {
                assert_eq!((rank, local.total_size), (1, remote.total_size));
                for (local, remote) in local.files.iter().zip(&remote.files) {
                    assert!(remote.starts_with("model.a.ranks/rank-"), "{remote}");
                    assert!(remote.ends_with(&format!("/{local}")), "{remote}");
                }
            }
            (local, remote) => assert_eq!(local, remote),
        }
    }
    let (local, remote) = (Checkpoint::open_whole(dir.path()).unwrap(), open(address).unwrap());
    assert_eq!(remote.metadata()["epoch"], "3");
    assert_eq!((local.len(), local.metadata()), (remote.len(), remote.metadata()));
    for (a, b) in local.tensors().zip(remote.tensors()) {
        assert_eq!((a.name(), a.shape()), (b.name(), b.shape()));
        assert!(a.read().unwrap().bytes() == b.read().unwrap().bytes());
    }
    for (rank, expected) in parts.iter().enumerate() {
        let read = plan.read(&remote, rank, &LoadOptions::new()).unwrap();
        for (read, (_, expected)) in read.iter().zip(expected) {
            assert!(read.bytes() == expected.bytes());
        }
    }
}

#[test]
fn ranks_and_other_saves_replace_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file://{}/m", dir.path().display());
    for address in ["memory:///ranks/replace", &file] {
        for (turn, size) in [(1_u8, 10_000_u64), (2, 20), (3, 10_000)] {
            for rank in 0..2 {
                save_filled(address, (rank, 2), &format!("step-{turn}"), turn).unwrap();
            }
            assert_eq!(fill_of(&open(address).unwrap()).unwrap(), turn);
            let tensors = tensors(&[("a", 20), ("b", 20)]);
            let named = tensors.iter().map(|(name, buf)| (name, buf));
            let options = ShardOptions::new().max_shard_size(size.into());
            let mut files =
                RemoteOptions::new().save_sharded(address, named, &options).unwrap().files;
            assert_eq!(open(address).unwrap().len(), 2);
            if files.len() > 1 {
                files.push("model.safetensors.index.json".into());
            }
            assert_eq!(names(address), files);
        }
    }
}

#[test]
fn what_is_refused() {
    let address = "memory:///ranks/refused";
    let problem = |saved: Result<RankSaved>| {
        let error = saved.unwrap_err();
        assert_eq!(error.file(), Some(address));
        let ErrorKind::Ranks { problem } = error.kind() else { panic!("{error}") };
        format!("{problem:?}")
    };
    for name in ["", "a/b", "a.b", "ä", &"x".repeat(65)] {
        let expected = format!("{:?}", RankProblem::BadAttempt { found: name.into() });
        assert_eq!(problem(save_filled(address, (0, 2), name, 1)), expected);
    }
    save_filled(address, (0, 2), "a", 1).unwrap();
    assert!(problem(save_filled(address, (0, 3), "a", 1)).starts_with("AttemptDiffers"));
    save_filled(address, (1, 2), "a", 1).unwrap();
    assert!(problem(save_filled(address, (1, 2), "a", 2)).starts_with("AttemptComplete"));
    assert!(problem(save_filled(address, (0, 3), "a", 2)).starts_with("AttemptComplete"));
    let plan = plan(2);
    let none = Vec::<(String, TensorBuf)>::new();
    let saved = RemoteOptions::new().save_rank(
        address,
        &RankSaver::new(&plan, 0, "b"),
        none,
        &ShardOptions::new(),
    );
    assert!(problem(saved).starts_with("WrongTensors"));
    let parts = parts(&plan, 0, 1);
    let saved = RemoteOptions::new().save_rank(
        address,
        &RankSaver::new(&plan, 2, "b"),
        parts,
        &ShardOptions::new(),
    );
    assert!(saved.is_err_and(|error| matches!(error.kind(), ErrorKind::NoSuchRank { .. })));
    assert_eq!(fill_of(&open(address).unwrap()).unwrap(), 1);
    assert_eq!(names(address), ["model.a.ranks", "model.safetensors.index.json"]);

    let server = Server::new();
    for address in [&*server.address(""), "hf://owner/name"] {
        let error = save_filled(address, (0, 2), "a", 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    }
    assert!(server.take_log().is_empty());
}

/// A tensor without elements, which one of the ranks saves, and a plan without tensors.
#[test]
fn empty_ones() {
    let address = "memory:///ranks/empty";
    let rules = RankRules::new().parse_rule("*=replicate").unwrap();
    let plan = rules.plan_tensors([("w", Dtype::F32, vec![0, 3])], 2).unwrap();
    let (options, remote) = (ShardOptions::new(), RemoteOptions::new().environment(false));
    for rank in 0..2 {
        let empty = TensorBuf::from_vec(vec![0, 3], Vec::<f32>::new()).unwrap();
        let saved =
            remote.save_rank(address, &RankSaver::new(&plan, rank, "a"), [("w", empty)], &options);
        assert_eq!(matches!(saved.unwrap(), RankSaved::Complete(_)), rank == 1);
    }
    assert_eq!(open(address).unwrap().tensor("w").unwrap().shape(), [0, 3]);

    let plan = rules.plan_tensors(Vec::<(&str, Dtype, Vec<usize>)>::new(), 2).unwrap();
    let none = Vec::<(String, TensorBuf)>::new();
    let error = RemoteOptions::new()
        .save_rank(address, &RankSaver::new(&plan, 0, "b"), none, &options)
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadIndex { .. }), "{error}");
    assert_eq!(names(address), ["model.a.ranks", "model.safetensors.index.json"]);
}

#[test]
fn names_are_saved_as_the_index_has_them() {
    let (address, plan) = ("memory:///ranks/named", plan(2));
    let pattern = "mödel ~#%[1]{suffix}.safetensors".parse().unwrap();
    let options = ShardOptions::new().file_pattern(pattern);
    for turn in 1..=2_u8 {
        for rank in 0..2 {
            let (parts, attempt) = (parts(&plan, rank, turn), format!("step-{turn}"));
            RemoteOptions::new()
                .save_rank(address, &RankSaver::new(&plan, rank, &attempt), parts, &options)
                .unwrap();
        }
        assert_eq!(fill_of(&open(address).unwrap()).unwrap(), turn);
        let index = "mödel ~#%[1].safetensors.index.json";
        assert_eq!(names(address), [index.to_owned(), format!("mödel ~#%[1].step-{turn}.ranks")]);
    }
}

/// The directory has a single file that is not the standard one, and another pattern beside it.
#[test]
fn two_patterns_in_one_directory() {
    let address = "memory:///ranks/patterns";
    let plan = plan(2);
    RemoteOptions::new()
        .save(&format!("{address}/other.safetensors"), parts(&plan, 0, 9), &SaveOptions::new())
        .unwrap();
    for turn in 1..=2_u8 {
        for pattern in ["model{suffix}.safetensors", "model.ema{suffix}.safetensors"] {
            let options = ShardOptions::new().file_pattern(pattern.parse().unwrap());
            for rank in 0..2 {
                let (parts, attempt) = (parts(&plan, rank, turn), format!("step-{turn}"));
                RemoteOptions::new()
                    .save_rank(address, &RankSaver::new(&plan, rank, &attempt), parts, &options)
                    .unwrap();
            }
        }
    }
    for index in ["model.safetensors.index.json", "model.ema.safetensors.index.json"] {
        assert_eq!(fill_of(&open(&format!("{address}/{index}")).unwrap()).unwrap(), 2);
    }
    let expected = [
        "model.ema.safetensors.index.json",
        "model.ema.step-2.ranks",
        "model.safetensors.index.json",
        "model.step-2.ranks",
        "other.safetensors",
    ];
    assert_eq!(names(address), expected);
}
