//! [`Body`]: the data of a file before its header is known.
//!
//! A hidden file has room for the header, then tensors in the order of the calls. One with a length
//! that would misalign the next goes to a second hidden file until the end.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::file::io::positional::write_all_at;
use crate::file::io::reserve::insert_at_start;
use crate::file::save::SaveOptions;
use crate::file::save::atomic::AtomicFile;
use crate::file::save::gather::Gathered;
use crate::file::save::temporary::TempFile;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::parallel::lock;

/// Enough for some 150 tensors.
pub(super) const ROOM: u64 = 16 << 10;

/// No tensor needs more.
pub(super) const ALIGN: u64 = 8;

#[derive(Debug)]
pub(super) struct Body {
    file: AtomicFile,
    /// Only [`make_room`](Self::make_room) changes it.
    room: AtomicU64,
    gathered: Mutex<Gathered>,
    state: Mutex<BodyState>,
}

#[derive(Debug, Default)]
struct BodyState {
    /// From the end of the room; a multiple of [`ALIGN`].
    end: u64,
    /// Whether a growing tensor begins at `end`, so that no other can.
    has_tail: bool,
    /// For tensors of alignment 1, 2 and 4, and for tensors after the tail.
    spills: [Option<Spill>; 4],
}

#[derive(Debug)]
struct Spill {
    file: Arc<SpillFile>,
    end: u64,
}

#[derive(Debug)]
pub(super) struct SpillFile {
    file: TempFile,
    gathered: Mutex<Gathered>,
}

/// In the new file, `start` counts from the end of the room.
#[derive(Debug)]
pub(super) struct BodyPlace {
    pub(super) home: Home,
    pub(super) start: u64,
    pub(super) len: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Home {
    Body,
    Spill(Arc<SpillFile>),
    /// In the finished file that is appended to.
    Before,
}

impl Body {
    pub(super) fn create(path: &std::path::Path, options: &SaveOptions) -> Result<Self> {
        Ok(Self {
            file: AtomicFile::create(path, options)?,
            room: AtomicU64::new(ROOM),
            gathered: Mutex::default(),
            state: Mutex::default(),
        })
    }

    pub(super) fn place(&self, dtype: Dtype, len: u64) -> io::Result<BodyPlace> {
        let mut state = lock(&self.state);
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let is_aligned = len.is_multiple_of(ALIGN);
        if is_aligned && !state.has_tail {
            let start = state.end;
            state.end = start.checked_add(len).ok_or_else(too_large)?;
            return Ok(BodyPlace { home: Home::Body, start, len });
        }
        let class = if is_aligned { 3 } else { dtype.alignment().trailing_zeros() as usize };
        let spill = match &mut state.spills[class] {
            Some(spill) => spill,
            none => {
                let file = SpillFile { file: self.spill()?, gathered: Mutex::default() };
                none.insert(Spill { file: Arc::new(file), end: 0 })
            }
        };
        let start = spill.end;
        spill.end = start.checked_add(len).ok_or_else(too_large)?;
        Ok(BodyPlace { home: Home::Spill(spill.file.clone()), start, len })
    }

    /// Reserves the end of the file for a tensor that grows by multiples of [`ALIGN`], unless
    /// another has it.
    pub(super) fn claim_tail(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let is_free = !state.has_tail;
        state.has_tail = true;
        is_free.then_some(state.end)
    }

    pub(super) fn spill(&self) -> io::Result<TempFile> {
        TempFile::create(&self.file.destination, true)
    }

    /// Keeps small bytes until [`flush`](Self::flush).
    pub(super) fn write(&self, home: &Home, bytes: &[u8], start: u64) -> io::Result<()> {
        let gathered = match home {
            Home::Spill(spill) => &spill.gathered,
            _ => &self.gathered,
        };
        let (file, start) = self.locate(home, start)?;
        if Gathered::waits(bytes) {
            lock(gathered).add(file, bytes, start)
        } else {
            write_all_at(file, bytes, start)
        }
    }

    /// Makes bytes readable.
    pub(super) fn flush(&self) -> io::Result<()> {
        lock(&self.gathered).flush(self.file())?;
        for Spill { file, .. } in lock(&self.state).spills.iter().flatten() {
            lock(&file.gathered).flush(file.file())?;
        }
        Ok(())
    }

    /// Returns the file, and the offset in it.
    pub(super) fn locate<'a>(&'a self, home: &'a Home, start: u64) -> io::Result<(&'a File, u64)> {
        match home {
            Home::Body => Ok((self.file(), self.room() + start)),
            Home::Spill(spill) => Ok((spill.file(), start)),
            // Nothing is written to the old file.
            Home::Before => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    pub(super) fn file_mut(&mut self) -> &mut AtomicFile {
        &mut self.file
    }

    pub(super) fn room(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// Copies nothing. Returns `false` if the file system cannot insert blocks (ext4 and XFS can).
    pub(super) fn make_room(&self, len: u64) -> bool {
        let more = len.checked_sub(self.room());
        let is_made = more.is_some_and(|more| more == 0 || insert_at_start(self.file(), more));
        if is_made {
            self.room.store(len, Ordering::Relaxed);
        }
        is_made
    }

    /// Counts from the end of the room.
    pub(super) fn end(&self) -> u64 {
        lock(&self.state).end
    }
}

impl SpillFile {
    pub(super) fn file(&self) -> &File {
        self.file.file()
    }
}
