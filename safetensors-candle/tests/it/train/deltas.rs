//! Training checkpoints that are kept as deltas.

use std::fs;
use std::path::{Path, PathBuf};

use candle_nn::VarMap;
use safetensors_candle::train::{self, AdamW, save_delta};
use safetensors_core::{Checkpoint, ErrorKind};
use safetensors_delta::{Options, open_linked};

use super::support::{get, map, optimizer, quick, shards, state, values, var};

/// Returns a model with a large part that is not trained any more.
fn model(seed: u32) -> VarMap {
    map([("frozen", var(&[40, 50], seed)), ("head", var(&[50], seed + 1))])
}

/// Changes the head alone.
fn step(map: &VarMap, number: u32) {
    get(map, "head").set(&var(&[50], 100 + number)).unwrap();
}

struct Run {
    directory: tempfile::TempDir,
    map: VarMap,
    optimizer: AdamW,
}

impl Run {
    /// A whole first checkpoint.
    fn new() -> Self {
        let map = model(1);
        let optimizer = optimizer(&map);
        let run = Self { directory: tempfile::tempdir().unwrap(), map, optimizer };
        fs::create_dir(run.path("0")).unwrap();
        train::save(run.path("0/model.safetensors"), run.state(), &quick()).unwrap();
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> (&VarMap, &AdamW) {
        (&self.map, &self.optimizer)
    }

    fn save(&self, name: &str, base: &str) -> safetensors_core::Result<bool> {
        let options = quick().metadata([("name", name)]);
        save_delta(self.path(name), self.path(base), self.state(), &options)
    }

    /// Loads a checkpoint, which should have the state of this moment.
    fn check(&self, name: &str) {
        assert_eq!(loaded(&self.path(name), name), (values(&self.map), state(&self.optimizer)));
    }
}

type State = (std::collections::BTreeMap<String, Vec<u8>>, Vec<u8>);

fn loaded(path: &Path, name: &str) -> State {
    let map = model(50);
    let mut found = optimizer(&map);
    let loaded = train::load(path, (&map, &mut found)).unwrap();
    assert_eq!(loaded.metadata["name"], name);
    (values(&map), state(&found))
}

#[test]
fn a_delta_is_loaded_bit_for_bit_whatever_else_is_deleted() {
    let run = Run::new();
    let mut states = Vec::new();
    // The base is a directory, a delta of it, or the file.
    for (number, base) in ["0", "1", "0/model.safetensors"].into_iter().enumerate() {
        let name = (number + 1).to_string();
        step(&run.map, number as u32);
        assert!(run.save(&name, base).unwrap());
        run.check(&name);
        states.push((values(&run.map), state(&run.optimizer)));
    }
    let len = |path: PathBuf| fs::metadata(path).unwrap().len();
    let delta = len(run.path("2/model-00000-of-00001.safetensors"));
    assert!(delta * 4 < len(run.path("0/model.safetensors")), "{delta}");
    for name in ["0", "1", "3"] {
        fs::remove_dir_all(run.path(name)).unwrap();
        assert_eq!(loaded(&run.path("2"), "2"), states[1]);
    }
    assert_eq!(fs::read_dir(run.directory.path()).unwrap().count(), 1);

    // Everything else refuses it, and the whole file has the bytes of a save.
    let error = Checkpoint::open(run.path("2")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::IsDelta { base } if base == "base"), "{error}");
    let (base, chain) = open_linked(run.path("2")).unwrap();
    chain.apply(&base, run.path("out"), &Options::new()).unwrap();
    step(&run.map, 1);
    let options = quick().metadata([("name", "2")]);
    train::save(run.path("whole"), run.state(), &options).unwrap();
    let read = |name| fs::read(run.path(name)).unwrap();
    assert!(read("out/model.safetensors") == read("whole"));
}

#[test]
fn a_checkpoint_is_saved_whole_if_a_delta_would_not_be_smaller() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name);
    let small = map([("w", var(&[3], 1))]);
    train::save(path("0"), &small, &quick()).unwrap();
    for (name, base) in [("1", "0"), ("2", "1")] {
        get(&small, "w").set(&var(&[3], 5)).unwrap();
        assert!(!save_delta(path(name), path(base), &small, &quick()).unwrap());
        let found = map([("w", var(&[3], 9))]);
        train::load(path(name), &found).unwrap();
        assert_eq!(values(&found), values(&small));
        assert_eq!(fs::read_dir(path(name)).unwrap().count(), 1);
    }
}

#[test]
fn a_checkpoint_with_a_damaged_base_is_saved_whole() {
    let run = Run::new();
    fs::write(run.path("damaged"), "no file of tensors").unwrap();
    step(&run.map, 1);
    assert!(!run.save("1", "damaged").unwrap());
    run.check("1");
    assert_eq!(fs::read_dir(run.path("1")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(run.directory.path()).unwrap().count(), 3);
}

#[test]
fn a_save_that_fails_leaves_nothing() {
    let run = Run::new();
    run.save("1", "missing").unwrap_err();
    let sharded = run.path("sharded");
    train::save_sharded(&sharded, run.state(), &shards(500)).unwrap();
    let error = run.save("1", "sharded").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotAFile { .. }), "{error}");
    let error = run.save("0", "0").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
    assert_eq!(fs::read_dir(run.directory.path()).unwrap().count(), 2);
}

#[test]
fn a_base_that_is_missing_or_changed_changes_nothing() {
    let run = Run::new();
    step(&run.map, 1);
    assert!(run.save("1", "0").unwrap());
    let link = run.path("1/base/model.safetensors");
    let mut bytes = fs::read(&link).unwrap();
    let other = model(50);
    let before = values(&other);
    let load = || train::load(run.path("1"), (&other, &mut optimizer(&other))).unwrap_err();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&link, bytes).unwrap();
    let error = load();
    assert!(error.to_string().contains("the digest of its base is "), "{error}");
    fs::remove_file(&link).unwrap();
    let error = load();
    assert_eq!(error.file(), link.to_str());
    fs::remove_dir(link.parent().unwrap()).unwrap();
    assert!(matches!(load().kind(), ErrorKind::IsDelta { .. }));
    assert_eq!(values(&other), before);
    assert_eq!(fs::read_dir(run.directory.path()).unwrap().count(), 2);
}
