//! [`Panel`]: a part of a weight that several reads share.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::matrix::{Files, Raw};
use super::spare::Spare;
use super::weight::{Grids, Grouped, Part, Row};
use crate::format::parallel::{lock, unpoisoned};

// The most elements for one read: their codes stay in a processor's cache.
const MOST: usize = if cfg!(test) { 1 << 9 } else { 1 << 18 };

/// The most bytes of codes for several reads.
// A transposed weight stores each row in many places of the file, one for each input. So a load
// announces its rows, and enough of them for reads of 2 KiB are read together. Only announced rows
// are read, so a rank still reads its own part alone.
const SHARED: usize = if cfg!(test) { 1 << 9 } else { 8 << 20 };

/// The approximate number of bytes of codes that are read at once.
const TILE: usize = if cfg!(test) { 1 << 7 } else { 1 << 21 };

#[derive(Debug)]
struct Panel {
    part: Part,
    grids: Slot<Grids>,
    /// All rows and some columns, for several threads at once.
    tiles: Vec<(Range<usize>, Slot<Raw>)>,
    left: AtomicUsize,
}

/// Read at most once.
#[derive(Debug)]
struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Slot<T> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<Arc<T>> {
        Self::fill(&mut lock(&self.0), read)
    }

    /// Does nothing if another thread is reading.
    fn try_get(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<()> {
        if let Ok(mut slot) = self.0.try_lock() {
            Self::fill(&mut slot, read)?;
        }
        Ok(())
    }

    fn fill(slot: &mut Option<Arc<T>>, read: impl FnOnce() -> io::Result<T>) -> io::Result<Arc<T>> {
        match slot {
            Some(value) => Ok(Arc::clone(value)),
            None => Ok(Arc::clone(slot.insert(Arc::new(read()?)))),
        }
    }
}

impl Slot<Raw> {
    fn reuse(self, spare: &Spare) {
        let raw = unpoisoned(self.0.into_inner());
        if let Some(raw) = raw.and_then(Arc::into_inner) {
            raw.reuse(spare);
        }
    }
}

impl Panel {
    fn new(numbers: &Grouped, part: Part) -> Self {
        let Part { rows, columns } = part.clone();
        let width = match numbers.codes.is_transposed() {
            // Whole words of codes of any number of bits.
            true => (TILE * 8 / (rows.len() * numbers.codes.bits()).max(1) / 32).max(1) * 32,
            false => columns.len().max(1),
        };
        let tiles = columns.clone().step_by(width);
        let tiles = tiles.map(|start| (start..columns.end.min(start + width), Slot::new()));
        Self {
            left: AtomicUsize::new(rows.len() * columns.len()),
            tiles: tiles.collect(),
            grids: Slot::new(),
            part,
        }
    }

    fn has(&self, row: usize, columns: &Range<usize>) -> bool {
        let of_panel = &self.part.columns;
        self.part.rows.contains(&row)
            && of_panel.start <= columns.start
            && columns.end <= of_panel.end
    }

    fn read(
        &self,
        numbers: &Grouped,
        (files, spare): (&dyn Files, &Spare),
        Part { rows, columns }: &Part,
        out: &mut [f32],
    ) -> io::Result<()> {
        let grids = self.grids.get(|| numbers.fetch_grids(files, &self.part))?;
        let tiles = self.tiles.iter();
        let tiles = tiles.filter(|(tile, _)| tile.start < columns.end && columns.start < tile.end);
        let fetch = |tile: &Range<usize>| {
            numbers.codes.fetch(files, spare, self.part.rows.clone(), tile.clone())
        };
        // Threads share the work: each reads tiles that no other one is reading.
        for (tile, slot) in tiles.clone() {
            slot.try_get(|| fetch(tile))?;
        }
        let raw = tiles.map(|(tile, slot)| slot.get(|| fetch(tile)));
        let raw = raw.collect::<io::Result<Vec<_>>>()?;
        let mut memory = Row::new();
        for (row, mut out) in rows.clone().zip(out.chunks_exact_mut(columns.len())) {
            for raw in &raw {
                let tile = raw.columns();
                let mut here = columns.start.max(raw.columns().start);
                let end = columns.end.min(tile.end);
                while here < end {
                    let len = (end - here).min(Row::LEN);
                    let these;
                    (these, out) = out.split_at_mut(len);
                    numbers.compute((raw, &grids), (row, here), &mut memory, these);
                    here += len;
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct Panels {
    panels: Mutex<Vec<Arc<Panel>>>,
    pub(super) spare: Arc<Spare>,
}

impl Panels {
    // A row of a transposed weight is in many places of a file, and so are some columns of any
    // weight: it is better to read many rows at once.
    pub(super) fn expect(&self, numbers: &Grouped, part: Part) {
        let is_transposed = numbers.codes.is_transposed();
        let Part { rows, columns } = part;
        if rows.is_empty()
            || columns.is_empty()
            || !is_transposed && columns.len() == numbers.columns
        {
            return;
        }
        let most = if is_transposed { SHARED } else { TILE };
        let mut most = (most * 8 / (columns.len() * numbers.codes.bits()).max(1)).max(1);
        if is_transposed {
            // No more than needed, so that the codes stay in the cache of the thread.
            most = most.min(numbers.codes.rows_at_once());
        }
        let size = rows.len().div_ceil(rows.len().div_ceil(most));
        let mut panels = lock(&self.panels);
        Self::remove(&mut panels, &rows);
        panels.extend(rows.clone().step_by(size).map(|start| {
            let rows = start..rows.end.min(start + size);
            Arc::new(Panel::new(numbers, Part { rows, columns: columns.clone() }))
        }));
    }

    /// Also frees memory that is not in use.
    pub(super) fn forget(&self, rows: Range<usize>) {
        Self::remove(&mut lock(&self.panels), &rows);
        self.spare.clear();
    }

    fn remove(panels: &mut Vec<Arc<Panel>>, rows: &Range<usize>) {
        panels
            .retain(|panel| panel.part.rows.end <= rows.start || rows.end <= panel.part.rows.start);
    }

    fn read(
        &self,
        numbers: &Grouped,
        files: &dyn Files,
        mut part: Part,
        out: &mut [f32],
    ) -> io::Result<usize> {
        let known = lock(&self.panels);
        let panel = known.iter().find(|panel| panel.has(part.rows.start, &part.columns)).cloned();
        drop(known);
        let panel = panel.unwrap_or_else(|| Arc::new(Panel::new(numbers, part.clone())));
        part.rows.end = part.rows.end.min(panel.part.rows.end);
        let len = part.rows.len() * part.columns.len();
        panel.read(numbers, (files, &self.spare), &part, &mut out[..len])?;
        if panel.left.fetch_sub(len, Ordering::Relaxed) <= len {
            lock(&self.panels).retain(|other| !Arc::ptr_eq(other, &panel));
        }
        // The last thread that has read from it.
        if let Some(panel) = Arc::into_inner(panel) {
            panel.tiles.into_iter().for_each(|(_, slot)| slot.reuse(&self.spare));
        }
        Ok(part.rows.len())
    }
}

impl Grouped {
    /// Reads from `first` on, in C order.
    pub(super) fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        self.read_by(&Panels::default(), files, first, out)
    }

    pub(super) fn read_by(
        &self,
        panels: &Panels,
        files: &dyn Files,
        first: u64,
        out: &mut [f32],
    ) -> io::Result<()> {
        let most = match self.codes.is_transposed() {
            true => SHARED * 8 / self.codes.bits(),
            false => MOST,
        };
        let mut first = first;
        let mut out = out;
        while !out.is_empty() {
            let row = (first / self.columns as u64) as usize;
            let column = (first % self.columns as u64) as usize;
            let (rows, columns) = if column > 0 || out.len() < self.columns || self.columns > most {
                let count = (self.columns - column).min(out.len()).min(most);
                (row..row + 1, column..column + count)
            } else {
                let count = (out.len() / self.columns).min(most / self.columns);
                (row..row + count, 0..self.columns)
            };
            let these = rows.len() * columns.len();
            let width = columns.len();
            let part = Part { rows, columns };
            let len = width * panels.read(self, files, part, &mut out[..these])?;
            first += len as u64;
            out = &mut out[len..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use crate::file::io::ReadAt;
    use crate::file::load::read_slices;
    use crate::{Checkpoint, LoadOptions};

    fn same(found: &[f32], expected: impl Iterator<Item = f32>) -> bool {
        found.iter().map(|x| x.to_bits()).eq(expected.map(f32::to_bits))
    }

    #[test]
    fn numbers_do_not_depend_on_tensors_read_together() {
        let fixtures =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/testing/fixtures/quantised");
        let mut count = 0;
        for entry in std::fs::read_dir(fixtures).unwrap() {
            let path = entry.unwrap().path().join("model.safetensors");
            let checkpoint = Checkpoint::open(&path).unwrap().dequantized().unwrap();
            let weights = Checkpoint::open(&path).unwrap().quantized_weights().unwrap();
            for weight in weights.iter().filter(|weight| weight.shape.len() == 2) {
                let tensor = checkpoint.tensor(&weight.name).unwrap();
                let (source, start) = (tensor.source(), tensor.file_offset());
                let mut alone = vec![0; tensor.byte_len() as usize];
                for (at, piece) in alone.chunks_mut(37 * 4).enumerate() {
                    source.read_exact_at(piece, start + at as u64 * 37 * 4).unwrap();
                }
                let mut together = vec![0; alone.len()];
                source.will_read(&mut std::iter::once(start..start + alone.len() as u64));
                thread::scope(|scope| {
                    for (at, piece) in together.chunks_mut(alone.len() / 8 * 2).enumerate() {
                        let offset = start + (at * (alone.len() / 8 * 2)) as u64;
                        scope.spawn(move || source.read_exact_at(piece, offset).unwrap());
                    }
                });
                assert!(alone == together, "{} of {}", weight.name, path.display());

                let columns = weight.shape[1];
                let numbers: Vec<_> =
                    alone.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let part = columns / 3..columns - 1;
                let slice = tensor.slice((.., part.clone())).unwrap().max_gap(0);
                let read = read_slices(&[slice], &LoadOptions::new()).unwrap();
                let rows = numbers.chunks_exact(columns);
                let expected = rows.flat_map(|row| row[part.clone()].iter().copied());
                assert!(same(read[0].as_slice().unwrap(), expected), "{}", path.display());
                count += 1;
            }
        }
        assert!(count > 60, "{count}");
    }
}
