//! [`Slots`]: the slices that are kept, in the order in which they are dropped.

use std::cmp::Reverse;
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

/// A place in the order in which slices are dropped, the first first. No number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Was read ahead for an earlier list, and not asked for.
    Guessed(u64),
    Asked(u64),
    /// Was read ahead for this list, and not asked for so far. The last of the list comes first.
    Ahead(Reverse<u64>),
}

impl Turn {
    /// The turn of a slice that is not in the order so far.
    const NONE: Self = Self::Guessed(0);

    fn is_ahead(self) -> bool {
        matches!(self, Self::Ahead(_))
    }
}

enum SlotState<T> {
    /// Has whether the slice is read ahead.
    Reading(bool),
    Kept(Arc<T>, Turn),
    Failed(Error),
}

/// The slices that are kept or being read. Their bytes are never more than the budget.
pub(super) struct Slots<T> {
    budget: u64,
    states: HashMap<SliceKey, SlotState<T>>,
    /// The slices that are kept, the next to drop first.
    order: BTreeMap<Turn, SliceKey>,
    /// The last number of a turn.
    uses: u64,
    /// The bytes of the slices that are being read.
    reading: u64,
    /// The bytes of the slices that were read ahead and not asked for.
    ahead: u64,
    /// The slices to read ahead, in order.
    listed: VecDeque<SliceKey>,
    /// The slices of the list that were not asked for so far, and the numbers of their turns.
    wanted: HashMap<SliceKey, u64>,
    /// The slice that waits for room. No other read begins, so that enough room becomes free.
    waiting: Option<SliceKey>,
    pub(super) stats: CacheStats,
    /// Ends reading ahead.
    pub(super) is_closed: bool,
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
            wanted: HashMap::new(),
            waiting: None,
            stats: CacheStats::default(),
            is_closed: false,
        }
    }

    /// Returns a slice that is kept, or the error of reading it ahead.
    pub(super) fn take(&mut self, key: &SliceKey, has_waited: bool) -> Option<Result<Arc<T>>> {
        let found = match self.states.get(key)? {
            SlotState::Reading(_) => {
                // It stays until the caller finds it, even if it is not listed, or not any more.
                self.uses += 1;
                self.wanted.entry(key.clone()).or_insert(self.uses);
                return None;
            }
            SlotState::Kept(tensor, _) => Ok(tensor.clone()),
            SlotState::Failed(_) => match self.states.remove(key)? {
                SlotState::Failed(error) => Err(error),
                _ => return None,
            },
        };
        self.wanted.remove(key);
        self.uses += 1;
        self.set_turn(key, Turn::Asked(self.uses));
        match has_waited || found.is_err() {
            true => self.stats.misses += 1,
            false => self.stats.hits += 1,
        }
        Some(found)
    }

    /// Begins to read a slice for a caller who waits. Returns `false` if it is being read already,
    /// or has to wait for room.
    pub(super) fn begin(&mut self, key: &SliceKey) -> bool {
        let is_first = self.waiting.as_ref().is_none_or(|waiting| waiting == key);
        if !is_first || matches!(self.states.get(key), Some(SlotState::Reading(_))) {
            return false;
        }
        self.wanted.remove(key);
        let begins = self.reserve(key, false);
        self.waiting = (!begins).then(|| key.clone());
        self.stats.misses += u64::from(begins);
        begins
    }

    /// Begins to read the next listed slice, if there is room for it.
    pub(super) fn begin_listed(&mut self) -> Option<SliceKey> {
        let is_missing =
            |key: &SliceKey| self.wanted.contains_key(key) && !self.states.contains_key(key);
        while self.listed.front().is_some_and(|key| !is_missing(key)) {
            self.listed.pop_front();
        }
        let key = self.listed.front().filter(|_| self.waiting.is_none())?.clone();
        if self.reserve(&key, true) { self.listed.pop_front() } else { None }
    }

    /// Reserves the bytes of a slice. Drops others, unless the slices that have to stay leave no
    /// room.
    fn reserve(&mut self, key: &SliceKey, is_ahead: bool) -> bool {
        let pinned = self.reading + if is_ahead { self.ahead } else { 0 };
        if key.bytes > self.budget.saturating_sub(pinned) {
            return false;
        }
        while self.stats.bytes_kept > self.budget - key.bytes {
            let Some((turn, dropped)) = self.order.pop_first() else { return false };
            self.states.remove(&dropped);
            self.stats.bytes_kept -= dropped.bytes;
            self.ahead -= if turn.is_ahead() { dropped.bytes } else { 0 };
        }
        self.states.insert(key.clone(), SlotState::Reading(is_ahead));
        self.reading += key.bytes;
        self.stats.bytes_kept += key.bytes;
        true
    }

    /// Ends a read that was begun. Nothing is kept without its result.
    pub(super) fn finish(&mut self, key: &SliceKey, read: Option<Result<Arc<T>>>) {
        self.reading -= key.bytes;
        let began = self.states.remove(key);
        let Some(Ok(tensor)) = read else {
            self.stats.bytes_kept -= key.bytes;
            if let Some(Err(error)) = read {
                self.states.insert(key.clone(), SlotState::Failed(error));
            }
            return;
        };
        self.stats.bytes_read += key.bytes;
        self.states.insert(key.clone(), SlotState::Kept(tensor, Turn::NONE));
        self.uses += 1;
        let turn = match (self.wanted.get(key), began) {
            (Some(number), _) => Turn::Ahead(Reverse(*number)),
            (None, Some(SlotState::Reading(true))) => Turn::Guessed(self.uses),
            _ => Turn::Asked(self.uses),
        };
        self.set_turn(key, turn);
    }

    /// Replaces the slices to read ahead.
    pub(super) fn list(&mut self, keys: Vec<SliceKey>) {
        for (turn, key) in self.order.split_off(&Turn::Ahead(Reverse(u64::MAX))) {
            if let Turn::Ahead(Reverse(number)) = turn {
                self.set_turn(&key, Turn::Guessed(number));
            }
        }
        let before = self.uses;
        self.uses += keys.len() as u64;
        // The first place of a slice that is listed twice counts.
        let numbers = (before + 1..=self.uses).rev();
        let wanted: HashMap<_, _> = keys.iter().rev().cloned().zip(numbers).collect();
        for (key, number) in &wanted {
            self.set_turn(key, Turn::Ahead(Reverse(*number)));
        }
        self.wanted = wanted;
        self.listed = keys.into();
    }

    /// Moves a slice that is kept within the order.
    fn set_turn(&mut self, key: &SliceKey, turn: Turn) {
        let Some(SlotState::Kept(_, kept)) = self.states.get_mut(key) else { return };
        let before = mem::replace(kept, turn);
        let key = self.order.remove(&before).unwrap_or_else(|| key.clone());
        self.ahead -= if before.is_ahead() { key.bytes } else { 0 };
        self.ahead += if turn.is_ahead() { key.bytes } else { 0 };
        self.order.insert(turn, key);
    }
}
