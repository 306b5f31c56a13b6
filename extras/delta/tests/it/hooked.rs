//! A store in which something happens before each call.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry, Version};
use safetensors_core::io::FileSource;
use safetensors_core::{ReadAt, Result};

/// The local disk. A function is called before each call, with its number, and may fail.
#[derive(Clone)]
pub(crate) struct Hooked {
    calls: Arc<AtomicUsize>,
    before: Arc<dyn Fn(usize) -> io::Result<()> + Send + Sync>,
}

pub(crate) struct HookedFile(FileSource, Hooked);

impl Hooked {
    pub(crate) fn new(before: impl Fn(usize) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { calls: Arc::default(), before: Arc::new(before) }
    }

    /// A disk that breaks before the call of this number.
    pub(crate) fn broken_from(number: usize) -> Self {
        Self::new(move |call| match call < number {
            true => Ok(()),
            false => Err(io::Error::other("the disk is broken")),
        })
    }

    fn call(&self) -> io::Result<()> {
        (self.before)(self.calls.fetch_add(1, Ordering::SeqCst))
    }

    pub(crate) fn calls(&self) -> usize {
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
