//! [`Counts`]: how often each of very many codes occurs.

use std::ops::AddAssign;

/// The number of codes of a page: 2¹¹.
const SLOT_BITS: u32 = 11;
const SLOTS: usize = 1 << SLOT_BITS;

/// The most pages that there can be.
const PAGES: usize = 1 << 12;

/// The number of pages whose memory is kept for the next tensor: 2 MiB of 32-bit counters.
const KEPT: usize = 256;

/// A counter for each code below 2²³. Only pages of counters that are used take memory.
///
/// `N` is the type of a counter: `u32` for what a thread counts at a time, `u64` for a total.
pub(super) struct Counts<N> {
    /// For each page the place of its counters. 0 means that none of its codes has occurred.
    places: Box<[u32; PAGES]>,
    /// The counters of the pages in use, and zeroed ones that are free. The first is never used.
    counters: Vec<[N; SLOTS]>,
    /// The pages in use, in the order of their counters.
    used: Vec<u32>,
}

impl<N: AddAssign + Copy + Default + From<u8>> Counts<N> {
    pub(super) fn new() -> Self {
        let counters = vec![[N::default(); SLOTS]];
        Self { places: Box::new([0; PAGES]), counters, used: Vec::new() }
    }

    /// Counts a code once.
    #[inline(always)]
    pub(super) fn count(&mut self, code: u32) {
        *self.counter(code) += N::from(1);
    }

    /// Counts a code several times.
    pub(super) fn add(&mut self, code: u32, times: N) {
        *self.counter(code) += times;
    }

    #[inline(always)]
    fn counter(&mut self, code: u32) -> &mut N {
        let page = (code >> SLOT_BITS) as usize % PAGES;
        let place = match self.places[page] {
            0 => self.open(page),
            place => place,
        };
        &mut self.counters[place as usize][code as usize % SLOTS]
    }

    #[cold]
    fn open(&mut self, page: usize) -> u32 {
        self.used.push(page as u32);
        let place = self.used.len();
        if place == self.counters.len() {
            self.counters.push([N::default(); SLOTS]);
        }
        self.places[page] = place as u32;
        place as u32
    }

    /// Adds the counts of another one.
    pub(super) fn merge<M: Copy + Default + Into<N> + PartialEq>(&mut self, other: &Counts<M>) {
        for (&page, counters) in other.used.iter().zip(&other.counters[1..]) {
            let first = page << SLOT_BITS;
            self.counter(first);
            let place = self.places[page as usize % PAGES] as usize;
            for (counter, &more) in self.counters[place].iter_mut().zip(counters) {
                *counter += more.into();
            }
        }
    }

    /// Sets all counts to 0.
    pub(super) fn clear(&mut self) {
        for (page, counters) in self.used.drain(..).zip(&mut self.counters[1..]) {
            self.places[page as usize % PAGES] = 0;
            counters.fill(N::default());
        }
        self.counters.truncate(KEPT);
    }
}

impl<N: Copy + Default + Into<u64>> Counts<N> {
    /// The codes that have occurred, and how often each has. The codes of a page are in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.used.iter().zip(&self.counters[1..]).flat_map(|(&page, counters)| {
            let counted = counters.iter().map(|&count| count.into()).enumerate();
            counted
                .filter(|&(_, count)| count > 0)
                .map(move |(slot, count)| (page << SLOT_BITS | slot as u32, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sorted<N: Copy + Default + Into<u64>>(counts: &Counts<N>) -> Vec<(u32, u64)> {
        let mut all: Vec<_> = counts.iter().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn as_a_map_would_count_them() {
        // Codes all over the range, some of them often.
        let codes = || (0..40_000_u32).map(|i| i.wrapping_mul(2_654_435_761) >> 9 & !(i & 0x3f));
        let mut map = BTreeMap::new();
        codes().for_each(|code| *map.entry(code).or_default() += 1);
        let map: Vec<(u32, u64)> = map.into_iter().collect();
        let mut counts = Counts::<u32>::new();
        for _ in 0..2 {
            codes().for_each(|code| counts.count(code));
            assert_eq!(sorted(&counts), map);
            let mut total = Counts::<u64>::new();
            total.add(map[0].0, 5);
            total.merge(&counts);
            total.merge(&counts);
            let twice = map.iter().enumerate();
            let twice = twice.map(|(i, &(code, n))| (code, 2 * n + if i == 0 { 5 } else { 0 }));
            assert_eq!(sorted(&total), twice.collect::<Vec<_>>());
            counts.clear();
            assert_eq!(counts.iter().count(), 0);
        }
        assert!(counts.counters.len() <= KEPT);
    }
}
