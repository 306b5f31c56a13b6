//! [`Counts`]: how often each of very many codes occurs.

use std::ops::AddAssign;

/// The bits that give a code's place in a page.
const SLOT_BITS: u32 = 10;
const SLOTS: usize = 1 << SLOT_BITS;

const PAGES: usize = 1 << 12;

pub(super) const CODES: usize = PAGES * SLOTS;

/// `u32` for a thread's counts, `u64` for a total.
// The system gives memory of zeros when it is first touched, so only used pages take memory.
pub(super) struct Counts<N> {
    counters: Vec<N>,
    /// Whether a page may have counts.
    // To look at all pages would take too long.
    is_used: Vec<bool>,
    used: Vec<u32>,
}

/// The counters of a page, taken out of [`Counts`].
pub(super) struct Page {
    number: u32,
    counters: Box<[u32]>,
}

impl<N: Clone + Default> Default for Counts<N> {
    fn default() -> Self {
        let counters = vec![N::default(); CODES];
        Self { counters, is_used: vec![false; PAGES], used: Vec::new() }
    }
}

impl<N: AddAssign + Copy + Default + From<u8> + Into<u64>> Counts<N> {
    /// Prepares for the codes of a page.
    pub(super) fn open(&mut self, page: u32) {
        let is_used = &mut self.is_used[page as usize % PAGES];
        if !*is_used {
            *is_used = true;
            self.used.push(page % PAGES as u32);
        }
    }

    pub(super) fn page_of(code: u32) -> u32 {
        code >> SLOT_BITS
    }

    /// Takes codes below `CODES`, of open pages.
    #[inline(always)]
    pub(super) fn count<const CODES: usize>(&mut self, codes: impl Iterator<Item = u32>) {
        // Each code has a counter, so there is always a chunk. Because its length is a constant,
        // the loop needs no checks.
        if let Some(counters) = self.counters.first_chunk_mut::<CODES>() {
            codes.for_each(|code| counters[code as usize % CODES] += N::from(1));
        }
    }

    pub(super) fn add(&mut self, code: u32, times: N) {
        self.counters[code as usize % CODES] += times;
    }

    /// Adds counts that were taken out of others.
    pub(super) fn merge(&mut self, pages: &[Page])
    where
        N: From<u32>,
    {
        for Page { number, counters } in pages {
            self.open(*number);
            let here = &mut self.counters[*number as usize * SLOTS..][..SLOTS];
            here.iter_mut().zip(counters).for_each(|(here, &more)| *here += more.into());
        }
    }

    pub(super) fn clear(&mut self) {
        for page in self.used.drain(..) {
            self.is_used[page as usize] = false;
            self.counters[page as usize * SLOTS..][..SLOTS].fill(N::default());
        }
    }

    /// The codes of a page are in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.used.iter().flat_map(|&page| {
            let counters = &self.counters[page as usize * SLOTS..][..SLOTS];
            let counted = counters.iter().map(|&count| count.into()).enumerate();
            counted
                .filter(|&(_, count)| count > 0)
                .map(move |(slot, count)| (page << SLOT_BITS | slot as u32, count))
        })
    }
}

impl Counts<u32> {
    /// Takes out the counts, and leaves zeros.
    pub(super) fn take(&mut self) -> Vec<Page> {
        let counted = |&page: &u32| {
            let counters = &self.counters[page as usize * SLOTS..][..SLOTS];
            let is_empty = counters.iter().all(|&count| count == 0);
            (!is_empty).then(|| Page { number: page, counters: counters.into() })
        };
        let pages = self.used.iter().filter_map(counted).collect();
        self.clear();
        pages
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sorted<N: AddAssign + Copy + Default + From<u8> + Into<u64>>(
        counts: &Counts<N>,
    ) -> Vec<(u32, u64)> {
        let mut all: Vec<_> = counts.iter().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn as_a_map_would_count_them() {
        // Codes all over the range, some of them often.
        let codes = || (0..40_000_u32).map(|i| i.wrapping_mul(2_654_435_761) >> 10 & !(i & 0x3f));
        let mut map = BTreeMap::new();
        codes().for_each(|code| *map.entry(code).or_default() += 1);
        let map: Vec<(u32, u64)> = map.into_iter().collect();
        let mut counts = Counts::<u32>::default();
        for _ in 0..2 {
            for code in codes() {
                counts.open(Counts::<u32>::page_of(code));
            }
            counts.count::<CODES>(codes());
            assert_eq!(sorted(&counts), map);
            let pages = counts.take();
            assert_eq!(counts.iter().count(), 0);
            let mut total = Counts::<u64>::default();
            total.merge(&pages);
            total.merge(&pages);
            total.add(map[0].0, 5);
            let twice = map.iter().enumerate();
            let twice = twice.map(|(i, &(code, n))| (code, 2 * n + if i == 0 { 5 } else { 0 }));
            assert_eq!(sorted(&total), twice.collect::<Vec<_>>());
            total.clear();
            assert_eq!(total.iter().count(), 0);
        }
    }
}
