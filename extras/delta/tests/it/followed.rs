//! A publisher and a follower for tests.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::{Checkpoint, Result};
use safetensors_delta::{Follower, Options, Update, make};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{INDEX, Tensors, bytes, quick, read, views, write};

/// The directories of a publisher and of a follower.
pub(crate) struct Publisher {
    pub(crate) directory: TempDir,
}

/// Returns the tensors of a version. `w` changes with it, `fixed` with the run.
pub(crate) fn tensors(run: u8, value: u8) -> Tensors {
    let w: Vec<_> = (0..3000_u16).map(|i| if i % 7 == 0 { value } else { run }).collect();
    [bytes("w", w), bytes("fixed", vec![run; 40])].into()
}

impl Publisher {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        Self { directory }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    pub(crate) fn version(&self, number: u64) -> PathBuf {
        self.root().join(format!("weight_v{number:06}"))
    }

    pub(crate) fn served(&self) -> PathBuf {
        self.directory.path().join("served")
    }

    /// Publishes a full version, of several files.
    pub(crate) fn full(&self, number: u64, tensors: &Tensors) {
        write(&self.version(number), tensors, 1000);
        fs::write(self.version(number).join("config.json"), format!("{number}")).unwrap();
    }

    /// Publishes a delta as another program does, with checksums of the changed tensors and no
    /// digests.
    pub(crate) fn theirs(&self, number: u64, old: &Tensors, new: &Tensors) {
        self.delta(number, number - 1, old, new);
        self.change_index(number, |metadata| {
            metadata.retain(|key, _| !key.starts_with("safetensors_bridge."));
        });
    }

    /// Publishes a delta.
    pub(crate) fn delta(&self, number: u64, base: u64, old: &Tensors, new: &Tensors) {
        let scratch = tempfile::tempdir().unwrap();
        let old = write(scratch.path(), old, u64::MAX);
        let options = quick().versions(format!("{base:06}"), format!("{number:06}"));
        make(&old, views(new), self.version(number), &options).unwrap();
    }

    /// The full version 0 of a run, and deltas up to a version. Each has its number as its value.
    pub(crate) fn run(&self, run: u8, last: u8) {
        self.full(0, &tensors(run, 0));
        for number in 1..=last {
            let [old, new] = [number - 1, number].map(|value| tensors(run, value));
            self.delta(number.into(), (number - 1).into(), &old, &new);
        }
    }

    pub(crate) fn change_index(
        &self,
        number: u64,
        change: impl FnOnce(&mut serde_json::Map<String, Value>),
    ) {
        let path = self.version(number).join(INDEX);
        let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(index["metadata"].as_object_mut().unwrap());
        fs::write(path, index.to_string()).unwrap();
    }

    /// Removes all versions.
    pub(crate) fn clear(&self) {
        fs::remove_dir_all(self.root()).unwrap();
        fs::create_dir(self.root()).unwrap();
    }

    pub(crate) fn follower(&self) -> Follower {
        Follower::new(self.served()).options(quick())
    }

    /// Returns the numbers of the update: before, version, full, deltas.
    pub(crate) fn poll(&self) -> Result<Option<Numbers>> {
        Ok(self.follower().poll(self.root())?.map(|update| numbers(&update)))
    }

    /// Fails unless the follower has these tensors and this version.
    pub(crate) fn assert_served(&self, number: u64, tensors: &Tensors) {
        assert_eq!(self.follower().version().unwrap(), Some(number));
        assert_eq!(read(&self.served()), *tensors, "{number}");
    }
}

pub(crate) type Numbers = (Option<u64>, u64, Option<u64>, usize);

pub(crate) fn numbers(update: &Update) -> Numbers {
    (update.before, update.version, update.full, update.deltas)
}

/// Returns a follower that may replace the files at its place, and has a base.
pub(crate) fn with_base(publisher: &Publisher, base: &Path, overwrite: bool) -> Follower {
    let options = Options::new().durable(false).overwrite(overwrite);
    let base = Checkpoint::open(base).unwrap();
    Follower::new(publisher.served()).options(options).base(base)
}
