//! Followers whose reads fail, and whose publisher begins anew, at each call to the store in turn.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry, Version};
use safetensors_core::io::FileSource;
use safetensors_core::{ReadAt, Result};

use crate::followed::{Publisher, copy, tensors};
use crate::support::{files, read};

/// The local disk. A function is called before each call, with its number, and may fail.
#[derive(Clone)]
struct Hooked {
    calls: Arc<AtomicUsize>,
    before: Arc<dyn Fn(usize) -> io::Result<()> + Send + Sync>,
}

struct HookedFile(FileSource, Hooked);

impl Hooked {
    fn new(before: impl Fn(usize) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { calls: Arc::default(), before: Arc::new(before) }
    }

    fn call(&self) -> io::Result<()> {
        (self.before)(self.calls.fetch_add(1, Ordering::SeqCst))
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl ReadAt for HookedFile {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.call()?;
        self.0.read_exact_at(buf, offset)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.0.check_unchanged()
    }
}

impl Store for Hooked {
    type File = HookedFile;

    fn open(&self, path: &Path) -> Result<HookedFile> {
        self.call()?;
        LocalStore.open(path).map(|file| HookedFile(file, self.clone()))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.call()?;
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        self.call()?;
        LocalStore.list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        self.call()?;
        LocalStore.version(path)
    }
}

#[test]
fn a_call_that_fails_changes_nothing() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    let before = files(publisher.directory.path());
    for number in 0.. {
        // A second look finds what the first one did not, so all that follow fail, too.
        let store = Hooked::new(move |call| match call < number {
            true => Ok(()),
            false => Err(io::Error::other("the disk is broken")),
        });
        let polled = publisher.follower().poll_in(store.clone(), publisher.root());
        if store.calls() <= number {
            assert!(polled.unwrap().is_some());
            assert!(number > 10, "{number}");
            break;
        }
        assert!(polled.is_err(), "{number}");
        assert_eq!(files(publisher.directory.path()), before, "{number}");
    }
    publisher.assert_served(2, &tensors(1, 2));
}

#[test]
fn a_publisher_may_begin_anew_at_any_moment() {
    // Two runs of a publisher, and a follower that is behind in the first.
    let (one, other) = (Publisher::new(), Publisher::new());
    one.run(1, 1);
    assert!(one.poll().unwrap().is_some());
    one.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    other.run(2, 1);
    let mut seen = [0; 4];
    for number in 0.. {
        let here = Publisher::new();
        copy(one.directory.path(), here.directory.path());
        let (root, new) = (here.root(), other.root());
        let store = Hooked::new(move |call| {
            // The version 2 goes first, and the version 0 of the new run comes next.
            match call.checked_sub(number) {
                Some(0) => fs::remove_dir_all(root.join("weight_v000002")),
                Some(2) => {
                    fs::remove_dir_all(&root)?;
                    copy(&new.join("weight_v000000"), &root.join("weight_v000000"));
                    Ok(())
                }
                Some(4) => {
                    copy(&new.join("weight_v000001"), &root.join("weight_v000001"));
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        here.follower().poll_in(store.clone(), here.root()).unwrap();
        let version = here.follower().version().unwrap().unwrap();
        let found = read(&here.served());
        let all = [(1, 1), (2, 1), (0, 2), (1, 2)];
        let which = all.iter().position(|&(of, run)| {
            of == version && found == tensors(run, u8::try_from(of).unwrap())
        });
        seen[which.unwrap_or_else(|| panic!("{number}: {version}"))] += 1;
        if store.calls() <= number {
            break;
        }
        // Whatever it has found, it comes to the newest version.
        if here.root().join("weight_v000001").exists() && store.calls() > number + 4 {
            while here.poll().unwrap().is_some() {}
            here.assert_served(1, &tensors(2, 1));
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
