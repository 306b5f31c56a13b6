//! Finishes a [`GrowingWriter`]: moves all tensors to their final places and writes the header.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::append::Before;
use super::body::{ALIGN, Body, Home, ROOM};
use super::kept::Spread;
use super::series::{Series, SeriesState};
use super::{GrowingEntry, GrowingWriter, Whole};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::RunningDigest;
use crate::header::{LENGTH_BYTES, NameTable};
use crate::io::copy::copy_range;
use crate::io::positional::write_all_at;
use crate::io::shift::shift;
use crate::save::layout::Layout;
use crate::save::sequential::prefix_with_digests;
use crate::save::spec::Spec;
use crate::save::{Order, SaveOptions};

/// The data of a smaller file is moved to the front, so that its header is not mostly spaces.
const SMALL: u64 = 4 << 20;

/// A header longer than [`ROOM`] ends at a multiple of this. Most file systems have such blocks.
const BLOCK: u64 = 4096;

/// A tensor in the order of the file.
struct FinishedTensor<'a> {
    entry: &'a GrowingEntry,
    /// Of a tensor that grows.
    state: Option<MutexGuard<'a, SeriesState>>,
    shape: Cow<'a, [usize]>,
    len: u64,
}

/// The order of the parts in the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Already in the file, at this offset.
    InPlace(u64),
    /// Already in the file, after the others, except for the steps that it had before.
    Tail,
    /// Copied. Its length is a multiple of [`ALIGN`], so the next tensor is aligned.
    Copied,
    /// Copied after all tensors that need more alignment.
    Misaligning(Reverse<usize>),
}

impl GrowingWriter {
    /// Writes the header and gives the file its name, replacing the old file. Then removes the
    /// directory of [synced](Self::sync) steps, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incomplete`] if [`add`](Self::add) has failed midway through a tensor;
    /// [`ErrorKind::HeaderTooLarge`]; [`ErrorKind::TooManyMetadataEntries`];
    /// [`ErrorKind::ShapeOverflow`]; [`ErrorKind::Io`]. The path then keeps the old file, and no
    /// temporary file stays behind. So it is if the file that is [appended
    /// to](Self::append_to) was changed meanwhile. After [`ErrorKind::NotDurable`] the path has the
    /// new file.
    /// After [`ErrorKind::LeftBehind`] it has the new file, but the synced steps were not removed.
    /// The next [`create`](Self::create) removes them.
    pub fn finish(self) -> Result<()> {
        let Self { path, options, mut body, before, tensors, synced, .. } = self;
        let tensors = tensors.into_inner().unwrap_or_else(PoisonError::into_inner);
        let synced = synced.into_inner().unwrap_or_else(PoisonError::into_inner);
        let finish = || {
            body.flush().map_err(ErrorKind::Io)?;
            let parts = tensors.list.iter().map(|entry| FinishedTensor::of(entry));
            let mut parts = parts.collect::<Result<Vec<_>>>()?;
            parts.sort_by_key(FinishedTensor::rank);
            let metadata = tensors.metadata.clone();
            let options =
                SaveOptions { metadata, order: Order::Given, tied: None, ..options.clone() };
            let prefix = assemble(&body, &parts, &options)?;
            drop(parts);
            drop(tensors);
            synced.mark_finishing(options.durable)?;
            body.begin_commit(&prefix)?;
            before.as_ref().map_or(Ok(()), Before::check)?;
            // Other systems than Unix may not replace an open file.
            let _before = before.filter(|_| cfg!(unix));
            body.commit()
        };
        finish().map_err(|error: Error| error.in_path(&path))?;
        synced.remove()
    }
}

/// Moves the data to its final place. Returns the bytes that come before it.
fn assemble<'a>(
    body: &'a Body,
    parts: &[FinishedTensor<'a>],
    options: &SaveOptions,
) -> Result<Vec<u8>> {
    let specs: Vec<_> = parts.iter().map(FinishedTensor::spec).collect();
    // The names were compared when the tensors were added.
    let layout = Layout::plan_named(&specs, options, NameTable::default())?;
    let (mut prefix, needed) = (layout.prefix, layout.places);
    let shortest = prefix.len() as u64;
    let data_len = needed.last().map_or(0, |(_, range)| range.end - shortest);
    let start =
        if data_len < SMALL { shortest } else { ROOM.max(shortest.next_multiple_of(BLOCK)) };
    let file = body.file();
    let tail = parts.iter().find_map(FinishedTensor::tail_len);
    let in_place = body.end() - ROOM + tail.unwrap_or(0);
    shift(file, ROOM, start, in_place).map_err(ErrorKind::Io)?;
    let mut copies = Copies { to: file, waiting: None };
    for (part, (_, range)) in parts.iter().zip(&needed) {
        let offset = range.start - shortest + start;
        part.put(body, offset, &mut copies)?;
    }
    copies.flush()?;
    file.set_len(start + data_len).map_err(ErrorKind::Io)?;
    if options.digests {
        let mut buffer = Vec::new();
        let digests = needed.iter().map(|(_, range)| {
            let place = range.start - shortest + start..range.end - shortest + start;
            RunningDigest::default().finish(file, place, &mut buffer)
        });
        prefix = prefix_with_digests(&specs, options, digests.collect::<Result<Vec<_>>>()?)?;
    }
    // Spaces at the end of the header fill the rest of its room.
    prefix.resize(start as usize, b' ');
    prefix[..LENGTH_BYTES].copy_from_slice(&(start - LENGTH_BYTES as u64).to_le_bytes());
    Ok(prefix)
}

impl<'a> FinishedTensor<'a> {
    fn of(entry: &'a GrowingEntry) -> Result<Self> {
        match entry {
            GrowingEntry::Whole(whole) => {
                whole.check_complete()?;
                Ok(Self { entry, state: None, shape: (&whole.shape).into(), len: whole.place.len })
            }
            GrowingEntry::Growing(series) => {
                let state = series.lock();
                let (shape, len) = (series.shape(state.steps).into(), series.byte_len(state.steps));
                Ok(Self { entry, state: Some(state), shape, len })
            }
        }
    }

    /// The bytes at the end of the file, if they are of this tensor.
    fn tail_len(&self) -> Option<u64> {
        let GrowingEntry::Growing(series) = self.entry else { return None };
        let state = self.state.as_ref().filter(|state| state.stored.is_tail())?;
        Some(series.byte_len(series.kept_steps()) + state.stored.flushed())
    }

    fn rank(&self) -> Rank {
        let dtype = match (self.entry, &self.state) {
            (GrowingEntry::Whole(Whole { place, .. }), _) if matches!(place.home, Home::Body) => {
                return Rank::InPlace(place.start);
            }
            (_, Some(state)) if state.stored.is_tail() => return Rank::Tail,
            (GrowingEntry::Whole(whole), _) => whole.dtype,
            (GrowingEntry::Growing(series), _) => series.dtype,
        };
        if self.len.is_multiple_of(ALIGN) {
            Rank::Copied
        } else {
            Rank::Misaligning(Reverse(dtype.alignment()))
        }
    }

    fn spec(&self) -> Spec<'_> {
        let dtype = match self.entry {
            GrowingEntry::Whole(whole) => whole.dtype,
            GrowingEntry::Growing(series) => series.dtype,
        };
        Spec { name: self.entry.name(), dtype, shape: &self.shape }
    }

    /// Writes the tensor at `offset` of the file, unless it is there.
    fn put(&self, body: &'a Body, offset: u64, copies: &mut Copies<'a>) -> Result<()> {
        match (self.entry, &self.state) {
            (GrowingEntry::Whole(Whole { place, .. }), _) => match &place.home {
                Home::Body => Ok(()),
                home => {
                    let from = body.file_of(home);
                    let (start, len, tensor) = (place.start, self.len, self.entry.name());
                    copies.copy(Range { from, start, offset, len, tensor })
                }
            },
            (GrowingEntry::Growing(series), Some(state)) => {
                let put = put_steps(series, state, body, offset);
                put.map_err(|error| error.in_tensor(self.entry.name()))
            }
            (GrowingEntry::Growing(_), None) => Ok(()),
        }
    }
}

fn put_steps(series: &Series, state: &SeriesState, body: &Body, offset: u64) -> Result<()> {
    let (layers, kept, all) = (series.layers, series.kept_steps(), state.steps);
    if let Some(kept) = &series.kept {
        kept.put(layers, all, body.file(), offset).map_err(ErrorKind::Io)?;
    }
    let spread = Spread::new(layers, kept, all - kept, all);
    if series.is_in_order() {
        let put = state.stored.put(body.file(), offset + series.byte_len(kept));
        return Ok(put.map_err(ErrorKind::Io)?);
    }
    series.write_steps(state, body, kept..all, &mut |at, bytes| {
        let at = offset + spread.place(at);
        Ok(write_all_at(body.file(), bytes, at).map_err(ErrorKind::Io)?)
    })
}

impl Whole {
    /// Fails if a byte was not written.
    fn check_complete(&self) -> Result<()> {
        if self.written.load(Ordering::Acquire) {
            return Ok(());
        }
        let (expected, end) = (self.place.len, self.place.len);
        let kind = ErrorKind::Incomplete { expected, found: 0, begin: 0, end };
        Err(Error::from(kind).in_tensor(&self.name))
    }
}

/// Copies from hidden files. Neighbours that stay neighbours are copied at once.
struct Copies<'a> {
    to: &'a File,
    waiting: Option<Range<'a>>,
}

/// A range that is to be copied.
struct Range<'a> {
    from: &'a File,
    start: u64,
    offset: u64,
    len: u64,
    /// The first tensor of the range, for errors.
    tensor: &'a str,
}

impl<'a> Copies<'a> {
    fn copy(&mut self, range: Range<'a>) -> Result<()> {
        if let Some(before) = &mut self.waiting
            && std::ptr::eq(before.from, range.from)
            && before.start + before.len == range.start
            && before.offset + before.len == range.offset
        {
            before.len += range.len;
            return Ok(());
        }
        self.flush()?;
        self.waiting = Some(range);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let Some(Range { from, start, offset, len, tensor }) = self.waiting.take() else {
            return Ok(());
        };
        let copied = copy_range(from, start, self.to, offset, len).map_err(ErrorKind::Io);
        copied.map_err(|kind| Error::from(kind).in_tensor(tensor))
    }
}
