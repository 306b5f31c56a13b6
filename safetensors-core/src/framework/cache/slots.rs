//! [`Slots`]: the slices that are kept, in the order in which they are dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use super::CacheStats;
use crate::format::error::{Error, Result};
use crate::format::slice::Selection;

/// A slice of a checkpoint's tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SliceKey {
    pub(super) position: usize,
    pub(super) selection: Selection,
    /// The bytes in memory.
    pub(super) bytes: u64,
}

/// The result of a read.
pub(super) enum Slot<T> {
    /// Was asked for.
    Asked(Arc<T>),
    /// Was read ahead, and not asked for so far.
    Ahead(Arc<T>),
    /// Could not be read ahead.
    Failed(Error),
}

/// A place in the order in which slices are dropped. All that were asked for come before all that
/// were read ahead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_ahead: bool,
    /// Counts the uses of all slices.
    used: u64,
}

impl Turn {
    /// The turn of a slice that is not in the order so far.
    const NONE: Self = Self { is_ahead: false, used: 0 };
}

enum State<T> {
    /// Will be read ahead.
    Listed,
    Reading,
    Kept(Arc<T>, Turn),
    Failed(Error),
}

/// The slices that are kept or being read. Their bytes are never more than the budget.
pub(super) struct Slots<T> {
    budget: u64,
    states: HashMap<SliceKey, State<T>>,
    /// The slices that are kept, the next to drop first.
    order: BTreeMap<Turn, SliceKey>,
    uses: u64,
    /// The bytes of the slices that are being read.
    reading: u64,
    /// The bytes of the slices that were read ahead and not asked for.
    ahead: u64,
    /// The slices to read ahead, in order.
    listed: VecDeque<SliceKey>,
    /// The slice that waits for room. No other read begins, so that enough room becomes free.
    waiting: Option<SliceKey>,
    stats: CacheStats,
    is_closed: bool,
}

impl<T> Slots<T> {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget,
            states: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            reading: 0,
            ahead: 0,
            listed: VecDeque::new(),
            waiting: None,
            stats: CacheStats::default(),
            is_closed: false,
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        self.stats
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Ends reading ahead.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns a slice that is kept, or the error of reading it ahead.
    pub(super) fn take(&mut self, key: &SliceKey, has_waited: bool) -> Option<Result<Arc<T>>> {
        let tensor = match self.states.get(key)? {
            State::Listed | State::Reading => return None,
            State::Kept(tensor, _) => Ok(tensor.clone()),
            State::Failed(_) => match self.states.remove(key)? {
                State::Failed(error) => Err(error),
                _ => return None,
            },
        };
        self.use_now(key, false);
        match has_waited || tensor.is_err() {
            true => self.stats.misses += 1,
            false => self.stats.hits += 1,
        }
        Some(tensor)
    }

    /// Begins to read a slice for a caller who waits. Returns `false` if it is being read already,
    /// or has to wait for room.
    pub(super) fn begin(&mut self, key: &SliceKey) -> bool {
        let is_first = self.waiting.as_ref().is_none_or(|waiting| waiting == key);
        if !is_first || matches!(self.states.get(key), Some(State::Reading)) {
            return false;
        }
        let begins = self.reserve(key, self.reading);
        self.waiting = (!begins).then(|| key.clone());
        self.stats.misses += u64::from(begins);
        begins
    }

    /// Begins to read the next listed slice, if there is room for it.
    pub(super) fn begin_listed(&mut self) -> Option<SliceKey> {
        // A slice that was asked for since then is not read ahead.
        while !matches!(self.states.get(self.listed.front()?), Some(State::Listed)) {
            self.listed.pop_front();
        }
        let key = self.listed.front().filter(|_| self.waiting.is_none())?.clone();
        let begins = self.reserve(&key, self.reading + self.ahead);
        if begins { self.listed.pop_front() } else { None }
    }

    /// Reserves the bytes of a slice. Drops others, unless `pinned` bytes of them leave no room.
    fn reserve(&mut self, key: &SliceKey, pinned: u64) -> bool {
        if key.bytes > self.budget.saturating_sub(pinned) {
            return false;
        }
        while self.stats.bytes_kept > self.budget - key.bytes {
            let Some((turn, dropped)) = self.order.pop_first() else { return false };
            self.states.remove(&dropped);
            self.stats.bytes_kept -= dropped.bytes;
            self.ahead -= if turn.is_ahead { dropped.bytes } else { 0 };
        }
        self.states.insert(key.clone(), State::Reading);
        self.reading += key.bytes;
        self.stats.bytes_kept += key.bytes;
        true
    }

    /// Ends a read that was begun. Nothing is kept without a slot.
    pub(super) fn finish(&mut self, key: &SliceKey, slot: Option<Slot<T>>) {
        self.reading -= key.bytes;
        let (tensor, is_ahead) = match slot {
            Some(Slot::Asked(tensor)) => (tensor, false),
            Some(Slot::Ahead(tensor)) => (tensor, true),
            failed => {
                self.stats.bytes_kept -= key.bytes;
                self.states.remove(key);
                if let Some(Slot::Failed(error)) = failed {
                    self.states.insert(key.clone(), State::Failed(error));
                }
                return;
            }
        };
        self.stats.bytes_read += key.bytes;
        self.states.insert(key.clone(), State::Kept(tensor, Turn::NONE));
        self.use_now(key, is_ahead);
    }

    /// Replaces the slices to read ahead.
    pub(super) fn list(&mut self, keys: Vec<SliceKey>) {
        for key in mem::take(&mut self.listed) {
            if matches!(self.states.get(&key), Some(State::Listed)) {
                self.states.remove(&key);
            }
        }
        for key in self.order.split_off(&Turn { is_ahead: true, used: 0 }).into_values() {
            self.use_now(&key, false);
        }
        for key in &keys {
            self.use_now(key, true);
            self.states.entry(key.clone()).or_insert(State::Listed);
        }
        self.listed = keys.into();
    }

    /// Makes a slice that is kept the last to drop, of all that were asked for or of all that were
    /// read ahead.
    fn use_now(&mut self, key: &SliceKey, is_ahead: bool) {
        let Some(State::Kept(_, turn)) = self.states.get_mut(key) else { return };
        self.uses += 1;
        let before = mem::replace(turn, Turn { is_ahead, used: self.uses });
        let key = self.order.remove(&before).unwrap_or_else(|| key.clone());
        self.ahead -= if before.is_ahead { key.bytes } else { 0 };
        self.ahead += if is_ahead { key.bytes } else { 0 };
        self.order.insert(*turn, key);
    }
}
