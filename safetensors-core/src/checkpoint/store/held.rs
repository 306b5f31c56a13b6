//! [`AsyncFile`]: a file, with those of its bytes that have been fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{error, fmt, io};

use crate::io::{AsyncReadAt, ReadAt};

/// A file of an [`AsyncStore`](super::AsyncStore). Reads find the bytes that have been fetched. A
/// read of others is an error of the kind [`WouldBlock`](io::ErrorKind::WouldBlock).
pub struct AsyncFile<S> {
    held: Arc<Held<S>>,
    missing: Arc<Recorder<S>>,
}

/// A source, and the bytes of it that are in memory.
pub(super) struct Held<S> {
    pub(super) source: S,
    pieces: Mutex<Pieces>,
}

/// Consecutive bytes, or the error of the request for them.
struct Piece {
    end: u64,
    bytes: Result<Vec<u8>, Arc<io::Error>>,
}

#[derive(Default)]
struct Pieces {
    /// By their start and their owner. Two owners may have the same bytes.
    by_start: BTreeMap<(u64, u64), Arc<Piece>>,
    /// The most bytes that a piece has ever had.
    longest: u64,
}

/// The owner of pieces that stay as long as the file is open.
pub(super) const FOREVER: u64 = 0;

impl Pieces {
    /// A piece with the byte at this offset, and its start.
    fn at(&self, offset: u64) -> Option<(u64, &Arc<Piece>)> {
        let earlier = self.by_start.range(..=(offset, u64::MAX)).rev();
        let mut near = earlier.take_while(|((start, _), _)| offset - start < self.longest);
        near.find(|(_, piece)| offset < piece.end).map(|((start, _), piece)| (*start, piece))
    }
}

impl<S> Held<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, pieces: Mutex::default() }
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the bytes of a range, or the error of the request for them, until the owner
    /// [releases](Held::release) them.
    pub(super) fn add(
        &self,
        range: Range<u64>,
        bytes: Result<Vec<u8>, Arc<io::Error>>,
        owner: u64,
    ) {
        let mut pieces = self.pieces();
        pieces.longest = pieces.longest.max(range.end - range.start);
        let piece = Arc::new(Piece { end: range.end, bytes });
        pieces.by_start.insert((range.start, owner), piece);
    }

    /// Forgets the pieces of an owner.
    pub(super) fn release(&self, owner: u64) {
        self.pieces().by_start.retain(|(_, of), _| *of != owner);
    }

    /// The parts of a range that have not been fetched.
    pub(super) fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (pieces, mut holes, mut at) = (self.pieces(), Vec::new(), range.start);
        while at < range.end {
            if let Some((_, piece)) = pieces.at(at) {
                at = piece.end;
                continue;
            }
            let next = pieces.by_start.range((at, 0)..).next();
            let end = next.map_or(range.end, |((start, _), _)| range.end.min(*start));
            holes.push(at..end);
            at = end;
        }
        holes
    }

    /// Copies bytes that have been fetched, and returns their number. Fewer than asked for come
    /// before a hole.
    fn copy(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let found = self.pieces().at(at).map(|(start, piece)| (start, Arc::clone(piece)));
            let Some((start, piece)) = found else { break };
            let bytes = piece.bytes.as_ref().map_err(again)?;
            let bytes = &bytes[(at - start) as usize..];
            let len = bytes.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        Ok(done)
    }
}

/// What code has asked for that was not there, since it began to be recorded.
pub(super) struct Missing<S> {
    pub(super) paths: BTreeSet<PathBuf>,
    pub(super) ranges: Vec<(Arc<Held<S>>, Range<u64>)>,
}

impl<S> Default for Missing<S> {
    fn default() -> Self {
        Self { paths: BTreeSet::new(), ranges: Vec::new() }
    }
}

/// Records what is missing, while somebody wants to know.
pub(super) struct Recorder<S>(Mutex<Option<Missing<S>>>);

impl<S> Default for Recorder<S> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<S> Recorder<S> {
    fn lock(&self) -> MutexGuard<'_, Option<Missing<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`. `Err` with what was missing, if anything was: what `work` returned is then of
    /// no use. Only one may record at a time.
    pub(super) fn record<T>(&self, work: impl FnOnce() -> T) -> Result<T, Missing<S>> {
        *self.lock() = Some(Missing::default());
        let result = work();
        match self.lock().take() {
            Some(missing) if missing.paths.len() + missing.ranges.len() > 0 => Err(missing),
            _ => Ok(result),
        }
    }

    /// Notes a file that has not been opened.
    pub(super) fn path(&self, path: PathBuf) {
        if let Some(missing) = &mut *self.lock() {
            missing.paths.insert(path);
        }
    }

    /// Notes bytes of a file, those that have not been fetched.
    fn range(&self, file: &Arc<Held<S>>, range: Range<u64>) {
        if let Some(missing) = &mut *self.lock() {
            let holes = file.holes(range).into_iter();
            missing.ranges.extend(holes.map(|hole| (Arc::clone(file), hole)));
        }
    }
}

impl<S> AsyncFile<S> {
    pub(super) fn new(held: Arc<Held<S>>, missing: Arc<Recorder<S>>) -> Self {
        Self { held, missing }
    }

    pub(super) fn held(&self) -> &Arc<Held<S>> {
        &self.held
    }

    /// The source of the file's bytes.
    pub fn source(&self) -> &S {
        &self.held.source
    }
}

impl<S: AsyncReadAt> ReadAt for AsyncFile<S> {
    fn byte_len(&self) -> u64 {
        self.held.source.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (end, len) = (offset.saturating_add(buf.len() as u64), self.byte_len());
        if end > len {
            let message = format!("expected at least {end} bytes, found {len}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let missing = offset + self.held.copy(buf, offset)? as u64;
        if missing < end {
            self.missing.range(&self.held, missing..end);
            return Err(not_fetched(&format!("bytes {missing} to {end} have")));
        }
        Ok(())
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let len = self.byte_len();
        ranges.filter(|range| range.end <= len).for_each(|range| {
            self.missing.range(&self.held, range);
        });
    }
}

impl<S> fmt::Debug for AsyncFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.held.pieces().by_start.len();
        f.debug_struct("AsyncFile").field("pieces", &held).finish_non_exhaustive()
    }
}

/// The error for something that has not been fetched.
pub(super) fn not_fetched(what: &str) -> io::Error {
    let message =
        format!("{what} not been fetched: read by `AsyncStore::run`, or fetch the tensors before");
    io::Error::new(io::ErrorKind::WouldBlock, message)
}

/// The same error once more.
pub(super) fn again(error: &Arc<io::Error>) -> io::Error {
    io::Error::new(error.kind(), Again(Arc::clone(error)))
}

#[derive(Debug)]
struct Again(Arc<io::Error>);

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for Again {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source()
    }
}
