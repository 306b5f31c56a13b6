//! Reads parts of [`Strided`] tensors.

use std::collections::BTreeMap;
use std::ops::Range;
use std::{io, mem};

use super::Strided;
use super::lines::{GAP, MOST, Run, WIDE};
use crate::file::io::ReadRange;
use crate::format::slice::read_range::Files;

/// The most runs that are sorted at once.
const MOST_RUNS: usize = if cfg!(test) { 7 } else { 1 << 16 };

/// Bytes of a tensor that are read: from this byte of the tensor on.
pub(crate) struct Part<'t, 'b> {
    pub(crate) tensor: &'t Strided,
    pub(crate) start: u64,
    pub(crate) bytes: &'b mut [u8],
}

/// An error of the file with this number, for a tensor.
pub(crate) struct Failed<'t> {
    pub(crate) file: usize,
    pub(crate) tensor: &'t str,
    pub(crate) error: io::Error,
}

/// Reads parts of tensors. Elements that are near each other in a file are read together, also if
/// they are of several parts.
pub(crate) fn read<'t>(files: &dyn Files, parts: &mut [Part<'t, '_>]) -> Result<(), Failed<'t>> {
    let mut batch = Batch::default();
    for number in 0..parts.len() {
        let Part { tensor, start, ref bytes } = parts[number];
        for run in tensor.runs(start..start + bytes.len() as u64) {
            batch.add(number, run);
            if batch.is_full() {
                mem::take(&mut batch).read(files, parts)?;
            }
        }
    }
    batch.read(files, parts)
}

/// Passes the bytes of the files that are read for ranges of tensors to `each`, with the number of
/// each file.
pub(crate) fn below<'t>(
    ranges: impl Iterator<Item = (&'t Strided, Range<u64>)>,
    each: &mut dyn FnMut(usize, Range<u64>),
) {
    let mut batch = Batch::default();
    for run in ranges.flat_map(|(tensor, range)| tensor.runs(range)) {
        batch.add(0, run);
        if batch.is_full() {
            mem::take(&mut batch).below(each);
        }
    }
    batch.below(each);
}

/// Units that are read together, with the numbers of their parts.
#[derive(Default)]
struct Batch {
    narrow: Vec<(usize, Run)>,
    /// These are read into their places.
    wide: Vec<(usize, Run)>,
}

/// The ranges of each file to be read, with the name of the first tensor.
type ReadsByFile<'t, 'b> = BTreeMap<usize, (&'t str, Vec<ReadRange<'b>>)>;

impl Batch {
    fn add(&mut self, part: usize, run: Run) {
        let runs = if run.unit < WIDE { &mut self.narrow } else { &mut self.wide };
        runs.push((part, run));
    }

    fn is_full(&self) -> bool {
        self.narrow.len() + self.wide.len() >= MOST_RUNS
    }

    fn below(mut self, each: &mut dyn FnMut(usize, Range<u64>)) {
        for (_, run) in self.wide {
            each(run.file, run.from..run.from + run.unit);
        }
        self.narrow.sort_unstable_by_key(|(_, run)| (run.group(), run.from));
        let mut rest = &self.narrow[..];
        while let Some(window) = Window::first_of(&mut rest) {
            window.reads().for_each(|range| each(window.run.file, range));
        }
    }

    /// Reads everything into its place.
    fn read<'t>(mut self, files: &dyn Files, parts: &mut [Part<'t, '_>]) -> Result<(), Failed<'t>> {
        self.wide.sort_unstable_by_key(|(part, run)| (*part, run.to));
        self.narrow.sort_unstable_by_key(|(_, run)| (run.group(), run.from));
        let mut rest = &self.narrow[..];
        while !rest.is_empty() || !self.wide.is_empty() {
            let mut windows = Vec::new();
            let mut held = 0;
            while held < MOST
                && let Some(window) = Window::first_of(&mut rest)
            {
                held += window.byte_len();
                let bytes = vec![0; window.byte_len() as usize];
                windows.push((window, bytes));
            }
            let mut wanted = ReadsByFile::new();
            for (window, bytes) in &mut windows {
                let tensor = parts[window.runs[0].0].tensor;
                let (_, ranges) = wanted.entry(window.run.file).or_insert((&tensor.name, vec![]));
                let mut rest = &mut bytes[..];
                for Range { start: offset, end } in window.reads() {
                    let bytes = rest.split_off_mut(..(end - offset) as usize);
                    ranges.extend(bytes.map(|bytes| ReadRange { offset, bytes }));
                }
            }
            place(mem::take(&mut self.wide), parts, &mut wanted);
            for (file, (tensor, mut ranges)) in wanted {
                ranges.sort_unstable_by_key(|range| range.offset);
                files.read(file, &mut ranges).map_err(|error| Failed { file, tensor, error })?;
            }
            for (window, bytes) in &windows {
                window.copy(bytes, parts);
            }
        }
        Ok(())
    }
}

/// Adds units in the order of their places.
fn place<'t, 'b>(
    units: Vec<(usize, Run)>,
    parts: &'b mut [Part<'t, '_>],
    wanted: &mut ReadsByFile<'t, 'b>,
) {
    let mut units = units.into_iter().peekable();
    for (number, part) in parts.iter_mut().enumerate() {
        let (mut rest, mut at) = (&mut *part.bytes, part.start);
        while let Some((_, run)) = units.next_if(|(of, _)| *of == number) {
            // No two overlap.
            _ = rest.split_off_mut(..run.to.saturating_sub(at) as usize);
            let bytes = rest.split_off_mut(..run.unit as usize);
            at = run.to + run.unit;
            let (_, ranges) = wanted.entry(run.file).or_insert((&part.tensor.name, vec![]));
            ranges.extend(bytes.map(|bytes| ReadRange { offset: run.from, bytes }));
        }
    }
}

/// Runs with units near each other in a file, and the bytes that have all of them: `span` bytes for
/// each column.
struct Window<'r> {
    runs: &'r [(usize, Run)],
    /// The first one, with the columns of all.
    run: Run,
    span: u64,
}

impl<'r> Window<'r> {
    /// Takes the first of these sorted runs, and the next ones that are near.
    fn first_of(runs: &mut &'r [(usize, Run)]) -> Option<Self> {
        let ((_, first), others) = runs.split_first()?;
        let (mut window, mut last) =
            (Self { runs: &runs[..1], run: first.clone(), span: first.unit }, first.from);
        for (count, (_, run)) in (2..).zip(others) {
            if run.group() != first.group() || run.from > last + first.unit + GAP {
                break;
            }
            let columns = &window.run.columns;
            let columns = columns.start.min(run.columns.start)..columns.end.max(run.columns.end);
            let span = run.from - first.from + first.unit;
            let run_of_all = Run { columns, ..first.clone() };
            let wider = Self { runs: &runs[..count], run: run_of_all, span };
            if wider.byte_len() > MOST {
                break;
            }
            (window, last) = (wider, run.from);
        }
        *runs = &runs[window.runs.len()..];
        Some(window)
    }

    fn columns(&self) -> u64 {
        self.run.columns.end - self.run.columns.start
    }

    /// Returns how far apart the bytes of columns are in memory. They are read at once if they are
    /// near in the file.
    fn pitch(&self) -> u64 {
        if self.run.step <= self.span + GAP { self.run.step } else { self.span }
    }

    fn byte_len(&self) -> u64 {
        (self.columns() - 1) * self.pitch() + self.span
    }

    /// Returns the bytes of the file, in their order in memory.
    fn reads(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let step = self.run.step;
        let first = self.run.from + self.run.columns.start * step;
        let (count, len) = match self.pitch() == step {
            true => (1, self.byte_len()),
            false => (self.columns(), self.span),
        };
        (0..count).map(move |column| first + column * step..first + column * step + len)
    }

    /// Copies the units to their places.
    fn copy(&self, bytes: &[u8], parts: &mut [Part<'_, '_>]) {
        match self.run.unit {
            1 => self.copy_units::<1>(bytes, parts),
            2 => self.copy_units::<2>(bytes, parts),
            4 => self.copy_units::<4>(bytes, parts),
            8 => self.copy_units::<8>(bytes, parts),
            _ => self.copy_units::<0>(bytes, parts),
        }
    }

    /// Copies units of `N` bytes, or of any number if `N` is 0. Some columns at a time, so that
    /// their bytes stay in a processor's cache for the next runs.
    fn copy_units<const N: usize>(&self, bytes: &[u8], parts: &mut [Part<'_, '_>]) {
        const COLUMNS: usize = 64;
        let len = if N == 0 { self.run.unit as usize } else { N };
        let pitch = self.pitch() as usize;
        let all = &self.run.columns;
        for start in all.clone().step_by(COLUMNS) {
            for (part, run) in self.runs {
                let part = &mut parts[*part];
                let first = start.max(run.columns.start);
                let end = run.columns.end.min(start + COLUMNS as u64);
                let mut from = (run.from - self.run.from) as usize;
                from += (first - all.start) as usize * pitch;
                let mut to = (run.to + first * run.to_step - part.start) as usize;
                for _ in first..end {
                    part.bytes[to..to + len].copy_from_slice(&bytes[from..from + len]);
                    from += pitch;
                    to += run.to_step as usize;
                }
            }
        }
    }
}
