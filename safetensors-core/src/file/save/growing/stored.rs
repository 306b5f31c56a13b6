//! [`StoredSteps`]: the bytes of a growing tensor, until its file is finished.

use std::fs::File;
use std::io;

use super::body::Body;
use crate::file::io::copy::copy_range;
use crate::file::io::positional::{read_exact_at, write_all_at};
use crate::file::io::reserve::reserve_ahead;
use crate::file::save::temporary::TempFile;

// Saves system calls for small steps.
const PENDING: usize = 256 << 10;

/// The most bytes reserved ahead.
const AHEAD: u64 = 64 << 20;

/// All new steps: the first in a file, the last in memory.
#[derive(Debug, Default)]
pub(super) struct StoredSteps {
    /// `None` while all bytes fit in `pending`.
    target: Option<Target>,
    pub(super) flushed: u64,
    reserved: u64,
    pending: Vec<u8>,
}

#[derive(Debug)]
enum Target {
    /// At the end of the new file, from this offset behind the room.
    Tail(u64),
    Spill(TempFile),
}

impl StoredSteps {
    pub(super) fn is_tail(&self) -> bool {
        matches!(self.target, Some(Target::Tail(_)))
    }

    pub(super) fn truncate(&mut self, len: u64) {
        self.pending.truncate(len.saturating_sub(self.flushed) as usize);
        self.flushed = self.flushed.min(len);
    }

    /// `tail` is the number of bytes before these at the end of the new file, if they may be
    /// written there.
    pub(super) fn push(&mut self, bytes: &[u8], body: &Body, tail: Option<u64>) -> io::Result<()> {
        if self.pending.len() + bytes.len() <= PENDING {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        let target = match &self.target {
            Some(target) => target,
            None => {
                let start = tail.and_then(|before| body.claim_tail()?.checked_add(before));
                self.target.insert(match start {
                    Some(start) => Target::Tail(start),
                    None => Target::Spill(body.spill()?),
                })
            }
        };
        let (file, start) = target.file(body);
        let needed = self.flushed + (self.pending.len() + bytes.len()) as u64;
        if needed > self.reserved {
            // Twice as much each time.
            self.reserved = needed + needed.min(AHEAD);
            reserve_ahead(file, start + self.flushed, self.reserved - self.flushed);
        }
        write_all_at(file, &self.pending, start + self.flushed)?;
        self.flushed += self.pending.len() as u64;
        self.pending.clear();
        if bytes.len() < PENDING {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        write_all_at(file, bytes, start + self.flushed)?;
        self.flushed += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn read_exact_at(&self, body: &Body, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let in_file = self.flushed.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (from_file, from_memory) = buf.split_at_mut(in_file);
        if let (Some(target), false) = (&self.target, from_file.is_empty()) {
            let (file, start) = target.file(body);
            read_exact_at(file, from_file, start + offset)?;
        }
        let skipped = (offset + in_file as u64).saturating_sub(self.flushed) as usize;
        let pending = self.pending.get(skipped..skipped + from_memory.len());
        from_memory.copy_from_slice(pending.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// Skips the flushed bytes of a tail.
    pub(super) fn put(&self, file: &File, offset: u64) -> io::Result<()> {
        if let Some(Target::Spill(spill)) = &self.target {
            copy_range(spill.file(), 0, file, offset, self.flushed)?;
        }
        write_all_at(file, &self.pending, offset + self.flushed)
    }
}

impl Target {
    /// Returns also where in the file the bytes begin.
    fn file<'a>(&'a self, body: &'a Body) -> (&'a File, u64) {
        match self {
            Self::Tail(start) => (body.file(), body.room() + start),
            Self::Spill(spill) => (spill.file(), 0),
        }
    }
}
