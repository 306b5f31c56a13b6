//! Finishes a [`GrowingWriter`]: moves tensors to their final places and writes the header.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fs::File;
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::{io, mem};

use super::append::Before;
use super::body::{ALIGN, Body, Home};
use super::earlier_steps::{Spread, put_earlier_steps};
use super::series::{Series, SeriesState};
use super::sync::Synced;
use super::{GrowingEntry, GrowingWriter, Tensors, Whole, WriterState, Writing};
use crate::file::hash::{self, RunningDigest};
use crate::file::io::copy::copy_range;
use crate::file::io::positional::write_all_at;
use crate::file::save::atomic::AtomicFile;
use crate::file::save::layout::Layout;
use crate::file::save::sequential::prefix_with_digests;
use crate::file::save::spec::Spec;
use crate::file::save::{Order, SaveOptions};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{LENGTH_BYTES, Metadata, NameTable};
use crate::format::parallel::{lock, unpoisoned};

// The data of a smaller file moves to the front, so that its header is not mostly spaces.
const SMALL: u64 = 4 << 20;

/// The block of most file systems. Longer headers end at a multiple.
const BLOCK: u64 = 4096;

struct FinishedTensor<'a> {
    entry: &'a GrowingEntry,
    /// Of a growing tensor.
    state: Option<MutexGuard<'a, SeriesState>>,
    shape: Cow<'a, [usize]>,
    len: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// In the file, at this offset.
    InPlace(u64),
    /// In place, after the others, except for its earlier steps.
    Tail,
    /// Its length is a multiple of [`ALIGN`], so the next tensor is aligned.
    Copied,
    /// Copied after all tensors that need more alignment.
    Misaligning(Reverse<usize>),
}

impl GrowingWriter {
    /// Writes the header, gives the file its name and replaces the old file. Removes
    /// [synced](Self::sync) steps, and lets other writers begin.
    ///
    /// An error loses nothing: call this again, for example when the disk has space. On a finished
    /// file this does nothing, and all other methods fail with [`ErrorKind::AlreadyFinished`].
    /// Metadata that another program has changed in a file that is [appended to](Self::resume)
    /// stays.
    ///
    /// # Errors
    ///
    /// The path keeps the old file: [`ErrorKind::Incomplete`] if [`add`](Self::add) has failed
    /// midway; [`ErrorKind::HeaderTooLarge`]; [`ErrorKind::TooManyMetadataEntries`];
    /// [`ErrorKind::ShapeOverflow`]; [`ErrorKind::FileExists`]; [`ErrorKind::Io`], also if the
    /// tensors of a file that is appended to have changed.
    ///
    /// The path has the new file: [`ErrorKind::NotDurable`] if a power cut may undo that,
    /// [`ErrorKind::LeftBehind`] if synced steps are still there. The next call or writer of this
    /// path completes the work.
    pub fn finish(&self) -> Result<()> {
        self.finish_and_keep_lock().map(drop)
    }

    /// Keeps other writers out. `None` if the file was finished before.
    pub(super) fn finish_and_keep_lock(&self) -> Result<Option<Synced>> {
        let durable = self.shared.options.durable;
        let mut state = unpoisoned(self.shared.state.write());
        let placed = match &mut *state {
            WriterState::Writing(writing) => self.put_in_place(writing),
            WriterState::Placed(synced) => synced.sync_name(durable),
            WriterState::Finished => return Ok(None),
        };
        let placed = placed.map_err(|error| self.shared.locate(error));
        if placed.as_ref().err().is_none_or(is_in_place) {
            *state = match mem::take(&mut *state) {
                WriterState::Writing(writing) => WriterState::Placed(writing.into_synced()),
                other => other,
            };
        }
        placed?;
        let WriterState::Placed(synced) = mem::take(&mut *state) else { return Ok(None) };
        if let Err(error) = synced.retire(durable) {
            let error = error.left_behind().in_path(synced.directory());
            *state = WriterState::Placed(synced);
            return Err(error);
        }
        Ok(Some(synced))
    }

    fn put_in_place(&self, writing: &mut Writing) -> Result<()> {
        let Writing { body, before, synced } = writing;
        let synced = unpoisoned(synced.get_mut());
        body.flush()?;
        let mut metadata = match before {
            Some(before) => before.refresh(&self.shared.path)?,
            None => Metadata::new(),
        };
        let digests = self.shared.options.digests || metadata.contains_key(hash::KEY);
        let Tensors { list, metadata: new, .. } = &*lock(&self.shared.tensors);
        metadata.extend(new.clone());
        let options = SaveOptions {
            metadata,
            digests,
            order: Order::Given,
            tied: None,
            ..self.shared.options.clone()
        };
        let parts = list.iter().map(|entry| FinishedTensor::new(entry));
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        parts.sort_by_key(FinishedTensor::rank);
        let assembly = Assembly { path: &self.shared.path, body, before: before.as_ref(), parts };
        let mut moved = assembly.put(&options)?;
        drop(assembly);
        synced.mark_finishing(options.durable)?;
        let file = moved.as_mut().unwrap_or(body.file_mut());
        file.begin_commit()?;
        if let Some(before) = before {
            before.release().inspect_err(|_| file.end_commit())?;
        }
        file.commit_held()
    }
}

fn is_in_place(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotDurable(_))
}

// No source is overwritten, so all of this can be done again.
struct Assembly<'a> {
    path: &'a Path,
    body: &'a Body,
    before: Option<&'a Before>,
    parts: Vec<FinishedTensor<'a>>,
}

impl<'a> Assembly<'a> {
    /// Returns the file if the body could not become it.
    fn put(&self, options: &SaveOptions) -> Result<Option<AtomicFile>> {
        let specs: Vec<_> = self.parts.iter().map(FinishedTensor::spec).collect();
        // The names were compared when the tensors were added.
        let layout = Layout::plan_named(&specs, options, NameTable::default())?;
        let mut prefix = layout.prefix;
        let needed = layout.places;
        let shortest = prefix.len() as u64;
        let data_len = needed.last().map_or(0, |(_, range)| range.end - shortest);
        let start = match data_len < SMALL {
            true => shortest,
            false => self.body.room().max(shortest.next_multiple_of(BLOCK)),
        };
        let moved = self.move_data(start, options)?;
        let file = moved.as_ref().map_or(self.body.file(), AtomicFile::file);
        let mut copies = Copies { to: file, waiting: None };
        for (part, (_, range)) in self.parts.iter().zip(&needed) {
            self.put_tensor(part, range.start - shortest + start, &mut copies)?;
        }
        copies.flush()?;
        file.set_len(start + data_len)?;
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
        write_all_at(file, &prefix, 0)?;
        Ok(moved)
    }

    /// Moves it to another file if the file system cannot insert that room.
    fn move_data(&self, start: u64, options: &SaveOptions) -> Result<Option<AtomicFile>> {
        let body = self.body;
        if body.make_room(start) {
            return Ok(None);
        }
        let moved = AtomicFile::create(self.path, options)?;
        let tail = self.parts.iter().find_map(FinishedTensor::tail_len).unwrap_or(0);
        let metadata = body.file().metadata()?;
        let len = metadata.len().saturating_sub(body.room()).min(body.end() + tail);
        copy_range(body.file(), body.room(), moved.file(), start, len)?;
        Ok(Some(moved))
    }

    /// Does nothing if the tensor is there.
    fn put_tensor(
        &self,
        part: &FinishedTensor<'a>,
        offset: u64,
        copies: &mut Copies<'a>,
    ) -> Result<()> {
        let name = part.entry.name();
        match (part.entry, &part.state) {
            (GrowingEntry::Whole(Whole { place, .. }), _) => {
                let (from, start) = match place.home {
                    Home::Body => return Ok(()),
                    Home::Before => self.before_place(name),
                    _ => self.body.locate(&place.home, place.start),
                }?;
                copies.copy(Range { from, start, offset, len: part.len, tensor: name })
            }
            (GrowingEntry::Growing(series), Some(state)) => {
                let put = self.put_steps(series, state, copies.to, offset);
                put.map_err(|error| error.in_tensor(name))
            }
            (GrowingEntry::Growing(_), None) => Ok(()),
        }
    }

    fn put_steps(
        &self,
        series: &Series,
        state: &SeriesState,
        to: &File,
        offset: u64,
    ) -> Result<()> {
        let layers = series.layers;
        let kept = series.kept;
        let all = state.steps;
        if kept > 0 {
            let (from, start) = self.before_place(&series.name)?;
            let spread = Spread::new(layers, 0, kept, all);
            put_earlier_steps(layers, &spread, (from, start), (to, offset))?;
        }
        let spread = Spread::new(layers, kept, all - kept, all);
        if series.is_in_order() {
            let put = state.stored.put(to, offset + series.byte_len(kept));
            return Ok(put?);
        }
        series.write_steps(state, self.body, kept..all, &mut |at, bytes| {
            let at = offset + spread.place(at);
            Ok(write_all_at(to, bytes, at)?)
        })
    }

    /// Returns the place in the file that is appended to.
    fn before_place(&self, name: &str) -> io::Result<(&'a File, u64)> {
        let place = self.before.and_then(|before| before.place(name));
        place.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl<'a> FinishedTensor<'a> {
    fn new(entry: &'a GrowingEntry) -> Result<Self> {
        match entry {
            GrowingEntry::Whole(whole) => {
                whole.check_complete()?;
                Ok(Self { entry, state: None, shape: (&whole.shape).into(), len: whole.place.len })
            }
            GrowingEntry::Growing(series) => {
                let state = lock(&series.state);
                let shape = series.shape(state.steps).into();
                let len = series.byte_len(state.steps);
                Ok(Self { entry, state: Some(state), shape, len })
            }
        }
    }

    fn tail_len(&self) -> Option<u64> {
        let GrowingEntry::Growing(series) = self.entry else { return None };
        let state = self.state.as_ref().filter(|state| state.stored.is_tail())?;
        Some(series.byte_len(series.kept) + state.stored.flushed)
    }

    fn rank(&self) -> Rank {
        match (self.entry, &self.state) {
            (GrowingEntry::Whole(Whole { place, .. }), _) if matches!(place.home, Home::Body) => {
                Rank::InPlace(place.start)
            }
            (_, Some(state)) if state.stored.is_tail() => Rank::Tail,
            _ if self.len.is_multiple_of(ALIGN) => Rank::Copied,
            _ => Rank::Misaligning(Reverse(self.entry.dtype().alignment())),
        }
    }

    fn spec(&self) -> Spec<'_> {
        Spec { name: self.entry.name(), dtype: self.entry.dtype(), shape: &self.shape }
    }
}

impl Whole {
    fn check_complete(&self) -> Result<()> {
        if self.written.load(Ordering::Acquire) {
            return Ok(());
        }
        let expected = self.place.len;
        let end = self.place.len;
        let kind = ErrorKind::Incomplete { expected, found: 0, begin: 0, end };
        Err(Error::from(kind).in_tensor(&self.name))
    }
}

/// Copies neighbours that stay neighbours at once.
struct Copies<'a> {
    to: &'a File,
    waiting: Option<Range<'a>>,
}

struct Range<'a> {
    from: &'a File,
    start: u64,
    offset: u64,
    len: u64,
    /// The first of the range, for errors.
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
