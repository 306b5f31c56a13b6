//! Reads parts of [`Strided`] tensors.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::{io, mem};

use super::Strided;
use super::lines::{Block, GAP, Lines};
use crate::file::io::ReadRange;
use crate::format::slice::read_range::Files;

/// The most bytes that are held before they are in their places.
const MOST: u64 = if cfg!(test) { 1 << 8 } else { 16 << 20 };

/// The most places that are read into by one call.
const MOST_PLACES: usize = if cfg!(test) { 7 } else { 1 << 16 };

/// Bytes of columns of at most this length are read together with those of their neighbours.
const SHORT: u64 = if cfg!(test) { 16 } else { 2 << 10 };

/// Bytes of a tensor that are read: from this byte of the tensor on.
pub(crate) struct Part<'t, 'b> {
    pub(crate) tensor: &'t Strided,
    pub(crate) start: u64,
    pub(crate) bytes: &'b mut [u8],
}

/// Reads parts of tensors. A block of rows and columns is read together, also if each of its rows
/// is its own part.
///
/// # Errors
///
/// The error of a file, and its number.
pub(crate) fn read(
    files: &dyn Files,
    parts: &mut [Part<'_, '_>],
) -> Result<(), (usize, io::Error)> {
    let mut batch = Batch::default();
    for number in 0..parts.len() {
        let Part { tensor, start, ref bytes } = parts[number];
        let range = start..start + bytes.len() as u64;
        for lines in tensor.within(range.clone()) {
            for block in lines.blocks(range.clone(), MOST) {
                if batch.held >= MOST || batch.direct.len() >= MOST_PLACES {
                    mem::take(&mut batch).read(files, parts)?;
                }
                match lines.is_near {
                    true => batch.gather(lines, block, number),
                    false => batch.place(lines, &block, number, &range),
                }
            }
        }
    }
    batch.read(files, parts)
}

/// Bytes that are read by one call for each file.
#[derive(Default)]
pub(crate) struct Batch<'t> {
    direct: Vec<Direct>,
    gathered: Vec<Gathered<'t>>,
    /// The last of the gathered blocks with the same columns of the same piece.
    last: HashMap<(*const Lines, Range<u64>), usize>,
    /// The bytes of the gathered blocks.
    held: u64,
}

/// Bytes that are read into their places.
struct Direct {
    part: usize,
    place: usize,
    file: usize,
    bytes: Range<u64>,
}

/// A block that is read column by column.
struct Gathered<'t> {
    lines: &'t Lines,
    block: Block,
    /// The parts that have its rows.
    parts: Vec<usize>,
}

impl<'t> Batch<'t> {
    /// Adds a range of a tensor that will be read, or was read.
    pub(crate) fn announce(&mut self, tensor: &'t Strided, range: Range<u64>) {
        for lines in tensor.within(range.clone()) {
            for block in lines.blocks(range.clone(), u64::MAX) {
                match lines.is_near {
                    true => self.gather(lines, block, 0),
                    false => self.place(lines, &block, 0, &range),
                }
            }
        }
    }

    /// Returns the bytes of the files that are read, with the number of each file.
    pub(crate) fn below(&self) -> impl Iterator<Item = (usize, Range<u64>)> {
        let direct = self.direct.iter().map(|direct| (direct.file, direct.bytes.clone()));
        direct.chain(self.gathered.iter().flat_map(|Gathered { lines, block, .. }| {
            lines.below(block).map(|bytes| (lines.file, bytes))
        }))
    }

    /// Adds a block of a part. Rows that continue a block of another part belong to that.
    fn gather(&mut self, lines: &'t Lines, block: Block, part: usize) {
        let count = block.columns.end - block.columns.start;
        let bytes = lines.span(&block).saturating_mul(count);
        let last = self.last.entry((lines, block.columns.clone())).or_insert(usize::MAX);
        match self.gathered.get_mut(*last) {
            Some(before) if lines.follows(&before.block, &block) => {
                before.block.rows.end = before.block.rows.end.max(block.rows.end);
                before.parts.push(part);
            }
            _ => {
                *last = self.gathered.len();
                self.gathered.push(Gathered { lines, block, parts: vec![part] });
            }
        }
        self.held = self.held.saturating_add(bytes);
    }

    /// Adds the units of a block of a part, which has this range of the tensor.
    fn place(&mut self, lines: &Lines, block: &Block, part: usize, range: &Range<u64>) {
        let units = block
            .rows
            .clone()
            .flat_map(|row| block.columns.clone().map(move |column| lines.place(row, column)));
        for (to, from) in units {
            let place = to.max(range.start)..range.end.min(to + lines.unit());
            let bytes = from + (place.start - to)..from + (place.end - to);
            let place = (place.start - range.start) as usize;
            self.direct.push(Direct { part, place, file: lines.file, bytes });
        }
    }

    /// Reads everything into its place.
    fn read(
        mut self,
        files: &dyn Files,
        parts: &mut [Part<'_, '_>],
    ) -> Result<(), (usize, io::Error)> {
        let mut blocks: Vec<_> = self.gathered.iter().map(Gathered::layout).collect();
        let mut wanted: BTreeMap<usize, Vec<ReadRange<'_>>> = BTreeMap::new();
        for (gathered, layout) in self.gathered.iter().zip(&mut blocks) {
            let mut rest = &mut layout.bytes[..];
            for &(offset, len) in &layout.reads {
                let (bytes, more) = mem::take(&mut rest).split_at_mut(len);
                rest = more;
                wanted.entry(gathered.lines.file).or_default().push(ReadRange { offset, bytes });
            }
        }
        self.direct.sort_unstable_by_key(|direct| (direct.part, direct.place));
        let mut direct = self.direct.into_iter().peekable();
        for (number, part) in parts.iter_mut().enumerate() {
            let (mut rest, mut at) = (&mut *part.bytes, 0);
            while let Some(next) = direct.next_if(|next| next.part == number) {
                let Direct { place, file, bytes: Range { start: offset, end }, .. } = next;
                let len = (end - offset) as usize;
                let (bytes, more) = mem::take(&mut rest)[place - at..].split_at_mut(len);
                (rest, at) = (more, place + len);
                wanted.entry(file).or_default().push(ReadRange { offset, bytes });
            }
        }
        for (file, mut ranges) in wanted {
            files.read(file, &mut ranges).map_err(|error| (file, error))?;
        }
        for (gathered, layout) in self.gathered.iter().zip(&blocks) {
            gathered.copy(layout, parts);
        }
        Ok(())
    }
}

/// The bytes of a block in memory.
struct Layout {
    bytes: Vec<u8>,
    /// The offset in the file, and the number of bytes, of each part of them.
    reads: Vec<(u64, usize)>,
    /// Where the bytes of each column begin.
    starts: Vec<usize>,
    /// The places in the tensor of the units of the first row.
    places: Vec<u64>,
}

impl Gathered<'_> {
    /// Decides where the bytes of the columns are in memory.
    fn layout(&self) -> Layout {
        let span = self.lines.span(&self.block);
        let mut reads: Vec<(u64, usize)> = Vec::new();
        let (mut starts, mut places) = (Vec::new(), Vec::new());
        let mut len = 0;
        for column in self.block.columns.clone() {
            let (place, offset) = self.lines.place(self.block.rows.start, column);
            places.push(place);
            match reads.last_mut() {
                Some((start, before))
                    if span <= SHORT
                        && offset >= *start
                        && offset <= *start + *before as u64 + GAP =>
                {
                    let skipped = (offset - *start) as usize;
                    starts.push(len - *before + skipped);
                    len += (skipped + span as usize).saturating_sub(*before);
                    *before = (*before).max(skipped + span as usize);
                }
                _ => {
                    starts.push(len);
                    reads.push((offset, span as usize));
                    len += span as usize;
                }
            }
        }
        Layout { bytes: vec![0; len], reads, starts, places }
    }

    /// Copies the units to their places.
    fn copy(&self, layout: &Layout, parts: &mut [Part<'_, '_>]) {
        match self.lines.unit() {
            1 => self.copy_units::<1>(layout, parts),
            2 => self.copy_units::<2>(layout, parts),
            4 => self.copy_units::<4>(layout, parts),
            8 => self.copy_units::<8>(layout, parts),
            _ => self.copy_units::<0>(layout, parts),
        }
    }

    /// Copies units of `N` bytes, or of any number if `N` is 0. Some columns at a time, so that
    /// their bytes stay in a processor's cache for the next rows.
    fn copy_units<const N: usize>(&self, layout: &Layout, parts: &mut [Part<'_, '_>]) {
        const COLUMNS: usize = 64;
        let rows = self.parts.iter().map(|&part| self.rows_of(&layout.places, &parts[part]));
        let rows: Vec<_> = rows.collect();
        for (places, starts) in layout.places.chunks(COLUMNS).zip(layout.starts.chunks(COLUMNS)) {
            for (&part, rows) in self.parts.iter().zip(&rows) {
                let columns = Columns { lines: self.lines, bytes: &layout.bytes, places, starts };
                columns.copy::<N>(rows.clone(), &mut parts[part]);
            }
        }
    }

    /// Returns the rows of a part, counted from the first one of the block. `places` has the places
    /// of the units of that one.
    fn rows_of(&self, places: &[u64], part: &Part<'_, '_>) -> Range<u64> {
        let [Some(first), Some(last)] = [places.first(), places.last()] else { return 0..0 };
        let apart = self.lines.row.to;
        let before = part.start.checked_sub(last + self.lines.unit());
        let start = before.map_or(0, |before| before / apart + 1);
        let end = part.start + part.bytes.len() as u64;
        let end = end.saturating_sub(*first).div_ceil(apart);
        start..end.min(self.block.rows.end - self.block.rows.start)
    }
}

/// Some columns of a block: where their first units belong, and where the bytes of each begin.
struct Columns<'a> {
    lines: &'a Lines,
    bytes: &'a [u8],
    places: &'a [u64],
    starts: &'a [usize],
}

impl Columns<'_> {
    /// Copies some rows.
    fn copy<const N: usize>(&self, mut rows: Range<u64>, part: &mut Part<'_, '_>) {
        let row = self.lines.row;
        let len = if N == 0 { self.lines.unit() as usize } else { N };
        // Of a single column, only the first unit and the last may be cut.
        if let (&[place], &[start]) = (self.places, self.starts)
            && rows.end > rows.start + 2
        {
            for at in rows.start + 1..rows.end - 1 {
                let unit = &self.bytes[start + (at * row.from) as usize..][..len];
                part.bytes[(place + at * row.to - part.start) as usize..][..len]
                    .copy_from_slice(unit);
            }
            self.copy::<N>(rows.start..rows.start + 1, part);
            rows.start = rows.end - 1;
        }
        for at in rows {
            let (to, from) = (at * row.to, (at * row.from) as usize);
            let ends = [self.places.first(), self.places.last()];
            let is_inside = ends.iter().flatten().all(|place| part.has(*place + to, len));
            for (place, start) in self.places.iter().zip(self.starts) {
                let unit = &self.bytes[start + from..][..len];
                match is_inside {
                    true => part.bytes[(place + to - part.start) as usize..][..len]
                        .copy_from_slice(unit),
                    false => part.copy_some(unit, place + to),
                }
            }
        }
    }
}

impl Part<'_, '_> {
    /// Returns whether these many bytes of the tensor are in the part.
    fn has(&self, place: u64, len: usize) -> bool {
        let end = self.start + self.bytes.len() as u64;
        place >= self.start && place + len as u64 <= end
    }

    /// Copies the bytes of a unit that are in the part.
    fn copy_some(&mut self, unit: &[u8], place: u64) {
        let end = self.start + self.bytes.len() as u64;
        let here = place.max(self.start)..end.min(place + unit.len() as u64);
        if !here.is_empty() {
            let unit = &unit[(here.start - place) as usize..(here.end - place) as usize];
            self.bytes[(here.start - self.start) as usize..][..unit.len()].copy_from_slice(unit);
        }
    }
}
