//! Matrices that are stored transposed: their columns are turned into rows once they are read, as
//! bytes.

use std::io;
use std::ops::Range;

use super::super::codes::Order;
use super::{Files, Lies, Matrix, Numbers, Raw, widen};
use crate::dtype::Dtype;

/// What a transposed matrix moves as one: bytes with the codes of neighbouring columns of the
/// tensor, or with a number of F32.
#[derive(Clone, Copy, Debug)]
struct Unit {
    bytes: usize,
    codes: usize,
    is_number: bool,
}

impl Unit {
    /// The line of units that holds a row, if the matrices of the tensor have `width` columns.
    fn line_of(self, row: usize, width: usize) -> usize {
        row / width * width.div_ceil(self.codes) + row % width / self.codes
    }
}

impl Matrix {
    /// Reads some of the columns of stored rows, and turns them into rows.
    pub(super) fn fetch_transposed(
        &self,
        files: &dyn Files,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> io::Result<Raw> {
        let [height, width] = self.stored;
        let unit = self.unit();
        let lines_of = |matrix: usize| {
            let lines = matrix * height + columns.start..matrix * height + columns.end;
            match self.lies {
                Lies::Down { word } => {
                    lines.start * self.bits() / word..(lines.end * self.bits()).div_ceil(word)
                }
                _ => lines,
            }
        };
        let first = unit.line_of(rows.start, width);
        let count = unit.line_of(rows.end - 1, width) + 1 - first;
        let pitch = lines_of(0).len() * unit.bytes;
        let mut bytes = vec![0; count * pitch];
        let mut rest = &mut bytes[..];
        let mut row = rows.start;
        while row < rows.end {
            let (matrix, left) = (row / width, row % width);
            let across = left..width.min(left + rows.end - row);
            let last = row + across.len() - 1;
            let count = unit.line_of(last, width) + 1 - unit.line_of(row, width);
            let these;
            (these, rest) = rest.split_at_mut(count * pitch);
            self.turn(files, lines_of(matrix), across, these)?;
            row = last + 1;
        }
        let starts = (0..count).map(|line| line * pitch).collect();
        Ok(Raw { bytes, starts, first, columns })
    }

    /// Reads lines, and writes their units column by column.
    fn turn(
        &self,
        files: &dyn Files,
        lines: Range<usize>,
        across: Range<usize>,
        out: &mut [u8],
    ) -> io::Result<()> {
        /// The most bytes that are turned at once, so that they stay in a processor's cache.
        const MOST: usize = 1 << 18;
        let unit = self.unit();
        let pitch = lines.len() * unit.bytes;
        let step = (MOST * lines.len() / out.len().max(1)).max(BLOCK) / BLOCK * BLOCK;
        for first in lines.clone().step_by(step) {
            let some = first..lines.end.min(first + step);
            let mut raw = self.fetch_lines(files, some.clone(), across.clone())?;
            if unit.is_number {
                raw = self.numbers(&raw, some, across.clone());
            }
            let skipped = (first - lines.start) * unit.bytes;
            match unit.bytes {
                1 => transpose::<1>(&raw, out, pitch, skipped),
                _ => transpose::<4>(&raw, out, pitch, skipped),
            }
        }
        Ok(())
    }

    /// The same lines as numbers of F32.
    fn numbers(&self, raw: &Raw, lines: Range<usize>, columns: Range<usize>) -> Raw {
        let (mut bytes, first, width) = (Vec::new(), lines.start, columns.len());
        let starts = (0..lines.len()).map(|line| line * width * 4).collect();
        let mut numbers = vec![0.0_f32; width];
        for line in lines {
            self.decode_line(raw, line, columns.clone(), &mut numbers);
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        Raw { bytes, starts, first, columns }
    }

    /// What a transposed matrix moves as one.
    fn unit(&self) -> Unit {
        match (&self.numbers, self.lies) {
            (Numbers::Codes(_), Lies::Down { word: 32 }) => {
                Unit { bytes: 4, codes: 1, is_number: false }
            }
            (Numbers::Codes(codes), Lies::Rows { .. }) if codes.order == Order::Awq => {
                Unit { bytes: 4, codes: 8, is_number: false }
            }
            (Numbers::Codes(codes), Lies::Rows { .. })
                if 8 % codes.bits == 0 && codes.order == Order::LowFirst =>
            {
                Unit { bytes: 1, codes: 8 / codes.bits, is_number: false }
            }
            _ => Unit { bytes: 4, codes: 1, is_number: true },
        }
    }

    /// The numbers of some columns of a row.
    pub(super) fn decode_transposed(
        &self,
        raw: &Raw,
        row: usize,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        let (unit, width) = (self.unit(), self.stored[1]);
        let bytes = raw.from(unit.line_of(row, width));
        let skipped = (columns.start - raw.columns.start) * unit.bytes;
        match (&self.numbers, self.lies) {
            (Numbers::Codes(codes), Lies::Down { word }) => {
                let begin = raw.columns.start * codes.bits / word * word;
                let skipped = columns.start * codes.bits / 8 - begin / 8;
                codes.decode(&bytes[skipped..], 0, columns.start, out);
            }
            (Numbers::Codes(codes), _) if !unit.is_number => {
                let shift = codes.bit((row % width % unit.codes) as u64) as usize;
                match unit.bytes {
                    1 => codes.decode_units(bytes[skipped..].as_chunks::<1>().0, shift, out),
                    _ => codes.decode_units(bytes[skipped..].as_chunks::<4>().0, shift, out),
                }
            }
            _ => widen(Dtype::F32, &bytes[skipped..], out),
        }
    }
}

/// The number of lines and of units that are transposed at once.
const BLOCK: usize = 16;

/// Writes units of `N` bytes column by column: each column after `skipped` bytes of a row of
/// `pitch` bytes.
fn transpose<const N: usize>(lines: &Raw, out: &mut [u8], pitch: usize, skipped: usize) {
    let mut block = [[[0; N]; BLOCK]; BLOCK];
    for (number, out) in out.chunks_mut(BLOCK * pitch).enumerate() {
        let first = number * BLOCK * N;
        let mut skipped = skipped;
        for starts in lines.starts.chunks(BLOCK) {
            for (place, start) in starts.iter().enumerate() {
                let units = lines.bytes[start + first..].as_chunks::<N>().0;
                // All blocks but those at the edges are whole.
                match units.first_chunk::<BLOCK>() {
                    Some(units) => {
                        for (column, unit) in block.iter_mut().zip(units) {
                            column[place] = *unit;
                        }
                    }
                    None => {
                        for (column, unit) in block.iter_mut().zip(units) {
                            column[place] = *unit;
                        }
                    }
                }
            }
            let len = starts.len() * N;
            for (column, out) in block.iter().zip(out.chunks_exact_mut(pitch)) {
                let (units, _) = out[skipped..skipped + len].as_chunks_mut::<N>();
                match units.first_chunk_mut::<BLOCK>() {
                    Some(units) => *units = *column,
                    None => units.copy_from_slice(&column[..starts.len()]),
                }
            }
            skipped += len;
        }
    }
}
