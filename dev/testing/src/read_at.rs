//! Sources of files that note how they are read.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use safetensors_core::ReadAt;
use safetensors_core::io::{ReadRange, Requests};

/// A file in memory that notes each call once it has answered. A clone has the same bytes and the
/// same notes.
#[derive(Clone, Debug, Default)]
pub struct NotingSource {
    bytes: Arc<Vec<u8>>,
    requests: Option<Requests>,
    calls: Arc<Mutex<Vec<Vec<Range<u64>>>>>,
    announced: Arc<Mutex<Vec<Range<u64>>>>,
}

impl NotingSource {
    /// A file of these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), ..Self::default() }
    }

    /// A file of these bytes with calls that wait, as behind a network.
    pub fn far(bytes: Vec<u8>, requests: Requests) -> Self {
        Self { requests: Some(requests), ..Self::new(bytes) }
    }

    /// The calls since the last time this or `take_reads` was asked: for each the ranges of the
    /// file.
    pub fn take_calls(&self) -> Vec<Vec<Range<u64>>> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// The reads since the last call: for each its offset and its number of bytes.
    pub fn take_reads(&self) -> Vec<(u64, usize)> {
        let ranges = self.take_calls().into_iter().flatten();
        ranges.map(|range| (range.start, (range.end - range.start) as usize)).collect()
    }

    /// Returns the number of bytes that were read since the last call.
    pub fn take_len(&self) -> u64 {
        self.take_reads().iter().map(|&(_, len)| len as u64).sum()
    }

    /// The ranges that were announced since the last call.
    pub fn take_announced(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.announced.lock().unwrap())
    }
}

impl ReadAt for NotingSource {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let read = self.bytes.read_ranges_at(ranges);
        let range = |range: &ReadRange<'_>| range.offset..range.offset + range.bytes.len() as u64;
        self.calls.lock().unwrap().push(ranges.iter().map(range).collect());
        read
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        self.announced.lock().unwrap().extend(ranges);
    }

    fn requests(&self) -> Option<Requests> {
        self.requests
    }
}
