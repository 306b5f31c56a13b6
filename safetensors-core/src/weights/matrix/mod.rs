//! [`Matrix`]: a stored tensor as numbers, for any layout of its codes.

mod transposed;

use std::io;
use std::ops::Range;

use half::{bf16, f16};

use super::codes::{Codes, Order};
use super::spare::Spare;
use crate::format::convert::ConvertOptions;
use crate::format::dtype::Dtype;
use crate::format::header::TensorInfo;
use crate::format::slice::read_range::ReadRange;
use crate::format::tensor::TensorView;
use crate::format::tensor::shape::byte_len;

pub(super) use crate::format::slice::read_range::Files;

// A longer dimension has no elements, and its number of bits may exceed 64 bits.
pub(super) const LONGEST: u64 = 1 << 40;

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) start: u64,
    pub(crate) byte_len: u64,
}

impl Stored {
    /// `None` for a tensor that cannot belong to a weight.
    pub(crate) fn new(info: &TensorInfo<'_>, file: usize, data_start: u64) -> Option<Self> {
        let stored = Self::of_parts(info.name(), info.dtype(), info.shape())?;
        Some(Self { file, start: data_start + info.data_offsets().start, ..stored })
    }

    /// Makes a tensor that is in no file.
    pub(crate) fn of_parts(name: &str, dtype: Dtype, shape: &[usize]) -> Option<Self> {
        let can_belong = shape.iter().all(|&dim| dim as u64 <= LONGEST);
        let byte_len = byte_len(dtype, shape).ok().filter(|_| can_belong)?;
        let name = name.to_owned();
        let shape = shape.to_vec();
        Some(Self { name, dtype, shape, file: 0, start: 0, byte_len })
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the last two dimensions; a vector is one row.
    pub(super) fn matrix(&self) -> [usize; 2] {
        match *self.shape {
            [.., rows, columns] => [rows, columns],
            [columns] => [1, columns],
            [] => [1, 1],
        }
    }

    pub(super) fn read(&self, files: &dyn Files) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.byte_len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = vec![0; len];
        files.read(self.file, &mut [ReadRange { offset: self.start, bytes: &mut bytes }])?;
        Ok(bytes)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Numbers {
    Codes(Codes),
    Of(Dtype),
}

impl Numbers {
    /// Makes numbers of a dtype; codes of a few bits have this order.
    pub(super) fn new(dtype: Dtype, order: Order) -> Self {
        Codes::of_dtype(dtype, order).map_or(Self::Of(dtype), Self::Codes)
    }

    pub(super) fn with(self, code: usize, value: f32) -> Self {
        match self {
            Self::Codes(codes) => Self::Codes(codes.with(code, value)),
            Self::Of(_) => self,
        }
    }
}

impl From<Dtype> for Numbers {
    fn from(dtype: Dtype) -> Self {
        Self::new(dtype, Order::LowFirst)
    }
}

impl From<Codes> for Numbers {
    fn from(codes: Codes) -> Self {
        Self::Codes(codes)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Lies {
    Rows {
        bits: u64,
    },
    /// A stream of codes down each column of words of 8 or 32 bits, from the lowest bits on.
    Down {
        word: usize,
    },
    /// A row of words holds several rows of codes, `apart` rows from each other, from the highest
    /// or lowest bits on.
    Planes {
        word: usize,
        apart: usize,
        high_first: bool,
    },
    /// Tiles of 128 rows and 4 columns, as for the scales of GPUs' matrix units.
    Tiles,
}

/// Consecutive matrices of a tensor, which can be read in parts.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    tensor: Stored,
    numbers: Numbers,
    lies: Lies,
    /// Columns in the tensor, and rows of each transposed matrix.
    stored: [usize; 2],
    is_transposed: bool,
}

impl Matrix {
    /// Rows of codes begin in new bytes.
    pub(super) fn rows(tensor: &Stored, numbers: impl Into<Numbers>, columns: usize) -> Self {
        let numbers = numbers.into();
        let bits = match &numbers {
            Numbers::Codes(codes) if codes.bits < 8 => {
                let rows = tensor.len() / tensor.matrix()[1].max(1);
                tensor.byte_len.checked_div(rows as u64).unwrap_or(0) * 8
            }
            Numbers::Codes(_) => columns as u64 * 8,
            Numbers::Of(dtype) => columns as u64 * dtype.bits() as u64,
        };
        Self::new(tensor, numbers, Lies::Rows { bits }, columns)
    }

    pub(super) fn new(
        tensor: &Stored,
        numbers: impl Into<Numbers>,
        lies: Lies,
        columns: usize,
    ) -> Self {
        let tensor = tensor.clone();
        let numbers = numbers.into();
        Self { tensor, numbers, lies, stored: [0, columns], is_transposed: false }
    }

    /// Whether neighbouring rows are apart in the tensor.
    pub(super) fn scatters_rows(&self) -> bool {
        matches!(self.lies, Lies::Planes { .. } | Lies::Tiles)
    }

    pub(super) fn transposed(mut self, rows: usize) -> Self {
        (self.stored[0], self.is_transposed) = (rows, true);
        self
    }

    // Each row is then in many pieces of a file.
    pub(super) fn is_transposed(&self) -> bool {
        self.is_transposed
    }

    pub(super) fn read(
        &self,
        files: &dyn Files,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
    ) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let raw = self.fetch(files, &Spare::default(), rows.clone(), columns.clone())?;
        for (row, out) in rows.zip(out.chunks_exact_mut(columns.len())) {
            self.decode(&raw, row, columns.clone(), out);
        }
        Ok(())
    }

    /// Reads the bytes of these rows and columns. Neither is empty.
    pub(super) fn fetch(
        &self,
        files: &dyn Files,
        spare: &Spare,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> io::Result<Raw> {
        if self.is_transposed {
            return self.fetch_transposed(files, spare, rows, columns);
        }
        let first = self.line_of(rows.start);
        let lines = match self.lies {
            // A row of words may hold several rows of codes, which are far apart.
            Lies::Planes { .. } => first..first + rows.len(),
            Lies::Down { word } => first..(rows.end * self.bits()).div_ceil(word),
            Lies::Rows { .. } | Lies::Tiles => first..self.line_of(rows.end - 1) + 1,
        };
        self.fetch_lines(files, spare, lines, columns)
    }

    fn fetch_lines(
        &self,
        files: &dyn Files,
        spare: &Spare,
        lines: Range<usize>,
        columns: Range<usize>,
    ) -> io::Result<Raw> {
        let first = lines.start;
        let mut starts = Vec::with_capacity(lines.len());
        let mut wanted: Vec<Range<u64>> = Vec::new();
        let mut len = 0;
        for line in lines {
            let bytes = self.bytes_of(line, &columns);
            match wanted.last_mut() {
                // A byte may hold the end of a row and the start of the next.
                Some(last) if (last.start..=last.end).contains(&bytes.start) => {
                    len += bytes.end.max(last.end) - last.end;
                    last.end = bytes.end.max(last.end);
                }
                _ => {
                    len += bytes.end - bytes.start;
                    wanted.push(bytes.clone());
                }
            }
            // Where the line begins among the bytes that are read.
            let last = wanted.last().map_or(bytes.start, |last| last.end);
            starts.push((len - (last - bytes.start)) as usize);
        }
        let mut bytes = spare.take(usize::try_from(len).map_err(io::Error::other)?);
        let mut rest = &mut bytes[..];
        let mut ranges = Vec::with_capacity(wanted.len());
        for range in wanted {
            let (bytes, more) = rest.split_at_mut((range.end - range.start) as usize);
            ranges.push(ReadRange { offset: self.tensor.start + range.start, bytes });
            rest = more;
        }
        files.read(self.tensor.file, &mut ranges)?;
        drop(ranges);
        Ok(Raw { bytes, starts, first, columns })
    }

    pub(super) fn bits(&self) -> usize {
        match &self.numbers {
            Numbers::Codes(codes) => codes.bits,
            Numbers::Of(dtype) => dtype.bits() as usize,
        }
    }

    /// Returns the line of the tensor with the first bits of a row.
    fn line_of(&self, row: usize) -> usize {
        match self.lies {
            Lies::Rows { .. } | Lies::Planes { .. } => row,
            Lies::Down { word } => row * self.bits() / word,
            Lies::Tiles => row / 128,
        }
    }

    /// Counts from the start of the tensor.
    fn bytes_of(&self, line: usize, columns: &Range<usize>) -> Range<u64> {
        let words = |line: usize, word: usize| {
            let start = line as u64 * self.stored[1] as u64;
            let first = columns.start as u64;
            let end = columns.end as u64;
            (start + first) * word as u64..(start + end) * word as u64
        };
        match self.lies {
            Lies::Rows { bits } => {
                let start = line as u64 * bits;
                match &self.numbers {
                    Numbers::Codes(codes) => codes.bytes(start, columns),
                    Numbers::Of(dtype) => {
                        let bytes = dtype.bits() as u64 / 8;
                        let start = start / 8;
                        start + columns.start as u64 * bytes..start + columns.end as u64 * bytes
                    }
                }
            }
            Lies::Down { word } => words(line, word / 8),
            Lies::Planes { word, apart, .. } => words(line % apart, word),
            Lies::Tiles => {
                let start = line as u64 * (self.stored[1] as u64).div_ceil(4);
                let first = columns.start as u64 / 4;
                let end = (columns.end as u64).div_ceil(4);
                (start + first) * 512..(start + end) * 512
            }
        }
    }

    /// The bytes must include these columns.
    pub(super) fn decode(&self, raw: &Raw, row: usize, columns: Range<usize>, out: &mut [f32]) {
        match self.is_transposed {
            false => self.decode_line(raw, row, columns, out),
            true => self.decode_transposed(raw, row, columns, out),
        }
    }

    fn decode_line(&self, raw: &Raw, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let line = self.line_of(row);
        let skipped = self.bytes_of(line, &columns).start - self.bytes_of(line, &raw.columns).start;
        let from = |line| &raw.from(line)[skipped as usize..];
        match (&self.numbers, self.lies) {
            (Numbers::Of(dtype), _) => widen(*dtype, from(row), out),
            (Numbers::Codes(codes), Lies::Rows { bits }) => {
                codes.decode(from(row), row as u64 * bits, columns.start, out);
            }
            (Numbers::Codes(codes), Lies::Down { word }) => {
                let bit = row * codes.bits;
                let bytes = word / 8;
                let line = bit / word;
                let shift = bit % word;
                // The rest of a code may be in the next word.
                if shift + codes.bits <= word {
                    match word {
                        8 => codes.decode_units(from(line).as_chunks::<1>().0, shift, out),
                        _ => codes.decode_units(from(line).as_chunks::<4>().0, shift, out),
                    }
                    return;
                }
                let words = from(line).chunks_exact(bytes).zip(from(line + 1).chunks_exact(bytes));
                for (value, (low, high)) in out.iter_mut().zip(words) {
                    let code = word_of(low) >> shift | word_of(high) << (word - shift);
                    *value = codes.value(code as u32);
                }
            }
            (Numbers::Codes(codes), Lies::Planes { word, apart, high_first }) => {
                let planes = word * 8 / codes.bits;
                let plane = row / apart;
                let shift = codes.bits * if high_first { planes - 1 - plane } else { plane };
                match word {
                    1 => codes.decode_units(from(row).as_chunks::<1>().0, shift, out),
                    _ => codes.decode_units(from(row).as_chunks::<4>().0, shift, out),
                }
            }
            (Numbers::Codes(codes), Lies::Tiles) => {
                let tiles = from(line);
                let in_tile = row % 32 * 16 + row % 128 / 32 * 4;
                let skipped = columns.start / 4;
                for (column, value) in columns.zip(out) {
                    let at = (column / 4 - skipped) * 512 + in_tile + column % 4;
                    *value = codes.value(u32::from(tiles[at]));
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Raw {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    first: usize,
    columns: Range<usize>,
}

impl Raw {
    fn from(&self, line: usize) -> &[u8] {
        &self.bytes[self.starts[line - self.first]..]
    }

    pub(super) fn reuse(self, spare: &Spare) {
        spare.put(self.bytes);
    }

    pub(super) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    let (pairs, _) = bytes.as_chunks::<2>();
    let (words, _) = bytes.as_chunks::<4>();
    match dtype {
        Dtype::F32 => out.iter_mut().zip(words).for_each(|(v, b)| *v = f32::from_le_bytes(*b)),
        Dtype::BF16 => {
            out.iter_mut().zip(pairs).for_each(|(v, b)| *v = bf16::from_le_bytes(*b).to_f32());
        }
        Dtype::F16 => {
            out.iter_mut().zip(pairs).for_each(|(v, b)| *v = f16::from_le_bytes(*b).to_f32());
        }
        _ => {
            let bytes = &bytes[..out.len() * dtype.bits() as usize / 8];
            let numbers = TensorView::new(dtype, &[out.len()], bytes)
                .and_then(|view| view.convert(Dtype::F32, &ConvertOptions::new()));
            if let Ok(numbers) = numbers
                && let Ok(numbers) = numbers.as_slice::<f32>()
            {
                out.copy_from_slice(numbers);
            }
        }
    }
}
