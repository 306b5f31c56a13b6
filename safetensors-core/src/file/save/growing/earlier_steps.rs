//! Steps in the finished file that is appended to.

use std::fs::File;
use std::io;

use super::steps::Layers;
use crate::file::io::copy::copy_range;
use crate::file::io::positional::{read_exact_at, write_all_at};
use crate::file::load::streaming::PIECE;

/// Some steps in the tensor of all steps. Sizes are in bytes.
pub(super) struct Spread {
    row: u64,
    whole: u64,
    /// In a row.
    first: u64,
}

impl Spread {
    /// Takes `count` steps from `first` on, of `all`.
    pub(super) fn new(Layers { inner, .. }: Layers, first: u64, count: u64, all: u64) -> Self {
        Self { row: count * inner, whole: all * inner, first: first * inner }
    }

    /// Maps a byte to the tensor of all steps.
    pub(super) fn place(&self, at: u64) -> u64 {
        let row = self.row.max(1);
        at / row * self.whole + self.first + at % row
    }
}

/// Copies the first steps from a place in a file to a place in another.
pub(super) fn put_earlier_steps(
    layers: Layers,
    spread: &Spread,
    (from, start): (&File, u64),
    (to, offset): (&File, u64),
) -> io::Result<()> {
    let row = spread.row;
    let len = row * layers.outer;
    if layers.outer <= 1 || row == spread.whole {
        return copy_range(from, start, to, offset, len);
    }
    if row >= PIECE as u64 {
        return (0..layers.outer).try_for_each(|number| {
            let at = number * row;
            copy_range(from, start + at, to, offset + spread.place(at), row)
        });
    }
    // Many short rows are read together.
    let Some(rows) = (PIECE as u64).checked_div(row) else { return Ok(()) };
    let mut buffer = vec![0; (rows * row).min(len) as usize];
    for first in (0..len).step_by(buffer.len().max(1)) {
        let piece = &mut buffer[..(len - first).min(rows * row) as usize];
        read_exact_at(from, piece, start + first)?;
        for (at, line) in (first..).step_by(row as usize).zip(piece.chunks(row as usize)) {
            write_all_at(to, line, offset + spread.place(at))?;
        }
    }
    Ok(())
}
