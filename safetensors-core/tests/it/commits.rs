//! The conformance suite of saves of several files, on the local disk and in memory.

use safetensors_core::checkpoint::LocalDirectory;
use safetensors_core::checkpoint::store::{LocalStore, Store};
use safetensors_testing::files::directory_in_memory;
use safetensors_testing::saves::{
    Faults, Place, a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one, open_in,
    save_failing,
};

use crate::support::*;

type Content = std::collections::BTreeMap<String, Vec<u8>>;

struct Disk(TempDir);

impl Place for Disk {
    fn save(&mut self, version: u8, options: &ShardOptions, faults: &Faults) -> Result<()> {
        let mut directory = LocalDirectory::create(self.0.path(), options)?;
        save_failing(&mut directory, version, options, faults)
    }

    fn open(&self) -> Result<Content> {
        open_in(LocalStore, self.0.path())
    }

    fn names(&self) -> Vec<String> {
        names(&LocalStore, self.0.path())
    }

    fn rename(&mut self, from: &str, to: &str) {
        fs::rename(self.0.path().join(from), self.0.path().join(to)).unwrap();
    }
}

struct Memory(MemoryStore);

impl Place for Memory {
    fn save(&mut self, version: u8, options: &ShardOptions, faults: &Faults) -> Result<()> {
        save_failing(&mut self.0, version, options, faults)
    }

    fn open(&self) -> Result<Content> {
        open_in(self.0.clone(), PathBuf::new())
    }

    fn names(&self) -> Vec<String> {
        names(&self.0, Path::new(""))
    }

    fn rename(&mut self, from: &str, to: &str) {
        let files = self.names().into_iter().map(|name| {
            let file = self.0.open(Path::new(&name)).unwrap();
            (if name == from { to.to_owned() } else { name }, file.as_ref().to_vec())
        });
        self.0 = files.collect();
    }
}

fn names(store: &impl Store, directory: &Path) -> Vec<String> {
    let listed = store.list(directory).unwrap();
    let mut names: Vec<_> = listed.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names
}

#[test]
fn on_the_local_disk() {
    let make = || Disk(directory_in_memory());
    a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one(make);
}

#[test]
fn in_memory() {
    a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one(|| Memory(MemoryStore::default()));
}
