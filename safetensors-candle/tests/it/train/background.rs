//! Saves in the background: their content, their order, and the result of an error, a cancelled
//! save and a dropped saver.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};
use safetensors_candle::train::{self, save_in_background, save_sharded_in_background};
use safetensors_core::save::BackgroundSaver;
use safetensors_core::tied::Tied;
use safetensors_core::{Checkpoint, ErrorKind, SaveOptions, ShardOptions};
use safetensors_testing::files::names_in;

use super::support::{get, map, model, optimizer, quick, train, var};

use crate::common::place;

/// Returns options for a save that stops at its first bytes, signals it, and waits for a signal to
/// go on.
fn held() -> (SaveOptions, Receiver<()>, Sender<()>) {
    let ((says, hear), (tell, told)) = (channel(), channel());
    let (says, told) = (Mutex::new(says), Mutex::new(told));
    let options = quick().progress(move |_| {
        let _ = says.lock().unwrap().send(());
        let _ = told.lock().unwrap().recv();
        ControlFlow::Continue(())
    });
    (options, hear, tell)
}

/// Returns the file that a save in the foreground writes.
fn saved<'a>(path: &Path, state: impl Into<train::StateRef<'a>>) -> Vec<u8> {
    train::save(path, state, &quick()).unwrap();
    fs::read(path).unwrap()
}

#[test]
fn a_background_save_has_the_state_at_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["a.safetensors", "b.safetensors"].map(|name| dir.path().join(name));
    let map = model(1);
    let mut optimizer = optimizer(&map);
    (0..3).for_each(|step| train(&map, &mut optimizer, step));
    let expected = saved(&other, (&map, &optimizer));

    let mut saver = BackgroundSaver::new();
    assert!(!saver.is_saving() && saver.progress().is_none());
    let (options, hear, tell) = held();
    save_in_background(&mut saver, &path, (&map, &optimizer), &options).unwrap();
    hear.recv().unwrap();
    // The save runs, and the training goes on.
    (3..6).for_each(|step| train(&map, &mut optimizer, step));
    assert!(saver.is_saving() && !path.exists());
    let progress = saver.progress().unwrap();
    assert!(progress.bytes_done > 0 && progress.bytes_done <= progress.bytes_total);
    drop(tell);
    saver.wait().unwrap();
    assert!(saver.progress().is_none());
    assert_ne!(saved(&other, (&map, &optimizer)), expected);
    assert!(fs::read(&path).unwrap() == expected);

    // The variables alone, and a variable under two names, which is one tensor of the snapshot.
    let alone = model(7);
    let shared = get(&alone, "a.bias");
    alone.data().lock().unwrap().insert("tied".into(), shared.clone());
    let options = quick().tied(Tied::new());
    save_in_background(&mut saver, &path, &alone, &options).unwrap();
    shared.set(&Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu).unwrap()).unwrap();
    saver.wait().unwrap();
    let found = Checkpoint::open(&path).unwrap();
    assert_eq!(found.files()[0].safetensors().header().len(), 4);
    let bias = found.tensor("tied").unwrap().read().unwrap().into_vec::<f32>().unwrap();
    assert_eq!(bias, var(&[4], 8).to_vec1::<f32>().unwrap());
}

#[test]
fn a_second_save_waits_for_the_first_so_that_the_last_call_wins() {
    let (dir, path) = place("a.safetensors");
    let map = map([("w", var(&[1000], 1))]);
    let ends = Arc::new(Mutex::new(Vec::new()));
    let mut saver = BackgroundSaver::new();
    for step in 0..5_u32 {
        get(&map, "w").set(&var(&[1000], step)).unwrap();
        let ends = ends.clone();
        let options = quick().metadata([("step", step.to_string())]).progress(move |progress| {
            if progress.bytes_done == progress.bytes_total {
                ends.lock().unwrap().push(step);
            }
            ControlFlow::Continue(())
        });
        save_in_background(&mut saver, &path, &map, &options).unwrap();
    }
    // A saver that is dropped waits.
    drop(saver);
    assert_eq!(*ends.lock().unwrap(), [0, 1, 2, 3, 4]);
    let found = Checkpoint::open(&path).unwrap();
    assert_eq!(found.metadata()["step"], "4");
    let values = found.tensor("w").unwrap().read().unwrap().into_vec::<f32>().unwrap();
    assert_eq!(values, var(&[1000], 4).to_vec1::<f32>().unwrap());
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
}

#[test]
fn a_cancelled_save_leaves_the_earlier_file_alone() {
    let (dir, path) = place("a.safetensors");
    let earlier = saved(&path, &model(1));
    let map = map([("w", var(&[3 << 20], 1))]);
    let (options, hear, tell) = held();
    let mut saver = BackgroundSaver::new();
    save_in_background(&mut saver, &path, &map, &options).unwrap();
    hear.recv().unwrap();
    saver.cancel();
    drop(tell);
    let error = saver.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert!(fs::read(&path).unwrap() == earlier);
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);

    // The error came once, and the saver can be used again.
    saver.cancel();
    saver.wait().unwrap();
    save_in_background(&mut saver, &path, &map, &quick()).unwrap();
    saver.wait().unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 1);
}

/// Shards of 64 bytes that are saved so.
fn in_shards(options: SaveOptions) -> ShardOptions {
    ShardOptions::new().max_shard_size(64.into()).save_options(options)
}

/// Returns the names and the bytes of all files in a directory.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(directory.join(name)).unwrap());
    names_in(directory).into_iter().map(read).collect()
}

#[test]
fn shards_have_the_state_of_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["a", "b"].map(|name| dir.path().join(name));
    let map = model(1);
    let mut optimizer = optimizer(&map);
    (0..3).for_each(|step| train(&map, &mut optimizer, step));
    train::save_sharded(&other, (&map, &optimizer), &in_shards(quick())).unwrap();
    let expected = files(&other);
    assert!(expected.len() > 3, "several shards, and their index");

    let mut saver = BackgroundSaver::new();
    let (options, hear, tell) = held();
    let options = in_shards(options);
    save_sharded_in_background(&mut saver, &path, (&map, &optimizer), &options).unwrap();
    hear.recv().unwrap();
    (3..6).for_each(|step| train(&map, &mut optimizer, step));
    assert!(saver.is_saving() && Checkpoint::open(&path).is_err());
    drop(tell);
    saver.wait().unwrap();
    assert!(files(&path) == expected);
}

#[test]
fn an_error_comes_from_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("none"), "a file").unwrap();
    let (nowhere, path) = (dir.path().join("none/a.safetensors"), dir.path().join("a.safetensors"));
    let map = model(1);
    let mut saver = BackgroundSaver::new();
    for _ in 0..2 {
        save_in_background(&mut saver, &nowhere, &map, &quick()).unwrap();
        let error = save_in_background(&mut saver, &path, &map, &quick()).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Io(_)) && !path.exists());
    }
    save_in_background(&mut saver, &path, &map, &quick()).unwrap();
    saver.wait().unwrap();
}
