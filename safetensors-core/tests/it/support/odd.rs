//! A source that can do all that a source may.

use std::sync::atomic::AtomicBool;
use std::{fmt, io, ops};

use safetensors_core::io::{ReadRange, Requests};

use super::*;

/// The error of a source whose reads fail, which callers may look for.
#[derive(Debug)]
pub(crate) struct OutOfReach;

impl fmt::Display for OutOfReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is far away")
    }
}

impl std::error::Error for OutOfReach {}

/// A source with calls that wait. It notes what it is told and asked, and can fail and change.
#[derive(Clone, Default)]
pub(crate) struct Odd {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fails: Arc<AtomicBool>,
    pub(crate) has_changed: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Odd {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Returns what it heard since the last call.
    pub(crate) fn take_heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }

    fn hear(&self, what: String) {
        self.heard.lock().unwrap().push(what);
    }
}

impl ReadAt for Odd {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self.hear(format!("{} ranges", ranges.len()));
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, OutOfReach));
        }
        self.bytes.read_ranges_at(ranges)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = ops::Range<u64>>) {
        self.hear(format!("will {:?}", ranges.collect::<Vec<_>>()));
    }

    fn has_read(&self, range: ops::Range<u64>) {
        self.hear(format!("has {range:?}"));
    }

    fn requests(&self) -> Option<Requests> {
        Some(Requests::new(1 << 20, 3))
    }

    fn check_unchanged(&self) -> io::Result<()> {
        let has_changed = self.has_changed.load(Ordering::SeqCst);
        if has_changed { Err(io::Error::other("it changed")) } else { Ok(()) }
    }

    fn is_replaced(&self) -> io::Result<bool> {
        Ok(self.has_changed.load(Ordering::SeqCst))
    }
}
