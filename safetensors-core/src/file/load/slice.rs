//! [`LazySlice`]: a slice of a tensor in a file.

use std::ops::Range;

use super::streaming::{Announced, PIECE};
use super::{LazyTensor, LoadOptions};
use crate::file::io::{ReadAt, ReadRange};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::slice::{ByteRuns, IntoIndices, Selection};
use crate::format::tensor::{Rows, Sink, TensorBuf, TensorSource};

// Reading such a gap costs less than another call.
const DEFAULT_GAP: u64 = 512;

/// A slice of a [`LazyTensor`]. Only its bytes are read, on request.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let values: Vec<i32> = (0..12).collect();
/// save(&path, [("table", TensorView::from_slice(&[4, 3], &values)?)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let table = checkpoint.tensor("table")?;
/// let rows = table.slice((1..3, ..))?;
/// assert_eq!((rows.shape(), rows.byte_len()), (&[2, 3][..], 24));
/// assert_eq!(rows.read()?.into_vec::<i32>()?, [3, 4, 5, 6, 7, 8]);
/// // The numbers of a column lie apart. Without a gap each needs its own call.
/// let column = table.slice((.., 1))?.max_gap(0);
/// assert_eq!(column.read()?.into_vec::<i32>()?, [1, 4, 7, 10]);
/// // A slice is something to save, too.
/// save(dir.path().join("rows.safetensors"), [("rows", rows)], &SaveOptions::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LazySlice<'a, S> {
    tensor: LazyTensor<'a, S>,
    shape: Vec<usize>,
    pub(super) runs: ByteRuns,
    /// The rows, if they are given one by one.
    pub(super) rows: Option<Rows>,
    pub(super) gap: u64,
}

impl<'a, S> LazyTensor<'a, S> {
    /// Takes a slice without reading it: a tuple of positions and ranges (see
    /// [`Index`](crate::slice::Index)), or a part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooManyIndices`]; [`ErrorKind::IndexOutOfBounds`]; [`ErrorKind::ZeroStep`];
    /// [`ErrorKind::SliceInsideByte`] if a run of sub-byte elements does not begin and end on byte
    /// boundaries; for a part also [`ErrorKind::NoSuchDim`], [`ErrorKind::NoSuchRank`] and
    /// [`ErrorKind::UnevenParts`].
    pub fn slice(&self, indices: impl IntoIndices) -> Result<LazySlice<'a, S>> {
        Ok(self.selected(self.selection(indices)?))
    }

    /// Checks the indices of a slice.
    pub(crate) fn selection(&self, indices: impl IntoIndices) -> Result<Selection> {
        indices
            .into_indices(self.shape())
            .and_then(|indices| Selection::new(self.dtype(), self.shape(), &indices))
            .map_err(|kind| self.locate(kind.into()))
    }

    /// Takes the slice of a selection from this tensor.
    pub(crate) fn selected(&self, selection: Selection) -> LazySlice<'a, S> {
        let (shape, runs) = selection.into_parts();
        LazySlice {
            tensor: *self,
            shape,
            runs: ByteRuns::Pattern(runs),
            rows: None,
            gap: DEFAULT_GAP,
        }
    }

    /// Takes rows, positions of the first dimension, in any order and number, without reading them,
    /// such as the vectors of tokens from a table that is larger than memory.
    ///
    /// Each row is read once, in the file's order, and neighbours together. Memory holds the slice,
    /// and about 50 bytes a row.
    ///
    /// ```
    /// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let values: Vec<i32> = (0..12).collect();
    /// let table = TensorView::from_slice(&[6, 2], &values)?;
    /// let file = SafeTensors::from_source(serialize([("table", table)], &SaveOptions::new())?)?;
    /// let rows = file.tensor("table")?.rows(&[5, 1, 5])?;
    /// assert_eq!(rows.shape(), [3, 2]);
    /// assert_eq!(rows.read()?.into_vec::<i32>()?, [10, 11, 2, 3, 10, 11]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::IndexOutOfBounds`]; [`ErrorKind::NoSuchDim`] for a scalar;
    /// [`ErrorKind::SliceInsideByte`] if a row does not fill its bytes;
    /// [`ErrorKind::ShapeOverflow`].
    pub fn rows(&self, numbers: &[usize]) -> Result<LazySlice<'a, S>> {
        let rows = Rows::new(self.dtype(), self.shape(), numbers)
            .map_err(|kind| self.locate(kind.into()))?;
        Ok(LazySlice {
            tensor: *self,
            shape: rows.shape(self.shape()),
            runs: ByteRuns::Listed(rows.ranges()),
            rows: Some(rows),
            gap: DEFAULT_GAP,
        })
    }
}

impl<S> LazySlice<'_, S> {
    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    /// Returns the shape of the slice.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> u64 {
        match &self.rows {
            Some(rows) => rows.byte_len(),
            None => self.runs.byte_len(),
        }
    }

    /// Sets the largest gap, in bytes, to read over instead of making another call. 512 by default.
    /// 0 reads no byte outside the slice; a network suits a larger one.
    #[must_use]
    pub fn max_gap(mut self, bytes: u64) -> Self {
        self.gap = bytes;
        self
    }
}

impl<'a, S> LazySlice<'a, S> {
    /// Returns the tensor of this slice.
    pub fn tensor(&self) -> &LazyTensor<'a, S> {
        &self.tensor
    }
}

/// Groups runs, counted from `base`, with gaps of at most `gap` bytes. Groups count from the file's
/// start.
fn groups(
    runs: impl Iterator<Item = Range<u64>>,
    base: u64,
    gap: u64,
) -> impl Iterator<Item = Vec<Range<u64>>> {
    let mut runs = runs.map(move |run| base + run.start..base + run.end).peekable();
    std::iter::from_fn(move || {
        let first = runs.next()?;
        let start = first.start;
        let mut end = first.end;
        let mut group = vec![first];
        while let Some(next) =
            runs.next_if(|next| next.start - end <= gap && next.end - start <= PIECE as u64)
        {
            end = next.end;
            group.push(next);
        }
        Some(group)
    })
}

/// Runs of a tensor at offset `base` of its file. Gaps of at most `gap` bytes are read over.
pub(crate) struct FileRuns<'r> {
    pub(crate) base: u64,
    pub(crate) runs: &'r ByteRuns,
    pub(crate) gap: u64,
}

/// Fills `bytes` with the runs, many in one call, because the calls of some sources wait.
pub(crate) fn read_runs(
    source: &dyn ReadAt,
    &FileRuns { base, runs, gap }: &FileRuns<'_>,
    mut bytes: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Result<(), ErrorKind> {
    // Each group takes some memory.
    const MOST: usize = 1 << 14;
    let most = source.requests().map_or(PIECE, |requests| requests.byte_len);
    let mut groups = groups(runs.iter(), base, gap).peekable();
    // The bytes that go through `scratch`.
    let gathered = |group: &[Range<u64>]| match group {
        [_] => 0,
        group => (span(group).end - span(group).start) as usize,
    };
    while groups.peek().is_some() {
        let mut call = Vec::new();
        let mut len = 0;
        while let Some(group) = groups.next_if(|group| {
            call.is_empty() || (len + gathered(group) <= most && call.len() < MOST)
        }) {
            len += gathered(&group);
            call.push(group);
        }
        scratch.resize(len, 0);
        let mut free = &mut scratch[..];
        let mut ranges = Vec::new();
        let mut copies = Vec::new();
        for group in &call {
            let wanted = group.iter().map(|run| (run.end - run.start) as usize).sum();
            let (here, rest) = bytes.split_at_mut(wanted);
            bytes = rest;
            let offset = span(group).start;
            if gathered(group) == 0 {
                ranges.push(ReadRange { offset, bytes: here });
                continue;
            }
            let (through, rest) = free.split_at_mut(gathered(group));
            free = rest;
            ranges.push(ReadRange { offset, bytes: through });
            copies.push((group, here));
        }
        source.read_ranges_at(&mut ranges)?;
        let mut from = &scratch[..];
        for (group, here) in copies {
            let (through, rest) = from.split_at(gathered(group));
            from = rest;
            copy_runs(group, through, here);
        }
    }
    Ok(())
}

/// Copies the runs of a group out of the bytes that it spans.
fn copy_runs(group: &[Range<u64>], spanned: &[u8], mut out: &mut [u8]) {
    let first = span(group).start;
    for run in group {
        let run = &spanned[(run.start - first) as usize..(run.end - first) as usize];
        let (here, rest) = out.split_at_mut(run.len());
        here.copy_from_slice(run);
        out = rest;
    }
}

impl<'a, S: ReadAt> LazySlice<'a, S> {
    fn announce(&self) -> Announced<'a> {
        let base = self.tensor.file_offset();
        let mut runs = self.runs.iter().map(|run| base + run.start..base + run.end);
        Announced::new(self.tensor.source(), &mut runs)
    }

    pub(super) fn fill(&self, bytes: &mut [u8]) -> Result<(), ErrorKind> {
        let _announced = self.announce();
        let runs = FileRuns { base: self.tensor.file_offset(), runs: &self.runs, gap: self.gap };
        read_runs(self.tensor.source(), &runs, bytes, &mut Vec::new())?;
        if let Some(rows) = &self.rows {
            rows.arrange(bytes);
        }
        Ok(())
    }

    /// Passes pieces of at most 1 MiB.
    fn write_rows(&self, rows: &Rows, sink: &mut Sink<'_>) -> Result<()> {
        let Some(together) = (PIECE as u64).checked_div(rows.row_len) else { return Ok(()) };
        let mut bytes = Vec::new();
        for numbers in rows.wanted().chunks((together as usize).max(1)) {
            let part = self.tensor.rows(numbers)?.max_gap(self.gap);
            if let [_] = numbers {
                self.write_runs(&part.runs, &mut bytes, sink)?;
                continue;
            }
            bytes.resize(part.byte_len() as usize, 0);
            part.fill(&mut bytes).map_err(|kind| self.tensor.locate(kind.into()))?;
            sink(&bytes)?;
        }
        Ok(())
    }

    /// Passes at most 1 MiB, or one longer run.
    fn write_runs(&self, runs: &ByteRuns, bytes: &mut Vec<u8>, sink: &mut Sink<'_>) -> Result<()> {
        let base = self.tensor.file_offset();
        let len = runs.byte_len();
        if let Some(start) = runs.contiguous() {
            return self.tensor.read_pieces(base + start..base + start + len, bytes, sink);
        }
        // Runs are gathered, because calling the sink for every few bytes is slow.
        bytes.resize(len as usize, 0);
        let runs = FileRuns { base, runs, gap: self.gap };
        read_runs(self.tensor.source(), &runs, bytes, &mut Vec::new())
            .map_err(|kind| self.tensor.locate(kind.into()))?;
        sink(bytes)
    }

    /// Reads the slice into a new buffer. [`read_slices`](crate::load::read_slices) reads many in
    /// parallel.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if the file has changed since it was opened;
    /// [`ErrorKind::InvalidBool`]; [`ErrorKind::TooLargeForMemory`].
    pub fn read(&self) -> Result<TensorBuf> {
        TensorBuf::filled_by(self.dtype(), self.shape().to_vec(), |bytes| {
            self.fill(bytes)?;
            self.tensor.check_unchanged()
        })
        .map_err(|error| self.tensor.locate(error))
    }

    /// Reads the slice with options: threads, conversion, progress.
    ///
    /// ```
    /// use safetensors_core::{Dtype, LoadOptions, SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let values = [1_i16, 2, 3, 4];
    /// let file = serialize(
    ///     [("table", TensorView::from_slice(&[2, 2], &values)?)],
    ///     &SaveOptions::new(),
    /// )?;
    /// let file = SafeTensors::from_source(file)?;
    /// let column = file.tensor("table")?.slice((.., 1))?;
    /// let wide = column.read_with(&LoadOptions::new().all_as(Dtype::I64))?;
    /// assert_eq!(wide.into_vec::<i64>()?, [2, 4]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn read_with(&self, options: &LoadOptions) -> Result<TensorBuf> {
        super::read_slice(self, options)
    }
}

/// Passes pieces of at most 1 MiB, so the slice may be larger than memory.
impl<S: ReadAt> TensorSource for LazySlice<'_, S> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let _announced = self.announce();
        match &self.rows {
            Some(rows) => self.write_rows(rows, sink)?,
            None => {
                let mut bytes = Vec::new();
                for runs in self.runs.split(PIECE as u64) {
                    self.write_runs(&runs, &mut bytes, sink)?;
                }
            }
        }
        self.tensor.check_unchanged()
    }

    fn refuse_codes(&self) -> Result<()> {
        self.tensor.refuse_codes()
    }
}

fn span(group: &[Range<u64>]) -> Range<u64> {
    match group {
        [first, .., last] => first.start..last.end,
        [only] => only.clone(),
        [] => 0..0,
    }
}
