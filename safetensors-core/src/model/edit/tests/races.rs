//! Edits that meet saves of the same file.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::checkpoint::{Checkpoint, Contention, ShardOptions, save_sharded};
use crate::file::io::failpoint::call_at;
use crate::file::save::{AtomicFile, SaveOptions, save, serialize};
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorView;
use crate::model::edit::{Edit, Edited};
use crate::model::rewrite::Rewrite;

/// Saves two shards; their tensors hold the version.
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
            // The save runs in its own thread: steps of that thread are not counted.
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

/// Begins `other` in its own thread just before the `n`th step of `first`. If that step holds a
/// lock that `other` waits for, `first` continues. Returns both results; `None` for `other` if
/// there is no such step.
fn meet<T>(
    n: usize,
    first: impl FnOnce() -> T,
    other: impl FnOnce() -> Result<()> + Send + 'static,
) -> (T, Option<Result<()>>) {
    let running: Arc<Mutex<Option<JoinHandle<Result<()>>>>> = Arc::default();
    let started = running.clone();
    let start = move || {
        let (done, is_done) = channel();
        *started.lock().unwrap() = Some(thread::spawn(move || {
            let result = other();
            let _ = done.send(());
            result
        }));
        let _ = is_done.recv_timeout(Duration::from_millis(100));
    };
    let (result, _) = call_at(n, start, first);
    let other = running.lock().unwrap().take().map(|thread| thread.join().unwrap());
    (result, other)
}

/// A file with one tensor that holds the version, with room in its header.
fn file_of(version: u8) -> Vec<u8> {
    let bytes = [version];
    let tensors = [("a", TensorView::from_slice(&[1], &bytes).unwrap())];
    serialize(tensors, &SaveOptions::new().align(4096)).unwrap()
}

fn version(path: &Path) -> u8 {
    Checkpoint::open(path).unwrap().tensor("a").unwrap().read().unwrap().bytes()[0]
}

/// Ways to save version 2 to a path.
const SAVES: [fn(&Path) -> Result<()>; 2] = [
    |path| {
        let bytes = [2_u8];
        let tensors = [("a", TensorView::from_slice(&[1], &bytes).unwrap())];
        save(path, tensors, &SaveOptions::new())
    },
    |path| {
        use std::io::Write;

        let mut file = AtomicFile::create(path, &SaveOptions::new())?;
        file.write_all(&file_of(2))?;
        file.commit()
    },
];

/// A save that has succeeded must not be undone by an edit that began before it.
#[test]
fn an_edit_does_not_undo_a_save() {
    for save in SAVES {
        let (mut edited, mut refused) = (0, 0);
        for in_place in [false, true] {
            for n in 0.. {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("model.safetensors");
                std::fs::write(&path, file_of(1)).unwrap();
                let edit = Edit::open(&path).unwrap().in_place(in_place);
                let edit = edit.set_metadata([("k", "v")]);
                let other = path.clone();
                let (applied, saved) = meet(n, || edit.apply(), move || save(&other));
                let Some(saved) = saved else {
                    let expected = if in_place { Edited::InPlace } else { Edited::Rewritten };
                    assert_eq!(applied.unwrap(), expected);
                    break;
                };
                saved.unwrap();
                assert_eq!(version(&path), 2, "step {n}: {applied:?}");
                *if applied.is_ok() { &mut edited } else { &mut refused } += 1;
            }
        }
        assert!(edited >= 3 && refused >= 2, "{edited} edited, {refused} refused");
    }
}

/// An edit that has succeeded must not be undone by a rewrite that has read the file before it.
#[test]
fn a_rewrite_of_a_file_to_itself_does_not_undo_an_edit() {
    for in_place in [false, true] {
        let (mut edited, mut refused) = (0, 0);
        for n in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("model.safetensors");
            std::fs::write(&path, file_of(1)).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            let rewrite = || {
                Rewrite::from_checkpoint(&checkpoint).save(&path, &SaveOptions::new().align(4096))
            };
            let other = path.clone();
            let edit = move || {
                let edit = Edit::open(&other)?.in_place(in_place);
                edit.set_metadata([("k", "v")]).apply().map(drop)
            };
            let (rewritten, applied) = meet(n, rewrite, edit);
            let found = Checkpoint::open(&path).unwrap();
            match applied {
                Some(Ok(())) => {
                    let value = found.metadata().get("k").map(String::as_str);
                    assert_eq!(value, Some("v"), "step {n}: {rewritten:?}");
                    edited += 1;
                }
                Some(Err(_)) => {
                    rewritten.unwrap();
                    refused += 1;
                }
                None => {
                    rewritten.unwrap();
                    break;
                }
            }
        }
        assert!(edited >= 3 && refused >= 1, "{edited} edited, {refused} refused");
    }
}
