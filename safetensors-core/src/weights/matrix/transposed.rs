//! Matrices that are stored transposed: turned as bytes once they are read.

use std::io;
use std::ops::Range;

use pulp::NullaryFnOnce;

use super::super::spare::Spare;
use super::{Files, Lies, Matrix, Numbers, Raw, widen};
use crate::format::convert::vectorized;
use crate::format::dtype::Dtype;

/// A byte with codes of several columns, a word of codes of a column, or a number of F32.
#[derive(Clone, Copy, Debug)]
struct Unit {
    bytes: usize,
    codes: usize,
    is_number: bool,
}

impl Unit {
    // Rows that are a multiple of a page apart would share a few lines of the cache.
    fn pitch(self, count: usize) -> usize {
        let len = count * self.bytes;
        len + if len.is_multiple_of(4096) { LINE } else { 0 }
    }
}

impl Matrix {
    pub(in super::super) fn rows_at_once(&self) -> usize {
        const RUN: usize = if cfg!(test) { 1 << 6 } else { 1 << 11 };
        RUN / self.unit().bytes * self.unit().codes
    }

    pub(super) fn fetch_transposed(
        &self,
        files: &dyn Files,
        spare: &Spare,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> io::Result<Raw> {
        let [height, width] = self.stored;
        let lines_of = |matrix: usize| {
            let lines = matrix * height + columns.start..matrix * height + columns.end;
            match self.lies {
                Lies::Down { word } => {
                    lines.start * self.bits() / word..(lines.end * self.bits()).div_ceil(word)
                }
                _ => lines,
            }
        };
        let first = self.units(rows.start..rows.start + 1).start;
        let count = self.units(rows.end - 1..rows.end).end - first;
        let pitch = self.unit().pitch(lines_of(0).len());
        let mut bytes = spare.take(count * pitch);
        let mut rest = &mut bytes[..];
        let mut row = rows.start;
        while row < rows.end {
            let matrix = row / width;
            let left = row % width;
            let across = left..width.min(left + rows.end - row);
            let end = row + across.len();
            let these;
            (these, rest) = rest.split_at_mut(self.units(row..end).len() * pitch);
            self.turn(files, spare, lines_of(matrix), across, these)?;
            row = end;
        }
        let starts = (0..count).map(|line| line * pitch).collect();
        Ok(Raw { bytes, starts, first, columns })
    }

    fn turn(
        &self,
        files: &dyn Files,
        spare: &Spare,
        lines: Range<usize>,
        across: Range<usize>,
        out: &mut [u8],
    ) -> io::Result<()> {
        // Stays in a processor's cache.
        const MOST: usize = 1 << 18;
        let unit = self.unit();
        let pitch = unit.pitch(lines.len());
        let side = LINE / unit.bytes;
        // On 32 bits, the product may be larger than a `usize`. The quotient is at most `MOST`.
        let step = MOST as u64 * lines.len() as u64 / out.len().max(1) as u64;
        let step = (step as usize).max(side) / side * side;
        for first in lines.clone().step_by(step) {
            let some = first..lines.end.min(first + step);
            let mut raw = self.fetch_lines(files, spare, some.clone(), across.clone())?;
            if unit.is_number {
                raw = self.numbers(&raw, some, across.clone());
            }
            let skipped = (first - lines.start) * unit.bytes;
            match unit.bytes {
                1 => vectorized(Transpose::<1> { lines: &raw, out: &mut *out, pitch, skipped }),
                _ => vectorized(Transpose::<4> { lines: &raw, out: &mut *out, pitch, skipped }),
            }
            raw.reuse(spare);
        }
        Ok(())
    }

    fn numbers(&self, raw: &Raw, lines: Range<usize>, columns: Range<usize>) -> Raw {
        let mut bytes = Vec::new();
        let first = lines.start;
        let width = columns.len();
        let starts = (0..lines.len()).map(|line| line * width * 4).collect();
        let mut numbers = vec![0.0_f32; width];
        for line in lines {
            self.decode_line(raw, line, columns.clone(), &mut numbers);
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        Raw { bytes, starts, first, columns }
    }

    fn unit(&self) -> Unit {
        match (&self.numbers, self.lies) {
            (Numbers::Codes(_), Lies::Down { word: 32 }) => {
                Unit { bytes: 4, codes: 1, is_number: false }
            }
            (Numbers::Codes(codes), Lies::Rows { .. }) if 8 % codes.bits == 0 => {
                Unit { bytes: 1, codes: 8 / codes.bits, is_number: false }
            }
            _ => Unit { bytes: 4, codes: 1, is_number: true },
        }
    }

    /// All rows are in one matrix. Codes of a unit need not be neighbours.
    fn units(&self, rows: Range<usize>) -> Range<usize> {
        let unit = self.unit();
        let width = self.stored[1];
        let before = rows.start / width * width.div_ceil(unit.codes);
        let first = rows.start % width;
        let end = rows.start % width + rows.len();
        match &self.numbers {
            Numbers::Codes(codes) if unit.codes > 1 => {
                let bytes = codes.bytes(0, &(first..end));
                before + bytes.start as usize..before + bytes.end as usize
            }
            _ => before + first..before + end,
        }
    }

    pub(super) fn decode_transposed(
        &self,
        raw: &Raw,
        row: usize,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        let unit = self.unit();
        let width = self.stored[1];
        let skipped = (columns.start - raw.columns.start) * unit.bytes;
        let bytes = raw.from(self.units(row..row + 1).start);
        match (&self.numbers, self.lies) {
            (Numbers::Codes(codes), Lies::Rows { .. }) if !unit.is_number => {
                let before = row / width * width.div_ceil(unit.codes);
                let bit = codes.bit((row % width) as u64) as usize;
                let bytes = &raw.from(before + bit / 8)[skipped..];
                codes.decode_units(bytes.as_chunks::<1>().0, bit % 8, out);
            }
            (Numbers::Codes(codes), Lies::Down { word }) => {
                let begin = raw.columns.start * codes.bits / word * word;
                let skipped = columns.start * codes.bits / 8 - begin / 8;
                codes.decode(&bytes[skipped..], 0, columns.start, out);
            }
            _ => widen(Dtype::F32, &bytes[skipped..], out),
        }
    }
}

// A line of a cache.
const LINE: usize = 64;

/// Writes each column of units after `skipped` bytes of a row of `pitch` bytes.
struct Transpose<'a, const N: usize> {
    lines: &'a Raw,
    out: &'a mut [u8],
    pitch: usize,
    skipped: usize,
}

// Not a closure, because one of this size is not inlined.
impl<const N: usize> NullaryFnOnce for Transpose<'_, N> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lines, out, pitch, skipped } = self;
        // Square: so the bytes of each are a line of the cache.
        let side = LINE / N;
        let mut block = [[[0; 8]; LINE / 8]; LINE];
        let mut words = [[0; LINE / 8]; 8];
        for (number, out) in out.chunks_mut(side * pitch).enumerate() {
            let first = number * LINE;
            let mut skipped = skipped;
            for starts in lines.starts.chunks(side) {
                for (group, starts) in starts.chunks(8 / N).enumerate() {
                    for (words, start) in words.iter_mut().zip(starts) {
                        let bytes = &lines.bytes[start + first..];
                        // All blocks but those at the edges are whole.
                        let line = bytes.first_chunk::<LINE>().copied().unwrap_or_else(|| {
                            let mut line = [0; LINE];
                            line[..bytes.len()].copy_from_slice(bytes);
                            line
                        });
                        for (word, bytes) in words.iter_mut().zip(line.as_chunks().0) {
                            *word = u64::from_le_bytes(*bytes);
                        }
                    }
                    turn_words::<N>(&mut words);
                    for (unit, words) in words[..8 / N].iter().enumerate() {
                        for (column, word) in block[unit..].iter_mut().step_by(8 / N).zip(words) {
                            column[group] = word.to_le_bytes();
                        }
                    }
                }
                let len = starts.len() * N;
                for (column, out) in block.iter().zip(out.chunks_exact_mut(pitch)) {
                    let column = column.as_flattened();
                    let out = &mut out[skipped..skipped + len];
                    match out.first_chunk_mut::<LINE>() {
                        Some(out) => out.copy_from_slice(column),
                        None => out.copy_from_slice(&column[..len]),
                    }
                }
                skipped += len;
            }
        }
    }
}

/// The first units of the first words become the first word of the first line.
#[inline(always)]
fn turn_words<const N: usize>(lines: &mut [[u64; LINE / 8]; 8]) {
    // Opposite quarters of a square change places, then the quarters of each quarter.
    let mut apart = 4 / N;
    let mut bits = 32;
    let mut low = u64::MAX >> 32;
    while apart > 0 {
        for line in (0..8 / N).filter(|line| line & apart == 0) {
            let (above, below) = lines.split_at_mut(line + apart);
            for (first, second) in above[line].iter_mut().zip(&mut below[0]) {
                let one = *first;
                let other = *second;
                *first = one & low | (other & low) << bits;
                *second = one >> bits & low | other & !low;
            }
        }
        (apart, bits) = (apart / 2, bits / 2);
        low ^= low << bits;
    }
}
