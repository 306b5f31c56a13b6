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

enum State<T> {
    /// Will be read ahead. Has the number of its place in the list.
    Listed(u64),
    /// Has that number, too, unless a caller waits for the slice.
    Reading(Option<u64>),
    Kept(Arc<T>, Turn),
    Failed(Error),
}

/// The slices that are kept or being read. Their bytes are never more than the budget.
pub(super) struct Slots<T> {
    budget: u64,
    states: HashMap<SliceKey, State<T>>,
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
    /// The last number before those of the list.
    before_list: u64,
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
            before_list: 0,
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
        let tensor = match self.states.get_mut(key)? {
            State::Listed(_) => return None,
            State::Reading(listed) => {
                *listed = None;
                return None;
            }
            State::Kept(tensor, _) => Ok(tensor.clone()),
            State::Failed(_) => match self.states.remove(key)? {
                State::Failed(error) => Err(error),
                _ => return None,
            },
        };
        let turn = self.asked_now();
        self.set_turn(key, turn);
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
        if !is_first || matches!(self.states.get(key), Some(State::Reading(_))) {
            return false;
        }
        let begins = self.reserve(key, self.reading, None);
        self.waiting = (!begins).then(|| key.clone());
        self.stats.misses += u64::from(begins);
        begins
    }

    /// Begins to read the next listed slice, if there is room for it.
    pub(super) fn begin_listed(&mut self) -> Option<SliceKey> {
        let number = loop {
            match self.states.get(self.listed.front()?) {
                Some(State::Listed(number)) => break *number,
                // A slice that was asked for since then is not read ahead.
                _ => self.listed.pop_front(),
            };
        };
        let key = self.listed.front().filter(|_| self.waiting.is_none())?.clone();
        let begins = self.reserve(&key, self.reading + self.ahead, Some(number));
        if begins { self.listed.pop_front() } else { None }
    }

    /// Reserves the bytes of a slice. Drops others, unless `pinned` bytes of them leave no room.
    fn reserve(&mut self, key: &SliceKey, pinned: u64, listed: Option<u64>) -> bool {
        if key.bytes > self.budget.saturating_sub(pinned) {
            return false;
        }
        while self.stats.bytes_kept > self.budget - key.bytes {
            let Some((turn, dropped)) = self.order.pop_first() else { return false };
            self.states.remove(&dropped);
            self.stats.bytes_kept -= dropped.bytes;
            self.ahead -= if turn.is_ahead() { dropped.bytes } else { 0 };
        }
        self.states.insert(key.clone(), State::Reading(listed));
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
                self.states.insert(key.clone(), State::Failed(error));
            }
            return;
        };
        self.stats.bytes_read += key.bytes;
        let turn = match began {
            Some(State::Reading(Some(number))) if number > self.before_list => {
                Turn::Ahead(Reverse(number))
            }
            Some(State::Reading(Some(number))) => Turn::Guessed(number),
            _ => self.asked_now(),
        };
        self.states.insert(key.clone(), State::Kept(tensor, Turn::NONE));
        self.set_turn(key, turn);
    }

    /// Replaces the slices to read ahead.
    pub(super) fn list(&mut self, keys: Vec<SliceKey>) {
        for key in mem::take(&mut self.listed) {
            if matches!(self.states.get(&key), Some(State::Listed(_))) {
                self.states.remove(&key);
            }
        }
        let ahead = self.order.split_off(&Turn::Ahead(Reverse(u64::MAX)));
        for (turn, key) in ahead {
            if let Turn::Ahead(Reverse(number)) = turn {
                self.set_turn(&key, Turn::Guessed(number));
            }
        }
        self.before_list = self.uses;
        self.uses += keys.len() as u64;
        // The first place of a slice that is listed twice counts.
        for (key, number) in keys.iter().rev().zip((self.before_list + 1..=self.uses).rev()) {
            self.set_turn(key, Turn::Ahead(Reverse(number)));
            match self.states.entry(key.clone()).or_insert(State::Listed(number)) {
                State::Listed(listed) | State::Reading(Some(listed)) => *listed = number,
                _ => {}
            }
        }
        self.listed = keys.into();
    }

    /// Returns the turn of a slice that is asked for now.
    fn asked_now(&mut self) -> Turn {
        self.uses += 1;
        Turn::Asked(self.uses)
    }

    /// Moves a slice that is kept within the order.
    fn set_turn(&mut self, key: &SliceKey, turn: Turn) {
        let Some(State::Kept(_, kept)) = self.states.get_mut(key) else { return };
        let before = mem::replace(kept, turn);
        let key = self.order.remove(&before).unwrap_or_else(|| key.clone());
        self.ahead -= if before.is_ahead() { key.bytes } else { 0 };
        self.ahead += if turn.is_ahead() { key.bytes } else { 0 };
        self.order.insert(turn, key);
    }
}
