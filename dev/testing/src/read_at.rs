//! Sources of files that note how they are read.

use std::io;
use std::sync::{Arc, Mutex};

use safetensors_core::ReadAt;

/// A file in memory that notes each read. A clone has the same bytes and the same notes.
#[derive(Clone, Debug, Default)]
pub struct NotingSource {
    bytes: Arc<Vec<u8>>,
    reads: Arc<Mutex<Vec<(u64, usize)>>>,
}

impl NotingSource {
    /// A file of these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), reads: Arc::default() }
    }

    /// The reads since the last call: for each its offset and its number of bytes.
    pub fn take_reads(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }

    /// Returns the number of bytes that were read since the last call.
    pub fn take_len(&self) -> u64 {
        self.take_reads().iter().map(|&(_, len)| len as u64).sum()
    }
}

impl ReadAt for NotingSource {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.lock().unwrap().push((offset, buf.len()));
        self.bytes.read_exact_at(buf, offset)
    }
}
