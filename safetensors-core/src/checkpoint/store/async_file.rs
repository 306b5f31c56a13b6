//! [`AsyncFile`]: a file with its fetched bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{error, fmt, io};

use crate::file::io::{AsyncReadAt, ReadAt, ReadRange};
use crate::format::error::{Error, ErrorKind};
use crate::format::parallel::Task;
use crate::format::parallel::lock;

/// A file of an [`AsyncStore`](super::AsyncStore). Reads find the bytes that have been fetched;
/// others are an error of the kind [`WouldBlock`](io::ErrorKind::WouldBlock).
pub struct AsyncFile<S> {
    pub(super) cached: Arc<CachedFile<S>>,
    missing: Arc<Recorder<S>>,
}

pub(super) struct CachedFile<S> {
    pub(super) source: S,
    pieces: Mutex<Pieces>,
}

/// Consecutive bytes, at least one, or the error of the request for them.
struct Piece {
    end: u64,
    bytes: Result<Vec<u8>, Arc<io::Error>>,
}

#[derive(Default)]
struct Pieces {
    /// By start and owner. Several owners may have the same bytes.
    by_start: BTreeMap<(u64, Task), Arc<Piece>>,
    longest: u64,
}

/// The pieces of a range, by start, and the parts that are missing.
type CachedRange = (Vec<(u64, Arc<Piece>)>, Vec<Range<u64>>);

/// The owner of pieces that stay as long as the file is open, without errors.
pub(super) const FOREVER: Task = Task::NONE;

impl Pieces {
    /// Returns a piece of any owner, or otherwise the error of this one.
    fn at(&self, offset: u64, owner: Task) -> Option<(u64, &Arc<Piece>)> {
        let earlier = self.by_start.range(..=(offset, Task::LAST)).rev();
        let near = earlier.take_while(|((start, _), _)| offset - start < self.longest);
        let mut error = None;
        for ((start, of), piece) in near.filter(|(_, piece)| offset < piece.end) {
            match piece.bytes {
                Ok(_) => return Some((*start, piece)),
                Err(_) if *of == owner => error = Some((*start, piece)),
                Err(_) => {}
            }
        }
        error
    }

    fn find(&self, range: Range<u64>, owner: Task) -> CachedRange {
        let mut found = Vec::new();
        let mut holes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if let Some((start, piece)) = self.at(at, owner) {
                found.push((start, Arc::clone(piece)));
                at = piece.end;
                continue;
            }
            let later = self.by_start.range((at, Task::NONE)..);
            let next = later.map(|((start, _), _)| *start).find(|start| *start > at);
            let end = next.map_or(range.end, |start| range.end.min(start));
            match holes.last_mut() {
                Some(Range { end: last, .. }) if *last == at => *last = end,
                _ => holes.push(at..end),
            }
            at = end;
        }
        (found, holes)
    }
}

impl<S> CachedFile<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, pieces: Mutex::default() }
    }

    /// Keeps bytes, or an error, until the owner [releases](CachedFile::release) them.
    pub(super) fn add(
        &self,
        range: Range<u64>,
        bytes: Result<Vec<u8>, Arc<io::Error>>,
        owner: Task,
    ) {
        if range.is_empty() {
            return;
        }
        let mut pieces = lock(&self.pieces);
        pieces.longest = pieces.longest.max(range.end - range.start);
        let piece = Arc::new(Piece { end: range.end, bytes });
        pieces.by_start.insert((range.start, owner), piece);
    }

    /// Shares the pieces of a range with an owner, and returns the missing parts.
    pub(super) fn claim(&self, range: Range<u64>, owner: Task) -> Vec<Range<u64>> {
        let mut pieces = lock(&self.pieces);
        let (found, holes) = pieces.find(range, owner);
        for (start, piece) in found {
            let own = pieces.by_start.entry((start, owner)).or_insert_with(|| Arc::clone(&piece));
            // The longer one has the bytes of both.
            if own.end < piece.end {
                *own = piece;
            }
        }
        holes
    }

    pub(super) fn release(&self, owner: Task) {
        lock(&self.pieces).by_start.retain(|(_, of), _| *of != owner);
    }

    /// Copies up to the first hole, and returns the number of bytes.
    fn copy(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        let owner = Task::current();
        while done < buf.len() {
            let at = offset + done as u64;
            let found =
                lock(&self.pieces).at(at, owner).map(|(start, piece)| (start, piece.clone()));
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

pub(super) struct Files<S>(pub(super) Mutex<HashMap<PathBuf, Opened<S>>>);

pub(super) type Opened<S> = Result<Arc<CachedFile<S>>, Arc<io::Error>>;

impl<S> Default for Files<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

pub(super) struct Missing<S> {
    pub(super) paths: Vec<(Arc<Files<S>>, PathBuf)>,
    pub(super) ranges: Vec<(Arc<CachedFile<S>>, Range<u64>)>,
}

impl<S> Default for Missing<S> {
    fn default() -> Self {
        Self { paths: Vec::new(), ranges: Vec::new() }
    }
}

pub(super) struct Recorder<S>(Mutex<HashMap<Task, Missing<S>>>);

impl<S> Default for Recorder<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> Recorder<S> {
    /// After `Err` the result of `work` is useless.
    pub(super) fn record<T>(&self, task: Task, work: impl FnOnce() -> T) -> Result<T, Missing<S>> {
        /// Ends the record, even if `work` panics.
        struct Recording<'r, S>(&'r Recorder<S>, Task);
        impl<S> Recording<'_, S> {
            fn end(&self) -> Option<Missing<S>> {
                lock(&self.0.0).remove(&self.1)
            }
        }
        impl<S> Drop for Recording<'_, S> {
            fn drop(&mut self) {
                self.end();
            }
        }
        lock(&self.0).insert(task, Missing::default());
        let recording = Recording(self, task);
        let result = {
            let _task = task.enter();
            work()
        };
        match recording.end() {
            Some(missing) if missing.paths.len() + missing.ranges.len() > 0 => Err(missing),
            _ => Ok(result),
        }
    }

    pub(super) fn path(&self, files: &Arc<Files<S>>, path: &Path) {
        if let Some(Missing { paths, .. }) = lock(&self.0).get_mut(&Task::current())
            && !paths.iter().any(|(of, known)| Arc::ptr_eq(of, files) && known == path)
        {
            paths.push((Arc::clone(files), path.into()));
        }
    }

    fn range(&self, file: &Arc<CachedFile<S>>, range: Range<u64>) {
        let task = Task::current();
        if let Some(missing) = lock(&self.0).get_mut(&task)
            && !lock(&file.pieces).find(range.clone(), task).1.is_empty()
        {
            missing.ranges.push((Arc::clone(file), range));
        }
    }
}

impl<S> AsyncFile<S> {
    pub(super) fn new(cached: Arc<CachedFile<S>>, missing: Arc<Recorder<S>>) -> Self {
        Self { cached, missing }
    }
}

impl<S: AsyncReadAt> ReadAt for AsyncFile<S> {
    fn byte_len(&self) -> u64 {
        self.cached.source.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        let len = self.byte_len();
        if end > len {
            let message = format!("expected at least {end} bytes, found {len}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let missing = offset + self.cached.copy(buf, offset)? as u64;
        if missing < end {
            self.missing.range(&self.cached, missing..end);
            return Err(not_fetched(&format!("bytes {missing} to {end} have")));
        }
        Ok(())
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        // All that is missing is noted.
        let read = |range: &mut ReadRange<'_>| self.read_exact_at(range.bytes, range.offset);
        ranges.iter_mut().map(read).fold(Ok(()), Result::and)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let len = self.byte_len();
        ranges.filter(|range| range.end <= len).for_each(|range| {
            self.missing.range(&self.cached, range);
        });
    }
}

impl<S> fmt::Debug for AsyncFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = lock(&self.cached.pieces).by_start.len();
        f.debug_struct("AsyncFile").field("pieces", &cached).finish_non_exhaustive()
    }
}

pub(super) fn not_fetched(what: &str) -> io::Error {
    let message =
        format!("{what} not been fetched: read by `AsyncStore::run`, or fetch the tensors before");
    io::Error::new(io::ErrorKind::WouldBlock, message)
}

pub(crate) fn is_not_fetched(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
}

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
