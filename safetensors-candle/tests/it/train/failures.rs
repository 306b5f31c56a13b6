//! Loads that fail change nothing, and saves that fail leave the earlier checkpoint.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_candle::train::{self, StateOptions};
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, ErrorKind, Limits, LoadOptions, ReadAt, Result, ShardOptions};

use super::support::{model, optimizer, quick, shards, state, train, values};

use crate::common::place;

/// Saves a model after some steps.
fn save(path: &Path, steps: u32) {
    let map = model(1);
    let mut optimizer = optimizer(&map);
    (0..steps).for_each(|step| train(&map, &mut optimizer, step));
    let step = [("steps", steps.to_string())];
    if path.extension().is_some() {
        train::save(path, (&map, &optimizer), &quick().metadata(step)).unwrap();
    } else {
        train::save_sharded(path, (&map, &optimizer), &shards(48).metadata(step)).unwrap();
    }
}

/// Loads from an open checkpoint, which must fail and change nothing. The model alone is tried as
/// well.
fn fails<S: ReadAt>(checkpoint: &Checkpoint<S>) -> safetensors_core::Error {
    let map = model(50);
    let mut optimizer = optimizer(&map);
    (0..2).for_each(|step| train(&map, &mut optimizer, step));
    let before = (values(&map), state(&optimizer));
    let options = StateOptions::new().allow_extra(true);
    let error = options.load_from(checkpoint, (&map, &mut optimizer)).unwrap_err();
    assert_eq!((values(&map), state(&optimizer)), before, "{error}");
    options.load_from(checkpoint, &map).unwrap_err();
    assert_eq!(values(&map), before.0, "{error}");
    error
}

#[test]
fn a_file_that_is_cut_short_after_it_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.safetensors", "sharded"] {
        let path = dir.path().join(name);
        save(&path, 3);
        let checkpoint = Checkpoint::open(&path).unwrap();
        // A file that both loads need.
        let path = checkpoint.tensor("a.bias").unwrap().file().unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        let error = fails(&checkpoint);
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
}

/// A file that gives only this many reads.
struct Failing<'a> {
    file: FileSource,
    left: &'a AtomicUsize,
}

impl ReadAt for Failing<'_> {
    fn byte_len(&self) -> u64 {
        self.file.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => self.file.read_exact_at(buf, offset),
            Err(_) => Err(io::Error::other("the disk is gone")),
        }
    }
}

#[test]
fn a_read_that_fails_midway() {
    let (_dir, path) = place("sharded");
    save(&path, 3);
    let left = AtomicUsize::new(usize::MAX);
    let open =
        |path: &Path| -> Result<_> { Ok(Failing { file: FileSource::open(path)?, left: &left }) };
    let checkpoint = Checkpoint::open_by(&path, &Limits::default(), open).unwrap();
    let shards = checkpoint.files().len();
    assert!(shards > 5);
    for reads in 0..3 {
        left.store(reads, Ordering::Relaxed);
        let error = fails(&checkpoint);
        assert!(error.to_string().contains("the disk is gone"), "{error}");
    }
    left.store(usize::MAX, Ordering::Relaxed);
    let map = model(50);
    StateOptions::new().load_from(&checkpoint, (&map, &mut optimizer(&map))).unwrap();
}

#[test]
fn a_load_that_is_cancelled() {
    let (_dir, path) = place("a.safetensors");
    save(&path, 3);
    let map = model(50);
    let mut optimizer = optimizer(&map);
    let before = (values(&map), state(&optimizer));
    let cancel = LoadOptions::new().progress(|_| ControlFlow::Break(()));
    let options = StateOptions::new().load_options(cancel);
    let error = options.load(&path, (&map, &mut optimizer)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert_eq!((values(&map), state(&optimizer)), before);
}

#[test]
fn a_callback_may_use_the_map_while_it_is_loaded() {
    let (_dir, path) = place("a.safetensors");
    save(&path, 3);
    let map = model(50);
    let seen = map.clone();
    let callback = LoadOptions::new().progress(move |_| {
        assert_eq!(values(&seen), values(&model(50)));
        ControlFlow::Continue(())
    });
    let options = StateOptions::new().load_options(callback);
    options.load(&path, (&map, &mut optimizer(&map))).unwrap();
    assert_ne!(values(&map), values(&model(50)));
}

#[test]
fn a_save_that_fails_leaves_the_earlier_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (file, sharded) = (dir.path().join("a.safetensors"), dir.path().join("sharded"));
    save(&file, 3);
    save(&sharded, 3);
    let map = model(1);
    let mut newer = optimizer(&map);
    (0..9).for_each(|step| train(&map, &mut newer, step));
    let failing = quick().progress(|progress| {
        if progress.bytes_done == progress.bytes_total {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let error = train::save(&file, (&map, &newer), &failing).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    let options = ShardOptions::new().max_shard_size(48.into()).save_options(failing);
    let error = train::save_sharded(&sharded, (&map, &newer), &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");

    for path in [file, sharded] {
        let fresh = model(50);
        let mut resumed = optimizer(&fresh);
        assert_eq!(train::load(&path, (&fresh, &mut resumed)).unwrap().metadata["steps"], "3");
        let expected = model(1);
        let mut at_three = optimizer(&expected);
        (0..3).for_each(|step| train(&expected, &mut at_three, step));
        assert_eq!((values(&fresh), state(&resumed)), (values(&expected), state(&at_three)));
    }
}
