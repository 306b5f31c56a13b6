//! [`Rows`]: rows of a tensor by number, in any order.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use super::shape::{byte_len, element_count};
use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;

/// The wanted rows: positions of the first dimension in any order, some repeatedly.
// Each is read once, in the tensor's order, so that neighbours are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Ascending, each once.
    distinct: Vec<usize>,
    /// For each wanted row, its position in `distinct`; `None` if these are the wanted rows.
    order: Option<Vec<usize>>,
    elements: u64,
    /// In the file.
    pub(crate) row_len: u64,
}

impl Rows {
    /// Selects rows, or fails as [`TensorView::slice`](crate::TensorView::slice), and for a scalar.
    pub(crate) fn new(dtype: Dtype, shape: &[usize], wanted: &[usize]) -> Result<Self, ErrorKind> {
        let Some((&len, row)) = shape.split_first() else {
            return Err(ErrorKind::NoSuchDim { dim: 0, ndim: 0 });
        };
        if let Some(&row) = wanted.iter().find(|row| **row >= len) {
            return Err(ErrorKind::IndexOutOfBounds { dim: 0, len, asked: row.to_string() });
        }
        let row_len = match byte_len(dtype, row) {
            // No row has no bytes.
            _ if wanted.is_empty() => 0,
            Err(ErrorKind::PartialByte { dtype, .. }) => {
                return Err(ErrorKind::SliceInsideByte { dtype });
            }
            row_len => row_len?,
        };
        let mut distinct = wanted.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let position = |row: &usize| distinct.partition_point(|other| other < row);
        let order = (distinct != wanted).then(|| wanted.iter().map(position).collect());
        let rows = Self { distinct, order, elements: element_count(row)?, row_len };
        byte_len(dtype, &rows.shape(shape))?;
        Ok(rows)
    }

    pub(crate) fn shape(&self, tensor: &[usize]) -> Vec<usize> {
        core::iter::once(self.count()).chain(tensor.iter().skip(1).copied()).collect()
    }

    fn count(&self) -> usize {
        self.order.as_ref().map_or(self.distinct.len(), Vec::len)
    }

    /// Returns the bytes in the file.
    pub(crate) fn byte_len(&self) -> u64 {
        self.count() as u64 * self.row_len
    }

    pub(crate) fn wanted(&self) -> Vec<usize> {
        match &self.order {
            Some(order) => order.iter().map(|&position| self.distinct[position]).collect(),
            None => self.distinct.clone(),
        }
    }

    /// Returns the bytes to read. No two ranges touch.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &row in self.distinct.iter().filter(|_| self.row_len > 0) {
            let start = row as u64 * self.row_len;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += self.row_len,
                _ => ranges.push(start..start + self.row_len),
            }
        }
        ranges
    }

    /// Maps an element's index among the read rows to the wanted rows.
    pub(crate) fn wanted_element(&self, index: u64) -> u64 {
        let row = index / self.elements.max(1);
        let column = index % self.elements.max(1);
        let order = self.order.iter().flatten();
        let wanted = order.zip(0..).find(|(position, _)| **position as u64 == row);
        wanted.map_or(row, |(_, wanted)| wanted) * self.elements + column
    }

    /// Moves the read rows, which come first in `bytes`, to their places.
    // First the rows are brought into the order in which each is first wanted. Then each is copied
    // to its places, from the last to the first. No place comes before its row, so this needs no
    // second buffer.
    pub(crate) fn arrange(&self, bytes: &mut [u8]) {
        // Reading each row straight to its place would need a call for each row, and a buffer for
        // each conversion. Moving rows in memory costs less.
        let Some(order) = &self.order else { return };
        let len = bytes.len() / order.len().max(1);
        if len == 0 {
            return;
        }
        // The rows in the order of their first places, and for each place its row in this order.
        let mut from = Vec::new();
        let mut rank = alloc::vec![usize::MAX; self.distinct.len()];
        for &position in order {
            if rank[position] == usize::MAX {
                rank[position] = from.len();
                from.push(position);
            }
        }
        for place in 0..from.len() {
            // A row that stood at a place before this one was swapped to where that place's row
            // was.
            let mut at = from[place];
            while at < place {
                at = from[at];
            }
            from[place] = at;
            if at != place {
                let (before, after) = bytes.split_at_mut(at * len);
                before[place * len..][..len].swap_with_slice(&mut after[..len]);
            }
        }
        for (place, &position) in order.iter().enumerate().rev() {
            let start = rank[position] * len;
            if start != place * len {
                bytes.copy_within(start..start + len, place * len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arranged(shape: &[usize], wanted: &[usize]) -> Vec<u8> {
        let rows = Rows::new(Dtype::U8, shape, wanted).unwrap();
        let row = shape[1];
        let mut bytes: Vec<u8> = rows.ranges().into_iter().flatten().map(|i| i as u8).collect();
        bytes.resize(wanted.len() * row, 0xee);
        rows.arrange(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn each_row_comes_to_all_its_places(
            row in 0..4_usize,
            wanted in prop::collection::vec(0..40_usize, 0..60),
        ) {
            let expected: Vec<u8> = wanted
                .iter()
                .flat_map(|at| at * row..(at + 1) * row)
                .map(|i| i as u8)
                .collect();
            prop_assert_eq!(arranged(&[40, row], &wanted), expected);
            let rows = Rows::new(Dtype::U8, &[40, row], &wanted).unwrap();
            prop_assert_eq!(rows.wanted(), wanted.clone());
            // Of each element that is read, the first place.
            let read = rows.distinct.iter().flat_map(|at| at * row..(at + 1) * row);
            for (index, element) in read.enumerate() {
                let place = rows.wanted_element(index as u64) as usize;
                prop_assert_eq!(wanted[place / row] * row + place % row, element);
                prop_assert!(!wanted[..place / row].contains(&(element / row)));
            }
        }
    }

    // Following each chain of swaps from its start would take minutes.
    #[test]
    fn long_chains_of_rows_are_arranged() {
        let count = 200_000;
        let rotated: Vec<usize> = (0..count).map(|i| (i + count - 1) % count).collect();
        let reversed: Vec<usize> = (0..count).rev().collect();
        for wanted in [rotated, reversed] {
            let expected: Vec<u8> = wanted.iter().map(|i| *i as u8).collect();
            assert!(arranged(&[count, 1], &wanted) == expected);
        }
    }
}
