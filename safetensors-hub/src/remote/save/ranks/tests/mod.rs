//! Ranks that save to a store whose requests fail, whose answers are lost, or that knows no
//! conditions, and others who save meanwhile.

mod attempts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver};
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, Limits, LoadOptions, Result, ShardOptions, TensorBuf,
    TensorView,
};

use crate::remote::save::save_to;
use crate::remote::save::tests::racing::{Racing, failure, now, place, write};

const RANKS: usize = 2;
const INDEX: &str = "m/model.safetensors.index.json";
const SINGLE: &str = "m/model.safetensors";
const WAITING: RankSaved = RankSaved::Waiting { missing: 1 };

fn plan() -> RankPlan {
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let rules = rules.parse_rule("norm=replicate").unwrap();
    let tensors = [("w", Dtype::U8, vec![4, 2]), ("norm", Dtype::U8, vec![3])];
    rules.plan_tensors(tensors, RANKS).unwrap()
}

/// Saves a rank's parts, which are filled with one number.
fn save_rank(
    store: &Arc<impl ObjectStore>,
    rank: usize,
    attempt: &str,
    fill: u8,
) -> Result<RankSaved> {
    let plan = plan();
    let parts = plan.tensors().map(|tensor| {
        let shape = tensor.part(rank).unwrap().shape(tensor.shape()).unwrap();
        let len = shape.iter().product();
        (tensor.name().to_owned(), TensorBuf::from_vec(shape, vec![fill; len]).unwrap())
    });
    let planned = RankSaver::new(&plan, rank, attempt).plan_files(parts, &ShardOptions::new())?;
    super::save(&place(store.clone()), &planned, true)
}

/// Saves whole tensors, filled with one number, to files with at most this many bytes of them.
fn save_whole(store: &Arc<impl ObjectStore>, fill: u8, most: u64) {
    let bytes = [fill; 8];
    let tensors = [
        ("w", TensorView::from_slice(&[4, 2], &bytes).unwrap()),
        ("norm", TensorView::from_slice(&[3], &bytes[..3]).unwrap()),
    ];
    let options = ShardOptions::new().max_shard_size(most.into());
    save_to(&place(store.clone()), tensors, &options).unwrap();
}

/// All objects, by their paths below the directory.
fn objects(store: &InMemory) -> BTreeMap<String, Vec<u8>> {
    let listed: Vec<ObjectMeta> = now(store.list(Some(&Key::from("m"))).try_collect()).unwrap();
    let bytes = |key: &Key| now(now(store.get(key)).unwrap().bytes()).unwrap().to_vec();
    let pair = |meta: &ObjectMeta| (meta.location.as_ref()[2..].to_owned(), bytes(&meta.location));
    listed.iter().map(pair).collect()
}

/// The number that fills all tensors of the checkpoint; 0 if there is none.
fn fill_of(store: &InMemory) -> u8 {
    let mut files = MemoryStore::default();
    for (name, bytes) in objects(store) {
        files.insert(format!("m/{name}"), bytes);
    }
    let opened = Checkpoint::open_whole_in(files, "m", &Limits::default());
    let checkpoint = match opened {
        Err(_) if objects(store).is_empty() => return 0,
        Err(error) if matches!(error.kind(), ErrorKind::NoCheckpoint { .. }) => return 0,
        opened => opened.unwrap(),
    };
    let tensors = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(TensorBuf::bytes).copied().collect();
    assert_eq!(bytes.len(), 11);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture: {bytes:?}");
    bytes[0]
}

/// Checks that nothing is left but the files of the checkpoint and its index.
fn assert_tidy(store: &InMemory) {
    let mut names: Vec<_> = objects(store).into_keys().collect();
    names.sort_by_key(|name| name.contains('/'));
    let [index, one, two] = &names[..] else { panic!("{names:?}") };
    assert_eq!(index, "model.safetensors.index.json");
    assert!(one.contains("/rank-00000.") && two.contains("/rank-00001."), "{names:?}");
}

/// What the directory holds before.
const EARLIER: [fn(&Arc<InMemory>); 4] = [
    |_| {},
    |store| save_whole(store, 1, 100),
    |store| save_whole(store, 1, 8),
    |store| (0..RANKS).for_each(|rank| drop(save_rank(store, rank, "old", 1).unwrap())),
];

fn is_complete(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::AttemptComplete { .. } })
}

fn is_superseded(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::AttemptSuperseded { .. } })
}

/// A store whose request number `n` fails, either before it acts or after it. At each request the
/// checkpoint is whole.
fn failing(inner: &Arc<InMemory>, n: usize, is_lost: bool) -> (Arc<Racing>, Arc<AtomicUsize>) {
    let (earlier, count) = (fill_of(inner), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    let before = move |_: &str, _: usize, store: &InMemory| {
        let fill = fill_of(store);
        assert!(fill == earlier || fill == 2, "{fill} after {earlier}");
        if counted.fetch_add(1, Ordering::SeqCst) == n && !is_lost {
            Err(failure())
        } else {
            Ok(())
        }
    };
    let counted = count.clone();
    let after = move |_: &str, _: usize, _: &InMemory| {
        // Requests of one call follow each other, but for the parts of files of one part.
        if counted.load(Ordering::SeqCst) == n + 1 && is_lost { Err(failure()) } else { Ok(()) }
    };
    (Arc::new(Racing::new(inner.clone(), before, after)), count)
}

/// Whatever request of the last rank fails, the directory opens as the old checkpoint or as the new
/// one, the rank can save again, and the next save leaves nothing else behind.
#[test]
fn a_request_of_the_last_rank_fails() {
    for (earlier, is_lost) in (0..EARLIER.len()).flat_map(|e| [(e, false), (e, true)]) {
        for n in 0.. {
            let store = Arc::new(InMemory::new());
            EARLIER[earlier](&store);
            let old = fill_of(&store);
            assert_eq!(save_rank(&store, 1, "new", 2).unwrap(), WAITING);
            assert_eq!(fill_of(&store), old);
            let (failing, count) = failing(&store, n, is_lost);
            let saved = save_rank(&failing, 0, "new", 2);
            let context = format!("earlier {earlier}, lost {is_lost}, request {n}: {saved:?}");
            let fill = fill_of(&store);
            match &saved {
                Ok(saved) => {
                    assert!(matches!(saved, RankSaved::Complete(_)), "{context}");
                    assert_eq!(fill, 2, "{context}");
                }
                Err(error) if matches!(error.kind(), ErrorKind::LeftBehind(_)) => {
                    assert_eq!(fill, 2, "{context}");
                }
                // Only a lost answer hides that the new checkpoint is in place.
                Err(_) => assert!(fill == old || (fill == 2 && is_lost), "{context}"),
            }
            if saved.is_ok() && count.load(Ordering::SeqCst) <= n {
                assert!(n > 12, "{context}");
                break;
            }
            match save_rank(&store, 0, "new", 2) {
                Ok(saved) => assert!(matches!(saved, RankSaved::Complete(_)), "{context}"),
                Err(error) => assert!(is_complete(&error), "{context}: {error}"),
            }
            assert_eq!(fill_of(&store), 2, "{context}");
            for rank in 0..RANKS {
                save_rank(&store, rank, "next", 3).unwrap();
            }
            assert_eq!(fill_of(&store), 3, "{context}");
            assert_tidy(&store);
        }
    }
}

/// A rank that fails before the last one changes nothing, and can save again.
#[test]
fn a_request_of_the_first_rank_fails() {
    for is_lost in [false, true] {
        for n in 0.. {
            let store = Arc::new(InMemory::new());
            EARLIER[3](&store);
            let (failing, count) = failing(&store, n, is_lost);
            let saved = save_rank(&failing, 0, "new", 2);
            assert_eq!(fill_of(&store), 1);
            if saved.is_ok() && count.load(Ordering::SeqCst) <= n {
                assert!(n > 6, "{n}");
                break;
            }
            // If only the answer to the mark was lost, the rank is done all the same.
            if save_rank(&store, 1, "new", 2).unwrap() == WAITING {
                let saved = save_rank(&store, 0, "new", 2).unwrap();
                assert!(matches!(saved, RankSaved::Complete(_)), "{n}: {saved:?}");
            }
            assert_eq!(fill_of(&store), 2);
            assert_tidy(&store);
        }
    }
}

/// Another program replaces the checkpoint while ranks save: what it has written stays.
#[test]
fn what_others_change_meanwhile_stays() {
    let replaced: [fn(&Arc<InMemory>); 4] = [
        |store| write(store, INDEX, "{}"),
        |store| write(store, SINGLE, "a file"),
        |store| save_whole(store, 4, 100),
        |store| save_whole(store, 4, 8),
    ];
    for (earlier, is_early) in (0..EARLIER.len()).flat_map(|e| [(e, false), (e, true)]) {
        for (number, replace) in replaced.into_iter().enumerate() {
            let store = Arc::new(InMemory::new());
            EARLIER[earlier](&store);
            assert_eq!(save_rank(&store, 0, "new", 2).unwrap(), WAITING);
            // Before the rank begins, or when it has set its mark.
            let saved = if is_early {
                replace(&store);
                save_rank(&store, 1, "new", 2)
            } else {
                let inner = store.clone();
                let marked = move |name: &str, number: usize, _: &InMemory| {
                    if (name, number) == ("put", 1) {
                        let inner = inner.clone();
                        std::thread::spawn(move || replace(&inner)).join().unwrap();
                    }
                    Ok(())
                };
                let racing = Racing::new(store.clone(), |_, _, _| Ok(()), marked);
                save_rank(&Arc::new(racing), 1, "new", 2)
            };
            let error = saved.unwrap_err();
            let context = format!("earlier {earlier}, early {is_early}, {number}: {error}");
            assert!(matches!(error.kind(), ErrorKind::Overtaken { .. }), "{context}");
            match number {
                0 => assert_eq!(objects(&store)["model.safetensors.index.json"], b"{}"),
                1 => assert_eq!(objects(&store)["model.safetensors"], b"a file"),
                _ => assert_eq!(fill_of(&store), 4, "{context}"),
            }
        }
    }
}

/// Another program replaces the index in the last moment, between the look and the write.
#[test]
fn the_index_is_written_on_a_condition() {
    let store = Arc::new(InMemory::new());
    EARLIER[3](&store);
    assert_eq!(save_rank(&store, 0, "new", 2).unwrap(), WAITING);
    let before = |name: &str, number: usize, store: &InMemory| {
        if (name, number) == ("put", 2) {
            write(store, INDEX, "{}");
        }
        Ok(())
    };
    let racing = Arc::new(Racing::new(store.clone(), before, |_, _, _| Ok(())));
    let error = save_rank(&racing, 1, "new", 2).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Overtaken { .. }), "{error}");
    assert_eq!(objects(&store)["model.safetensors.index.json"], b"{}");
}

/// The same rank that comes last a second time, in another process, while it writes the index.
#[test]
fn two_that_come_last_at_the_same_time() {
    let store = Arc::new(InMemory::new());
    EARLIER[2](&store);
    assert_eq!(save_rank(&store, 0, "new", 2).unwrap(), WAITING);
    let inner = store.clone();
    let before = move |name: &str, number: usize, _: &InMemory| {
        if (name, number) == ("put", 2) {
            let inner = inner.clone();
            let other = std::thread::spawn(move || save_rank(&inner, 0, "new", 2));
            assert!(matches!(other.join().unwrap().unwrap(), RankSaved::Complete(_)));
        }
        Ok(())
    };
    let racing = Arc::new(Racing::new(store.clone(), before, |_, _, _| Ok(())));
    let saved = save_rank(&racing, 1, "new", 2).unwrap();
    assert!(matches!(saved, RankSaved::Complete(_)), "{saved:?}");
    assert_eq!(fill_of(&store), 2);
    assert_tidy(&store);
}

/// Each write is repeated, because its answer was lost.
#[test]
fn repeated_writes_are_no_failure() {
    for earlier in EARLIER {
        let store = Arc::new(InMemory::new());
        earlier(&store);
        let mut racing = Racing::new(store.clone(), |_, _, _| Ok(()), |_, _, _| Ok(()));
        racing.repeats_writes = true;
        let racing = Arc::new(racing);
        assert_eq!(save_rank(&racing, 0, "new", 2).unwrap(), WAITING);
        let saved = save_rank(&racing, 1, "new", 2).unwrap();
        assert!(matches!(saved, RankSaved::Complete(_)), "{saved:?}");
        assert_eq!(fill_of(&store), 2);
        assert_tidy(&store);
    }
}

/// A store without conditional writes is asked just before each write. Some leave ETags out of
/// listings.
#[test]
fn stores_that_know_less() {
    for (earlier, hides_etags) in EARLIER.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let store = Arc::new(InMemory::new());
        earlier(&store);
        let mut racing = Racing::new(store.clone(), |_, _, _| Ok(()), |_, _, _| Ok(()));
        racing.hides_etags = hides_etags;
        racing.knows_conditions = false;
        let racing = Arc::new(racing);
        assert_eq!(save_rank(&racing, 1, "new", 2).unwrap(), WAITING);
        save_rank(&racing, 0, "new", 2).unwrap();
        assert_eq!(fill_of(&store), 2);
        assert_tidy(&store);

        assert_eq!(save_rank(&racing, 1, "next", 3).unwrap(), WAITING);
        save_whole(&store, 4, 8);
        let error = save_rank(&racing, 0, "next", 3).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Overtaken { .. }), "{error}");
        assert_eq!(fill_of(&store), 4);
    }
}

/// Objects that no rank has written stay, whatever directory they are in.
#[test]
fn objects_of_others_stay() {
    let store = Arc::new(InMemory::new());
    let names = [
        "m/model.old.ranks/notes.txt",
        "m/model.old.ranks/rank-00000.mine/model.safetensors",
        "m/model.old.ranks/rank-00000.00000000.00000000/notes.safetensors",
        "m/model.a.b.ranks/rank-00000.00000000.00000000/model.safetensors",
        "m/other.old.ranks/attempt.json",
        "m/other.safetensors",
    ];
    for name in names {
        write(&store, name, "mine");
    }
    for attempt in ["old", "new"] {
        for rank in 0..RANKS {
            save_rank(&store, rank, attempt, 2).unwrap();
        }
    }
    save_whole(&store, 3, 100);
    let left: Vec<_> = objects(&store).into_keys().map(|name| format!("m/{name}")).collect();
    let mut expected: Vec<_> = names.map(String::from).into_iter().chain([SINGLE.into()]).collect();
    expected.sort();
    assert_eq!(left, expected);
}

/// A file that is marked as done and is not there is an error, and so is a manifest that no rank of
/// ours has written.
#[test]
fn objects_that_were_removed_or_changed_by_hand() {
    let store = Arc::new(InMemory::new());
    EARLIER[2](&store);
    save_rank(&store, 0, "new", 2).unwrap();
    let names = objects(&store).into_keys();
    let file =
        names.into_iter().find(|name| name.contains("/rank-00000.") && !name.ends_with("done"));
    let key = Key::from(format!("m/{}", file.unwrap()));
    now(store.delete(&key)).unwrap();
    let error = save_rank(&store, 1, "new", 2).unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("rank 0 is done, but its file is not there"), "{shown}");
    assert!(error.file().unwrap().contains("/model.new.ranks/rank-00000."), "{shown}");
    assert_eq!(fill_of(&store), 1);
    let saved = save_rank(&store, 0, "new", 2).unwrap();
    assert!(matches!(saved, RankSaved::Complete(_)), "{saved:?}");
    assert_eq!(fill_of(&store), 2);

    write(&store, "m/model.next.ranks/attempt.json", "{}");
    let error = save_rank(&store, 0, "next", 2).unwrap_err();
    assert!(error.to_string().contains("attempt.json is malformed"), "{error}");
}
