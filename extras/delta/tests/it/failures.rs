//! Reads that fail, each in turn: what is at the destination stays, and nothing is left beside it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, Limits, ReadAt, Result};
use safetensors_delta::{Chain, Delta, Encoding, make};

use crate::support::{Scratch, Tensors, bytes, files, quick, read};

/// The local disk, on which one read fails.
#[derive(Clone)]
struct Failing {
    /// The reads before that one.
    left: Arc<AtomicUsize>,
}

struct FailingFile(FileSource, Failing);

impl ReadAt for FailingFile {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.1.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(io::Error::other("the disk is broken"));
        }
        self.0.read_exact_at(buf, offset)
    }
}

impl Store for Failing {
    type File = FailingFile;

    fn open(&self, path: &Path) -> Result<FailingFile> {
        LocalStore.open(path).map(|file| FailingFile(file, self.clone()))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        LocalStore.list(directory)
    }
}

fn tensors(value: u8) -> Tensors {
    (0..4).map(|i| bytes(&format!("w{i}"), vec![value * (i % 3); 3000])).collect()
}

/// Does some work while each of its reads fails in turn. Returns how many reads there are.
fn fail_each(scratch: &Scratch, work: impl Fn(&Failing) -> Result<()>) -> usize {
    let before = files(scratch.directory.path());
    for number in 0.. {
        let store = Failing { left: Arc::new(AtomicUsize::new(number)) };
        let done = work(&store);
        // An underflow: the read that fails was made.
        if store.left.load(Ordering::Relaxed) <= number {
            done.unwrap();
            return number;
        }
        let error = done.unwrap_err();
        assert!(error.to_string().contains("the disk is broken"), "{error}");
        assert_eq!(files(scratch.directory.path()), before, "read {number}");
    }
    unreachable!()
}

#[test]
fn a_read_that_fails_changes_nothing() {
    let scratch = Scratch::new(&tensors(1));
    for encoding in [Encoding::Xor, Encoding::Overwrite] {
        let options = quick().encoding(encoding).overwrite(true);
        scratch.make("delta", &tensors(2), &options).unwrap();
        crate::support::write(&scratch.path("out"), &tensors(3), u64::MAX);
        let reads = fail_each(&scratch, |store| {
            let base =
                Checkpoint::open_in(store.clone(), scratch.path("base"), &Limits::default())?;
            let delta = Delta::open_in(store.clone(), scratch.path("delta"), &Limits::default())?;
            Chain::new([delta])?.apply(&base, scratch.path("out"), &options).map(drop)
        });
        assert!(reads > 10, "{reads}");
        assert_eq!(read(&scratch.path("out")), tensors(2));

        let reads = fail_each(&scratch, |store| {
            let open =
                |name| Checkpoint::open_in(store.clone(), scratch.path(name), &Limits::default());
            let (old, new) = (open("base")?, open("out")?);
            let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
            make(&old, tensors, scratch.path("delta"), &options).map(drop)
        });
        assert!(reads > 10, "{reads}");
    }
}
