//! Another writer at each step of a sharded save, and failures of the store.

pub(super) mod racing;

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, Result};
use safetensors_core::{ErrorKind, ShardOptions, TensorView};
use safetensors_testing::saves::{
    Faults, Place, a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one, open_in,
    save_failing,
};

use super::bucket::BucketDirectory;
use super::save_to;
use crate::remote::RemoteStore;
use racing::{Racing, failure, now, place, text, write};

const INDEX: &str = "m/model.safetensors.index.json";
const FIRST: &str = "m/model-00001-of-00002.safetensors";

/// A directory of a bucket, for the suite that every store passes.
struct Bucket(Arc<InMemory>);

impl Place for Bucket {
    fn save(
        &mut self,
        version: u8,
        options: &ShardOptions,
        faults: &Faults,
    ) -> safetensors_core::Result<()> {
        let mut directory = BucketDirectory::new(&place(self.0.clone()), options.pattern())?;
        save_failing(&mut directory, version, options, faults)
    }

    fn open(&self) -> safetensors_core::Result<BTreeMap<String, Vec<u8>>> {
        open_in(RemoteStore::at(&place(self.0.clone())), "memory:///m")
    }

    fn names(&self) -> Vec<String> {
        let listed = now(self.0.list_with_delimiter(Some(&Key::from("m")))).unwrap();
        let names = listed.objects.iter().map(|meta| meta.location.filename().unwrap().to_owned());
        names.collect()
    }

    fn rename(&mut self, from: &str, to: &str) {
        let key = |name: &str| Key::from(format!("m/{name}"));
        now(self.0.rename(&key(from), &key(to))).unwrap();
    }
}

#[test]
fn a_bucket_conforms() {
    a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one(|| Bucket(Arc::default()));
}

/// Saves two shards, after an earlier save of two shards, while something else happens.
fn save_while(
    before: impl Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync + 'static,
) -> (safetensors_core::Result<()>, Arc<Racing>) {
    save_after(4, false, before)
}

/// Saves two shards, after an earlier save with other shards, while something else happens.
fn save_after(
    earlier_shard_size: u64,
    hides_etags: bool,
    before: impl Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync + 'static,
) -> (safetensors_core::Result<()>, Arc<Racing>) {
    let inner = Arc::new(InMemory::new());
    save_named(&inner, "old", earlier_shard_size).unwrap();
    let mut store = Racing::new(inner, before, |_, _, _| Ok(()));
    store.hides_etags = hides_etags;
    let store = Arc::new(store);
    (save_named(&store, "new", 4), store)
}

/// Saves a tensor of this name and another one, to files with at most this many bytes of them.
fn save_named(
    store: &Arc<impl ObjectStore>,
    name: &str,
    most: u64,
) -> safetensors_core::Result<()> {
    save_copying(store, name, most, u64::MAX)
}

/// Saves to a store that copies at most this many bytes by one request.
fn save_copying(
    store: &Arc<impl ObjectStore>,
    name: &str,
    most: u64,
    most_copied: u64,
) -> safetensors_core::Result<()> {
    let values = [1_u8; 4];
    let tensors = [name, "b"].map(|name| (name, TensorView::from_slice(&[4], &values).unwrap()));
    let options = ShardOptions::new().max_shard_size(most.into());
    let mut place = place(store.clone());
    Arc::get_mut(&mut place.service).unwrap().most_copied = most_copied;
    save_to(&place, tensors, &options).map(drop)
}

/// Returns the number of objects in the directory.
fn count(store: &InMemory) -> usize {
    now(store.list_with_delimiter(Some(&Key::from("m")))).unwrap().objects.len()
}

/// The index, and whether each of its files has the tensors that it says.
fn opens_as(store: &InMemory) -> String {
    let index = text(store, INDEX).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let mut names = Vec::new();
    for (tensor, file) in index["weight_map"].as_object().unwrap() {
        let file = text(store, &format!("m/{}", file.as_str().unwrap())).unwrap();
        let header = safetensors_core::SafeTensors::parse(file).unwrap();
        assert!(header.view(tensor).is_ok(), "{tensor}");
        names.push(tensor.clone());
    }
    names.join(" ")
}

/// The answer to a write is lost, and the write is repeated, or fails.
#[test]
fn a_lost_answer_is_no_failure() {
    for earlier_shard_size in [4, 8] {
        let inner = Arc::new(InMemory::new());
        save_named(&inner, "old", earlier_shard_size).unwrap();
        let mut store = Racing::new(inner, |_, _, _| Ok(()), |_, _, _| Ok(()));
        store.repeats_writes = true;
        save_named(&Arc::new(store), "new", 4).unwrap();

        let inner = Arc::new(InMemory::new());
        save_named(&inner, "old", earlier_shard_size).unwrap();
        let lost = |name: &str, _: usize, _: &InMemory| match name {
            "put" => Err(failure()),
            _ => Ok(()),
        };
        let store = Racing::new(inner.clone(), |_, _, _| Ok(()), lost);
        save_named(&Arc::new(store), "new", 4).unwrap();
        assert_eq!(opens_as(&inner), "b new");
        assert_eq!(count(&inner), 3);
    }
}

/// Another save fails, while this one has copied its files and not yet written its index.
#[test]
fn a_save_that_fails_leaves_the_copies_of_others() {
    let inner = Arc::new(InMemory::new());
    save_named(&inner, "old", 4).unwrap();
    let shared = inner.clone();
    let before = move |name: &str, number: usize, store: &InMemory| {
        if (name, number) == ("put", 1) {
            let second_copy_fails = |name: &str, number: usize, _: &InMemory| match name {
                "copy" if number == 2 => Err(failure()),
                _ => Ok(()),
            };
            let other = Racing::new(shared.clone(), second_copy_fails, |_, _, _| Ok(()));
            let save = move || save_named(&Arc::new(other), "other", 4).unwrap_err();
            std::thread::spawn(save).join().unwrap();
        }
        if name == "complete" {
            let opened = opens_as(store);
            assert!(number > 1 || opened == "b old", "{opened}");
        }
        Ok(())
    };
    save_named(&Arc::new(Racing::new(inner.clone(), before, |_, _, _| Ok(()))), "new", 4).unwrap();
    assert_eq!(opens_as(&inner), "b new");
    assert_eq!(count(&inner), 3);
}

#[test]
fn where_listings_have_no_etags() {
    // The new files replace the old ones, or a single one.
    for earlier_shard_size in [4, 8] {
        let (saved, store) = save_after(earlier_shard_size, true, |_, _, _| Ok(()));
        saved.unwrap();
        assert_eq!(opens_as(&store.inner), "b new");
        assert_eq!(count(&store.inner), 3);
    }
    for (name, number) in [("copy", 1), ("put", 1), ("put", 2)] {
        let (saved, store) = save_after(4, true, move |call, at, store| {
            if (call, at) == (name, number) {
                write(store, INDEX, "{}");
            }
            Ok(())
        });
        let error = saved.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Overtaken { .. }), "{name} {number}: {error}");
        assert_eq!(text(&store.inner, INDEX).unwrap(), b"{}", "what the other has written stays");
    }
}

#[test]
fn another_writer_is_noticed() {
    // The index: while old files are copied, before the first file and the second, and at the end.
    let replaces_index = |name: &'static str, number: usize| {
        move |call: &str, at: usize, store: &InMemory| {
            if (call, at) == (name, number) {
                write(store, INDEX, "{}");
            }
            Ok(())
        }
    };
    for (name, number) in [("copy", 1), ("put", 1), ("head", 1), ("head", 3), ("put", 2)] {
        let (saved, store) = save_while(replaces_index(name, number));
        let error = saved.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Overtaken { .. }), "{name} {number}: {error}");
        assert_eq!(text(&store.inner, INDEX).unwrap(), b"{}", "what the other has written stays");
    }
    // The first file: before the second, before the index, and after it.
    for (name, number) in [("head", 2), ("list", 2), ("list", 3)] {
        let (saved, _) = save_while(move |call, at, store| {
            if (call, at) == (name, number) {
                write(store, FIRST, "another writer's");
            }
            Ok(())
        });
        let error = saved.unwrap_err();
        let ErrorKind::Overtaken { file } = error.kind() else { panic!("{error}") };
        assert!(FIRST.ends_with(file.as_str()), "{name} {number}: {error}");
    }
}

#[test]
fn the_error_warns_that_the_old_single_file_is_still_opened() {
    // The single file cannot be removed, or the last list of files cannot be had.
    for (name, number) in [("delete", 1), ("list", 3)] {
        let (saved, store) = save_after(8, false, move |call, at, _| {
            if (call, at) == (name, number) { Err(failure()) } else { Ok(()) }
        });
        let error = saved.unwrap_err();
        assert_eq!(opens_as(&store.inner), "b new", "the index of the new checkpoint is there");
        assert!(text(&store.inner, "m/model.safetensors").is_some(), "opening prefers this file");
        let ErrorKind::Io(source) = error.kind() else { panic!("{error}") };
        let shown = source.to_string();
        assert!(shown.contains("still opens as the earlier one"), "{shown}");
        assert!(shown.contains("remove model.safetensors"), "{shown}");
    }
}

/// Saves as [`save_while`], to a store that copies only files of a byte.
fn save_without_copies(
    before: impl Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync + 'static,
) -> (safetensors_core::Result<()>, Arc<Racing>) {
    let inner = Arc::new(InMemory::new());
    save_named(&inner, "old", 4).unwrap();
    let store = Arc::new(Racing::new(inner, before, |_, _, _| Ok(())));
    (save_copying(&store, "new", 4, 1), store)
}

#[test]
fn a_file_that_the_store_does_not_copy_is_sent_again() {
    let (saved, store) = save_without_copies(|name, number, store| {
        assert_ne!(name, "copy");
        // Both copies are complete when the first new file takes its place.
        if (name, number) == ("complete", 3) {
            assert_eq!((&*opens_as(store), count(store)), ("b old", 5));
        }
        Ok(())
    });
    saved.unwrap();
    assert_eq!((&*opens_as(&store.inner), count(&store.inner)), ("b new", 3));

    // The second copy fails when it is fetched, sent, and complete.
    for failing in [("get", 3), ("part", 4), ("complete", 2)] {
        let fails = move |name: &str, number: usize, _: &InMemory| {
            if (name, number) == failing { Err(failure()) } else { Ok(()) }
        };
        let (saved, store) = save_without_copies(fails);
        saved.unwrap_err();
        assert_eq!((&*opens_as(&store.inner), count(&store.inner)), ("b old", 3), "{failing:?}");
    }
}

#[test]
fn after_a_failure_the_directory_opens_as_before() {
    let (saved, store) = save_while(|_, _, _| Ok(()));
    saved.unwrap();
    assert_eq!((&*opens_as(&store.inner), count(&store.inner)), ("b new", 3));
    let calls = std::mem::take(&mut *store.hooks.calls.lock().unwrap());
    let index_is_written = calls.iter().rposition(|call| call == "put").unwrap();
    for (position, name) in calls.iter().enumerate() {
        let number = calls[..=position].iter().filter(|call| *call == name).count();
        let name = name.clone();
        let failing = name.clone();
        let (saved, store) =
            save_while(
                move |call, at, _| {
                    if (call, at) == (&*failing, number) { Err(failure()) } else { Ok(()) }
                },
            );
        let error = saved.unwrap_err();
        let expected = if position > index_is_written { "b new" } else { "b old" };
        assert_eq!(opens_as(&store.inner), expected, "{name} {number}: {error}");
        let is_left_behind = matches!(error.kind(), ErrorKind::LeftBehind(_));
        assert_eq!(is_left_behind, position > index_is_written, "{name} {number}: {error}");
        // A write that failed may still reach the store.
        store.deliver_failed_writes();
        assert!(["b old", "b new"].contains(&&*opens_as(&store.inner)), "{name} {number}");
        save_named(&store.inner, "next", 4).unwrap();
        assert_eq!(opens_as(&store.inner), "b next");
        assert_eq!(count(&store.inner), 3, "{name} {number}: what was left is removed");
    }
}
