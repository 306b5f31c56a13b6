//! [`Counting`]: a file that counts the bytes that are read from it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, Limits, ReadAt, Result};

/// The counts that the files of a checkpoint share.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    bytes: AtomicU64,
    fails: AtomicBool,
}

impl Counter {
    /// Returns the number of bytes that were read since this was asked last.
    pub(crate) fn take(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }

    /// From now on, each read fails.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }
}

/// A file that counts the bytes that are read from it.
#[derive(Debug)]
pub(crate) struct Counting {
    file: FileSource,
    counter: Arc<Counter>,
}

impl ReadAt for Counting {
    fn byte_len(&self) -> u64 {
        self.file.byte_len()
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if self.counter.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("fails on purpose"));
        }
        self.counter.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(bytes, offset)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.file.check_unchanged()
    }

    fn may_change_unseen(&self) -> bool {
        self.file.may_change_unseen()
    }

    fn is_replaced(&self) -> io::Result<bool> {
        self.file.is_replaced()
    }
}

/// Opens a checkpoint, and counts its reads, except of the headers.
pub(crate) fn open(directory: &Path, counter: &Arc<Counter>) -> Result<Checkpoint<Counting>> {
    let checkpoint = Checkpoint::open_by(directory, &Limits::default(), |path| {
        Ok(Counting { file: FileSource::open(path)?, counter: counter.clone() })
    });
    counter.take();
    checkpoint
}
