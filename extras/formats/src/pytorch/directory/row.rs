//! [`Row`]: F32 numbers in a row, with ranges in DeepSpeed's files.

use super::bad;
use super::states::Flat;
use crate::budget::Budget;
use crate::error::Result;
use crate::tensor_file::{Data, Place, Region};

const WIDTH: u64 = 4;

/// File, region and place.
pub(super) type Piece = (usize, Region, Data);

pub(super) struct Row {
    ranges: Vec<(usize, Flat)>,
    ends: Vec<usize>,
}

impl Row {
    pub(super) fn new(ranges: impl Iterator<Item = (usize, Flat)>) -> Self {
        let ranges = ranges.collect::<Vec<_>>();
        let mut len = 0_usize;
        let end = |(_, flat): &(usize, Flat)| {
            len = len.saturating_add(flat.len);
            len
        };
        let ends = ranges.iter().map(end).collect();
        Self { ranges, ends }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn cut(&self, at: usize, len: usize, budget: &Budget) -> Result<Vec<Piece>> {
        let end = at.saturating_add(len);
        if end > self.len() {
            return Err(bad(format!(
                "its numbers end at {end} of a row of {}; a part of it is missing",
                self.len()
            )));
        }
        let mut pieces = Vec::new();
        let mut from = at;
        let mut position = self.ends.partition_point(|&range_end| range_end <= at);
        while from < end {
            budget.keep_all::<Piece>(1)?;
            let (file, flat) = self.ranges[position];
            let begin = position.checked_sub(1).map_or(0, |before| self.ends[before]);
            let to = end.min(self.ends[position]);
            if from < to {
                let start = flat.start + (from - begin) as u64 * WIDTH;
                let region = Region::Flat { first: from - at, len: to - from };
                pieces.push((file, region, Data::Plain(Place::At(start))));
            }
            (from, position) = (to, position + 1);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_cut_anywhere() {
        // The numbers are the bytes where they begin. Some ranges are empty.
        let ranges = [(0, 0, 0), (1, 100, 2), (1, 200, 0), (2, 300, 3), (3, 400, 0)];
        let budget = Budget::new(&crate::Limits::default());
        budget.grow(0);
        let row = Row::new(ranges.iter().map(|&(file, start, len)| (file, Flat { start, len })));
        let all = [(1, 100), (1, 104), (2, 300), (2, 304), (2, 308)];
        for at in 0..=5 {
            for len in 0..=5 - at {
                let mut found = Vec::new();
                for (file, region, data) in row.cut(at, len, &budget).unwrap() {
                    let (Region::Flat { first, len }, Data::Plain(Place::At(start))) =
                        (region, data)
                    else {
                        panic!("{at} {len}");
                    };
                    assert_eq!(first, found.len());
                    found.extend((0..len as u64).map(|number| (file, start + number * WIDTH)));
                }
                assert_eq!(found, all[at..at + len]);
            }
            let error = row.cut(at, 6 - at, &budget).unwrap_err().to_string();
            assert!(error.contains("its numbers end at 6 of a row of 5"), "{error}");
        }
    }
}
