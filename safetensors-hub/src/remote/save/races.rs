//! Another writer at each step of a sharded save, and failures of the store.

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, Result};
use safetensors_core::{ErrorKind, ShardOptions, TensorView};

use super::racing::{Racing, failure, now, place, text, write};
use super::shards::save;

const INDEX: &str = "m/model.safetensors.index.json";
const FIRST: &str = "m/model-00001-of-00002.safetensors";

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
    let values = [1_u8; 4];
    let options = ShardOptions::new().max_shard_size(4.into());
    let tensors =
        |name| [name, "b"].map(|name| (name, TensorView::from_slice(&[4], &values).unwrap()));
    let earlier = ShardOptions::new().max_shard_size(earlier_shard_size.into());
    save(&place(inner.clone()), tensors("old"), &earlier, || Ok(())).unwrap();
    let mut store = Racing::new(inner, before, |_, _, _| Ok(()));
    store.hides_etags = hides_etags;
    let store = Arc::new(store);
    (save(&place(store.clone()), tensors("new"), &options, || Ok(())).map(drop), store)
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

#[test]
fn without_another_writer() {
    let (saved, store) = save_while(|_, _, _| Ok(()));
    saved.unwrap();
    assert_eq!(opens_as(&store.inner), "b new");
    let left = now(store.inner.list_with_delimiter(Some(&Key::from("m")))).unwrap();
    assert_eq!(left.objects.len(), 3);
}

#[test]
fn where_listings_have_no_etags() {
    // The new files replace the old ones, or a single one.
    for earlier_shard_size in [4, 8] {
        let (saved, store) = save_after(earlier_shard_size, true, |_, _, _| Ok(()));
        saved.unwrap();
        assert_eq!(opens_as(&store.inner), "b new");
        let left = now(store.inner.list_with_delimiter(Some(&Key::from("m")))).unwrap();
        assert_eq!(left.objects.len(), 3);
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
    for (name, number) in [("head", 2), ("list", 3), ("list", 4)] {
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
fn an_error_says_that_the_single_file_still_comes_first() {
    // The single file cannot be removed, or the last list of files cannot be had.
    for (name, number) in [("delete", 1), ("list", 3)] {
        let (saved, store) =
            save_after(8, false, move |call, at, _| match (call, at) == (name, number) {
                true => Err(failure()),
                false => Ok(()),
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

#[test]
fn after_a_failure_the_directory_opens_as_before() {
    let (_, store) = save_while(|_, _, _| Ok(()));
    let calls = std::mem::take(&mut *store.hooks.calls.lock().unwrap());
    let index_is_written = calls.iter().rposition(|call| call == "put").unwrap();
    for (position, name) in calls.iter().enumerate() {
        let number = calls[..=position].iter().filter(|call| *call == name).count();
        let name = name.clone();
        let failing = name.clone();
        let (saved, store) =
            save_while(move |call, at, _| match (call, at) == (&*failing, number) {
                true => Err(failure()),
                false => Ok(()),
            });
        let error = saved.unwrap_err();
        let expected = if position > index_is_written { "b new" } else { "b old" };
        assert_eq!(opens_as(&store.inner), expected, "{name} {number}: {error}");
        let is_left_behind = matches!(error.kind(), ErrorKind::LeftBehind(_));
        assert_eq!(is_left_behind, position > index_is_written, "{name} {number}: {error}");
    }
}
