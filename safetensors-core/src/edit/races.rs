//! A sharded save that meets an edit of one of the old shards.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::Edit;
use crate::checkpoint::{Checkpoint, Contention, ShardOptions, save_sharded};
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::call_at;
use crate::save::SaveOptions;
use crate::tensor::TensorView;

/// Saves two shards whose tensors hold the version.
fn save_version(directory: &Path, version: u8) -> Result<()> {
    let bytes = [version];
    let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &bytes).unwrap()));
    let options = ShardOptions::new().max_shard_size(1.into()).contention(Contention::Fail);
    save_sharded(directory, tensors, &options.save_options(SaveOptions::new().durable(false)))
        .map(drop)
}

fn versions(directory: &Path) -> [u8; 2] {
    let checkpoint = Checkpoint::open(directory).unwrap();
    ["a", "b"].map(|name| checkpoint.tensor(name).unwrap().read().unwrap().bytes()[0])
}

/// An edit that puts its file in the place of a shard must not do so after the shard was replaced:
/// the directory would have one shard of each checkpoint.
#[cfg(unix)]
#[test]
fn a_shard_is_edited_or_replaced_and_never_both() {
    let (mut edited, mut replaced) = (0, 0);
    for in_place in [false, true] {
        for n in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_owned();
            save_version(&path, 1).unwrap();
            let edit = Edit::open(path.join("model-00001-of-00002.safetensors")).unwrap();
            let edit = edit.in_place(in_place).set_metadata([("k", "v")]);
            let saved = Arc::new(Mutex::new(None));
            let (told, other) = (saved.clone(), path.clone());
            // The save runs in a thread of its own, whose steps are not counted.
            let save = move || {
                let saved = std::thread::spawn(move || save_version(&other, 2)).join().unwrap();
                *told.lock().unwrap() = Some(saved);
            };
            let (applied, reached) = call_at(n, save, || edit.apply());
            let saved = saved.lock().unwrap().take();
            let found = versions(&path);
            assert!(found == [1; 2] || found == [2; 2], "step {n}: {found:?}");
            match saved {
                Some(Ok(())) => {
                    assert_eq!(found, [2; 2], "step {n}");
                    replaced += 1;
                }
                Some(Err(error)) => {
                    assert!(matches!(error.kind(), ErrorKind::DirectoryBusy), "{error}");
                    applied.unwrap();
                    edited += 1;
                }
                None => {
                    assert_eq!(reached, None);
                    applied.unwrap();
                    break;
                }
            }
        }
    }
    assert!(edited >= 3 && replaced >= 2, "{edited} edited, {replaced} replaced");
}
