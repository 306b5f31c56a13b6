//! [`Ranges`]: which bytes have been written.

use std::ops::Range;

/// Sorted ranges that are not empty and do not touch.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Returns the first part that already is in the set.
    pub(super) fn insert(&mut self, new: Range<u64>) -> Result<(), Range<u64>> {
        if new.is_empty() {
            return Ok(());
        }
        // The ranges before `at` end where the new one begins, or earlier.
        let at = self.0.partition_point(|range| range.end <= new.start);
        if let Some(next) = self.0.get(at).filter(|next| next.start < new.end) {
            return Err(next.start.max(new.start)..next.end.min(new.end));
        }
        let joins_before = at > 0 && self.0[at - 1].end == new.start;
        let joins_after = self.0.get(at).is_some_and(|next| next.start == new.end);
        match (joins_before, joins_after) {
            (true, true) => self.0[at - 1].end = self.0.remove(at).end,
            (true, false) => self.0[at - 1].end = new.end,
            (false, true) => self.0[at].start = new.start,
            (false, false) => self.0.insert(at, new),
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, old: Range<u64>) {
        if old.is_empty() {
            return;
        }
        let at = self.0.partition_point(|range| range.end <= old.start);
        let Some(around) = self.0.get(at).cloned() else { return };
        let parts = [around.start..old.start, old.end..around.end];
        self.0.splice(at..=at, parts.into_iter().filter(|part| !part.is_empty()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end)
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(super) fn first_gap(&self, len: u64) -> Option<Range<u64>> {
        let gap = match self.0.first() {
            None => 0..len,
            Some(first) if first.start > 0 => 0..first.start,
            Some(first) => first.end..self.0.get(1).map_or(len, |second| second.start),
        };
        (!gap.is_empty()).then_some(gap)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_equal_a_flag_for_each_byte(
            steps in prop::collection::vec((0..64_u64, 0..12_u64, prop::bool::weighted(0.2)), 0..60)
        ) {
            const LEN: u64 = 80;
            let mut flags = [false; LEN as usize];
            let mut ranges = Ranges::default();
            let mut inserted: Vec<Range<u64>> = Vec::new();
            for (start, len, remove) in steps {
                if remove && !inserted.is_empty() {
                    let old = inserted.swap_remove(start as usize % inserted.len());
                    flags[old.start as usize..old.end as usize].fill(false);
                    ranges.remove(old);
                } else {
                    let new = start..start + len;
                    let place = &mut flags[new.start as usize..new.end as usize];
                    match ranges.insert(new.clone()) {
                        Ok(()) => {
                            prop_assert!(place.iter().all(|flag| !flag));
                            place.fill(true);
                            inserted.push(new);
                        }
                        Err(twice) => {
                            prop_assert!(new.start <= twice.start && twice.end <= new.end);
                            prop_assert!(!twice.is_empty());
                            let twice = &flags[twice.start as usize..twice.end as usize];
                            prop_assert!(twice.iter().all(|flag| *flag));
                        }
                    }
                }
                let written = flags.iter().filter(|flag| **flag).count();
                prop_assert_eq!(ranges.byte_len(), written as u64);
                let end = flags.iter().rposition(|flag| *flag).map_or(0, |last| last + 1);
                prop_assert_eq!(ranges.end(), end as u64);
                let missing = flags.iter().position(|flag| !flag).unwrap();
                let until = flags[missing..].iter().position(|flag| *flag);
                let until = until.map_or(LEN, |until| (missing + until) as u64);
                prop_assert_eq!(ranges.first_gap(LEN), Some(missing as u64..until));
                let apart = ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart, "{:?}", ranges.0);
            }
        }
    }

    #[test]
    fn complete_and_empty_ranges_have_no_gap() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.first_gap(0), None);
        ranges.insert(3..7).unwrap();
        ranges.insert(0..3).unwrap();
        assert_eq!(ranges.first_gap(7), None);
    }
}
