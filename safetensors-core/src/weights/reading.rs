//! Reads the numbers of a [`Weight`].

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::matrix::Files;
use super::model::Weight;
use super::spare::Spare;
use super::weight::Part;

impl Weight {
    /// Returns how many neighbouring rows and columns share a scale; 0 if it is not known.
    pub(crate) fn group_sizes(&self) -> [usize; 2] {
        self.numbers.sizes()
    }

    /// Whether neighbouring rows are apart in a tensor that stores it.
    pub(crate) fn scatters_rows(&self) -> bool {
        self.numbers.scatters_rows()
    }

    pub(crate) fn share(&mut self, spare: &Arc<Spare>) {
        self.panels.spare = Arc::clone(spare);
    }

    /// Computes F32 from `first` on, in C order.
    pub(crate) fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        self.numbers.read_by(&self.panels, files, first, out)
    }

    /// Announces elements that will be read soon, piece by piece.
    pub(crate) fn will_read(&self, elements: &[Range<u64>]) {
        let width = self.numbers.columns as u64;
        // The smallest part of the matrix that has all of them.
        let parts = elements.iter().filter(|range| !range.is_empty()).map(|range| {
            // An element may have a higher number than 32 bits hold, its row and column have not.
            let place = |at: u64| ((at / width) as usize, (at % width) as usize);
            let first = place(range.start);
            let last = place(range.end - 1);
            let rows = first.0..last.0 + 1;
            let columns = if rows.len() == 1 { first.1..last.1 + 1 } else { 0..width as usize };
            Part { rows, columns }
        });
        let union = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
        let all = parts.reduce(|all, part| Part {
            rows: union(all.rows, part.rows),
            columns: union(all.columns, part.columns),
        });
        if let Some(all) = all {
            self.panels.expect(&self.numbers, all);
        }
    }

    /// Announces elements that are not read any more.
    pub(crate) fn has_read(&self, elements: Range<u64>) {
        let row = |at: u64| (at / self.numbers.columns.max(1) as u64) as usize;
        if !elements.is_empty() {
            self.panels.forget(row(elements.start)..row(elements.end - 1) + 1);
        }
    }
}
