//! [`ReadAhead`]: reads tensors before the model asks for them, and keeps them until it does.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::{Condvar, Mutex, PoisonError};

use safetensors_core::convert::can_convert;
use safetensors_core::lock;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LazyTensor, LoadOptions, Result, TensorBuf,
};

use super::budget::Budget;
use super::sequence::Sequence;
use crate::weights::Source;

/// The most tensors that are looked at, to bound the time of a request.
const LOOKED_AT: usize = 4096;

pub(super) struct AheadReader<'a> {
    pub(super) checkpoint: &'a Checkpoint<Source<'a>>,
    /// Options that convert to `dtype`.
    pub(super) options: LoadOptions,
    /// The dtype that the model asks for.
    pub(super) dtype: Dtype,
    /// The most bytes ahead, in memory.
    pub(super) limit: u64,
    /// Hidden tensors by position. Empty if none is.
    pub(super) hidden: &'a [bool],
}

impl AheadReader<'_> {
    /// Returns the bytes of a tensor that should be read ahead.
    fn expected(&self, position: usize) -> Option<u64> {
        self.memory(&self.checkpoint.tensor_at(position)?)
    }

    /// Returns the bytes in memory, or in the file for tensors that are not converted.
    pub(super) fn byte_len(&self, tensor: &LazyTensor<'_, Source<'_>>) -> u64 {
        let from = tensor.dtype();
        let is_asked = from == Dtype::C64 || from.is_float() == self.dtype.is_float();
        let plan = tensor.dtype_plan(&self.options).ok().filter(|_| is_asked);
        let bytes = plan.and_then(|plan| plan.byte_len(tensor.shape(), &self.options).ok());
        bytes.unwrap_or_else(|| tensor.byte_len())
    }

    /// Returns `None` for tensors without a conversion, and for integers in a model of floats.
    // A model asks for integers, such as position ids, in another dtype.
    fn memory(&self, tensor: &LazyTensor<'_, Source<'_>>) -> Option<u64> {
        let (from, to) = (tensor.dtype(), self.dtype);
        let is_expected = from != Dtype::C64
            && from.is_float() == to.is_float()
            && (from == to || can_convert(from, to))
            && tensor.dtype_plan(&self.options).is_ok();
        let bits = tensor.element_count().saturating_mul(to.bits().into());
        is_expected.then(|| bits.div_ceil(8))
    }
}

/// Tensors that were read ahead, and the model's requests so far.
#[derive(Debug)]
pub(super) struct ReadAhead {
    state: Mutex<ReadAheadState>,
    /// Signals that a read has ended.
    changed: Condvar,
}

#[derive(Debug)]
struct ReadAheadState {
    /// Requests by position.
    asked: Vec<bool>,
    /// The number of requested tensors.
    asked_tensors: usize,
    /// Made at the second request, because it takes a moment for very many tensors.
    sequence: Option<Sequence>,
    budget: Budget,
    /// Tensors ahead by position.
    slots: HashMap<usize, Slot>,
    /// Tensors that could not be read, and are not read ahead again.
    left_out: HashSet<usize>,
    /// The bytes asked for when stale slots were last looked for.
    cleaned_at: u64,
}

#[derive(Debug)]
struct Slot {
    dtype: Dtype,
    bytes: u64,
    /// `None` while a thread reads it.
    buf: Option<TensorBuf>,
    /// The bytes asked for when the tensor was read ahead. `None` for a prefetched tensor, which
    /// never becomes stale.
    since: Option<u64>,
}

impl ReadAhead {
    pub(super) fn new(tensors: usize) -> Self {
        let state = ReadAheadState {
            asked: vec![false; tensors],
            asked_tensors: 0,
            sequence: None,
            budget: Budget::default(),
            slots: HashMap::new(),
            left_out: HashSet::new(),
            cleaned_at: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn asked(&self) -> Vec<bool> {
        lock(&self.state).asked.clone()
    }

    /// Takes a tensor that is ahead, or reads it, together with the next ones if the model asks in
    /// sequence.
    pub(super) fn take(
        &self,
        reader: &AheadReader<'_>,
        position: usize,
        tensor: &LazyTensor<'_, Source<'_>>,
    ) -> Result<TensorBuf> {
        let mut state = lock(&self.state);
        let in_sequence = state.ask(reader, position, tensor);
        while let Some(slot) = state.slots.get(&position) {
            if slot.dtype != reader.dtype {
                state.discard(position);
                break;
            }
            if slot.buf.is_some() {
                match state.hand_out(position) {
                    Some(buf) => return Ok(buf),
                    None => break,
                }
            }
            // Another thread reads it.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let next = if in_sequence { state.reserve(reader, position) } else { Vec::new() };
        drop(state);
        if next.is_empty() {
            return tensor.read_with(&reader.options);
        }
        let mut reading = Reading { ahead: self, positions: next };
        match reading.read(reader, Some(position)) {
            Ok(Some(buf)) => return Ok(buf),
            Err(error) if matches!(error.kind(), ErrorKind::Cancelled) => return Err(error),
            Err(error) => self.leave_out(reader, &error, &reading.positions, position),
            Ok(None) => {}
        }
        // The error may be about a tensor that will not be asked for.
        drop(reading);
        // This tensor is read twice.
        let bytes = reader.byte_len(tensor);
        lock(&self.state).budget.read_in_vain(reader.dtype, bytes);
        tensor.read_with(&reader.options)
    }

    /// Returns how many tensors were read.
    pub(super) fn prefetch(
        &self,
        reader: &AheadReader<'_>,
        positions: impl Iterator<Item = usize>,
    ) -> Result<usize> {
        let mut wanted = Vec::new();
        let mut state = lock(&self.state);
        for position in positions {
            let Some(bytes) = reader.expected(position) else { continue };
            if state.slots.get(&position).is_some_and(|slot| slot.dtype != reader.dtype) {
                state.discard(position);
            }
            // One that is there, or that another thread reads, stays.
            if let Entry::Vacant(vacant) = state.slots.entry(position) {
                vacant.insert(Slot { dtype: reader.dtype, bytes, buf: None, since: None });
                wanted.push(position);
            }
        }
        drop(state);
        let read = wanted.len();
        Reading { ahead: self, positions: wanted }.read(reader, None)?;
        Ok(read)
    }

    /// Excludes the tensor that the error names from reading ahead, or all if it names none.
    // If the error names the one at `asked`, the others are not to blame.
    fn leave_out(
        &self,
        reader: &AheadReader<'_>,
        error: &Error,
        positions: &[usize],
        asked: usize,
    ) {
        let named = error.tensor().and_then(|name| reader.checkpoint.position(name));
        let left_out = &mut lock(&self.state).left_out;
        match named {
            Some(position) if position == asked => {}
            Some(position) if positions.contains(&position) => _ = left_out.insert(position),
            _ => left_out.extend(positions),
        }
    }
}

impl ReadAheadState {
    /// Returns `true` if the next tensors may be read ahead.
    fn ask(
        &mut self,
        reader: &AheadReader<'_>,
        position: usize,
        tensor: &LazyTensor<'_, Source<'_>>,
    ) -> bool {
        let bytes = reader.byte_len(tensor);
        self.budget.ask(reader.dtype, bytes);
        if self.asked[position] {
            return false;
        }
        let continues = reader.limit > 0 && self.asked_tensors > 0 && {
            let new = || Sequence::new(reader.checkpoint, &self.asked);
            self.sequence.get_or_insert_with(new).ask(position, tensor.byte_len())
        };
        self.asked[position] = true;
        self.asked_tensors += 1;
        continues
    }

    /// Reserves slots for the next tensors, as far as there is room.
    fn reserve(&mut self, reader: &AheadReader<'_>, position: usize) -> Vec<usize> {
        self.drop_stale(reader.limit);
        let mut room = self.budget.room(reader.dtype, reader.limit);
        let Some(sequence) = self.sequence.as_ref().filter(|_| room > 0) else {
            return Vec::new();
        };
        let mut reserved = Vec::new();
        let since = Some(self.budget.asked());
        for next in sequence.after(position).take(LOOKED_AT) {
            let is_done = self.asked[next] || self.slots.contains_key(&next);
            let is_hidden = reader.hidden.get(next).is_some_and(|&hidden| hidden);
            if is_done || is_hidden || self.left_out.contains(&next) {
                continue;
            }
            let Some(bytes) = reader.expected(next) else { continue };
            if bytes > room {
                break;
            }
            room -= bytes;
            self.budget.reserve(reader.dtype, bytes);
            self.slots.insert(next, Slot { dtype: reader.dtype, bytes, buf: None, since });
            reserved.push(next);
        }
        reserved
    }

    /// Drops tensors that the model has gone on without.
    fn drop_stale(&mut self, limit: u64) {
        let asked = self.budget.asked();
        if asked - self.cleaned_at <= limit / 4 {
            return;
        }
        self.cleaned_at = asked;
        let Some(sequence) = self.sequence.take() else { return };
        let is_stale = |position: &usize, slot: &mut Slot| {
            // The parts of a layer may come in any order, so wait for the whole layer at least.
            let patience = limit.max(sequence.group_bytes(*position)).saturating_mul(2);
            slot.buf.is_some() && slot.since.is_some_and(|since| asked - since > patience)
        };
        for (_, slot) in self.slots.extract_if(is_stale) {
            slot.waste(&mut self.budget);
        }
        self.sequence = Some(sequence);
    }

    /// Drops a tensor, unless a thread is reading it.
    fn discard(&mut self, position: usize) {
        if self.slots.get(&position).is_some_and(|slot| slot.buf.is_some())
            && let Some(slot) = self.slots.remove(&position)
        {
            slot.waste(&mut self.budget);
        }
    }

    fn hand_out(&mut self, position: usize) -> Option<TensorBuf> {
        let slot = self.slots.remove(&position)?;
        slot.settle(&mut self.budget);
        slot.buf
    }
}

impl Slot {
    /// Counts a tensor that was not read in vain.
    fn settle(&self, budget: &mut Budget) {
        if self.since.is_some() {
            budget.settle(self.dtype, self.bytes);
        }
    }

    /// Counts a tensor that may have been read in vain.
    fn waste(&self, budget: &mut Budget) {
        self.settle(budget);
        if self.since.is_some() {
            budget.read_in_vain(self.dtype, self.bytes);
        }
    }
}

/// The slots that one thread fills.
// Unfilled ones are free again at the end, so that waiting threads read for themselves, and count
// as read in vain.
struct Reading<'a> {
    ahead: &'a ReadAhead,
    positions: Vec<usize>,
}

impl Reading<'_> {
    /// Reads the tensors, and returns the one at `asked`.
    fn read(
        &mut self,
        reader: &AheadReader<'_>,
        asked: Option<usize>,
    ) -> Result<Option<TensorBuf>> {
        // In the order of the file, not in the order in which they are expected.
        let mut positions = self.positions.clone();
        positions.extend(asked);
        positions.sort_unstable();
        let tensor_at = |&position: &usize| reader.checkpoint.tensor_at(position);
        let names = positions.iter().filter_map(tensor_at).map(|tensor| tensor.name());
        let bufs = reader.checkpoint.read_named(names, &reader.options)?;
        let mut found = None;
        let mut state = lock(&self.ahead.state);
        for (position, buf) in positions.into_iter().zip(bufs) {
            if asked == Some(position) {
                found = Some(buf);
            } else if let Some(slot) = state.slots.get_mut(&position) {
                slot.buf = Some(buf);
            }
        }
        self.positions.clear();
        Ok(found)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.ahead.state);
        for position in mem::take(&mut self.positions) {
            if let Some(slot) = state.slots.remove(&position) {
                slot.waste(&mut state.budget);
            }
        }
        drop(state);
        self.ahead.changed.notify_all();
    }
}
