//! [`Merged`]: a tensor of a checkpoint with adapters applied.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use super::matrix::Matrix;
use super::product::{BLOCK, Factors};
use super::source::{Source, read_all};
use crate::checkpoint::{ComputedTensor, read_numbers};
use crate::file::load::LazyTensor;
use crate::format::dtype::Dtype;
use crate::format::parallel::lock;
use crate::format::slice::read_range::Files;

/// The most elements that are computed at once.
const MOST: usize = 1 << 16;

/// The most modules that have their matrices kept for the next part of their weights.
const KEPT: usize = 16;

/// A tensor that adapters change. It is a matrix: all dimensions but the first are one.
pub(super) struct Merged {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// `None` for a tensor that the checkpoint does not have.
    pub(super) base: Option<Stored>,
    /// The adapter that replaces the base's tensor, and the position of the new tensor there.
    pub(super) replaced: Option<(Arc<Source>, usize)>,
    pub(super) deltas: Vec<Delta>,
}

/// The place of a tensor in the checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) dtype: Dtype,
    /// The number of elements.
    pub(super) len: u64,
}

/// The sum that one module of an adapter adds. Tensors are positions in the adapter.
pub(super) struct Delta {
    pub(super) adapter: Arc<Source>,
    pub(super) matrix: Matrix,
    pub(super) place: Place,
    pub(super) scaling: f32,
    pub(super) magnitude: Option<Magnitude>,
    pub(super) recent: Arc<Recent>,
    pub(super) kept: Kept,
}

/// The numbers of a [`Delta`] that are kept for the next part of its weight.
#[derive(Default)]
pub(super) struct Kept {
    factors: Mutex<Weak<Factors>>,
    /// The factor of each output, by which DoRA multiplies the sum.
    of_outputs: Mutex<Option<Arc<[f32]>>>,
}

/// The part of a weight that a matrix is added to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The rows of the weight. A stack of matrices is one matrix with all rows.
    pub(super) rows: Range<usize>,
    pub(super) columns: usize,
    /// The row of the matrix that is added to the first of them.
    pub(super) first: usize,
    /// Whether the transpose is added.
    pub(super) is_transposed: bool,
}

impl Place {
    /// All of these rows, from the first row of a matrix on.
    pub(super) fn new(rows: Range<usize>, columns: usize) -> Self {
        Self { rows, columns, first: 0, is_transposed: false }
    }
}

/// The magnitude of DoRA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Magnitude {
    pub(super) position: usize,
    pub(super) axis: Axis,
    /// A number that is added to each norm.
    pub(super) epsilon: f32,
}

/// The elements of a weight that have one magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Row,
    /// This many neighbouring columns.
    Columns(usize),
}

impl Axis {
    fn number(self, row: usize, column: usize) -> usize {
        match self {
            Self::Row => row,
            Self::Columns(count) => column / count.max(1),
        }
    }
}

/// The matrices that were used last, of all weights.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<Arc<Factors>>>);

impl Recent {
    fn keep(&self, factors: &Arc<Factors>) {
        let mut recent = lock(&self.0);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(Arc::clone(factors));
    }
}

impl ComputedTensor for Merged {
    fn name(&self) -> &str {
        &self.name
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn files(&self) -> Vec<usize> {
        self.base.iter().map(|base| base.file).collect()
    }

    fn source_bytes(&self, elements: Range<u64>) -> Option<(usize, Range<u64>)> {
        let base = self.base.filter(|_| self.replaced.is_none())?;
        let [start, end] =
            [elements.start, elements.end].map(|at| base.offset_of(at.min(base.len)));
        Some((base.file, start..end))
    }

    fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        let mut first = first;
        for piece in out.chunks_mut(MOST) {
            self.read_base(files, first, piece)?;
            for delta in &self.deltas {
                let part = delta.part(first, piece.len());
                if !part.is_empty() {
                    let of_outputs = delta.of_outputs(self, files)?;
                    let first = first + part.start as u64;
                    delta.add(of_outputs.as_deref(), first, &mut piece[part])?;
                }
            }
            first += piece.len() as u64;
        }
        Ok(())
    }
}

impl Merged {
    /// A tensor like this one, which is not changed yet.
    pub(super) fn new<S>(name: &str, like: &LazyTensor<'_, S>, base: Option<Stored>) -> Self {
        Self {
            name: name.to_owned(),
            dtype: like.dtype(),
            shape: like.shape().to_vec(),
            base,
            replaced: None,
            deltas: Vec::new(),
        }
    }

    /// Reads elements as they are before products are added.
    fn read_base(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        match (&self.replaced, &self.base) {
            (Some((adapter, position)), _) => read_part(adapter, *position, first, out),
            (None, Some(base)) => {
                // The rows of a vocabulary that the base lacks are zeros.
                let stored = base.len.saturating_sub(first).min(out.len() as u64) as usize;
                let (stored, padded) = out.split_at_mut(stored);
                padded.fill(0.0);
                base.read(files, first, stored)
            }
            (None, None) => Ok(()),
        }
    }
}

impl<S> From<&LazyTensor<'_, S>> for Stored {
    fn from(tensor: &LazyTensor<'_, S>) -> Self {
        Self {
            file: tensor.file_index(),
            offset: tensor.file_offset(),
            dtype: tensor.dtype(),
            len: tensor.element_count(),
        }
    }
}

impl Stored {
    fn offset_of(&self, element: u64) -> u64 {
        self.offset + element * u64::from(self.dtype.bits()) / 8
    }

    fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        read_numbers(files, self.file, self.offset_of(first), self.dtype, out)
    }
}

/// Reads elements of a tensor of an adapter.
fn read_part(adapter: &Source, position: usize, first: u64, out: &mut [f32]) -> io::Result<()> {
    let tensor = adapter.tensor_at(position).ok_or(io::ErrorKind::NotFound)?;
    Stored::from(&tensor).read(adapter, first, out)
}

impl Delta {
    /// Returns the matrices, which are read if they are not kept.
    fn factors(&self) -> io::Result<Arc<Factors>> {
        let mut kept = lock(&self.kept.factors);
        if let Some(factors) = kept.upgrade() {
            return Ok(factors);
        }
        let factors = Arc::new(self.matrix.read(&self.adapter, self.place.is_transposed)?);
        *kept = Arc::downgrade(&factors);
        self.recent.keep(&factors);
        Ok(factors)
    }

    /// Returns which of these neighbouring elements of a weight are in its rows.
    fn part(&self, first: u64, len: usize) -> Range<usize> {
        let Place { rows, columns, .. } = &self.place;
        let [start, end] = [rows.start, rows.end].map(|row| {
            let before = ((row * columns) as u64).saturating_sub(first);
            before.min(len as u64) as usize
        });
        start..end
    }

    /// Adds the scaled matrix to elements of a weight in its rows, from this one on. DoRA
    /// multiplies each sum by the factor of its output.
    fn add(&self, of_outputs: Option<&[f32]>, first: u64, out: &mut [f32]) -> io::Result<()> {
        let Place { rows, columns, first: row, .. } = &self.place;
        let first = first - (rows.start * columns) as u64 + (row * columns) as u64;
        self.add_all(first, out)?;
        let (Some(factors), Some(magnitude)) = (of_outputs, self.magnitude) else { return Ok(()) };
        for_rows(first, *columns, out, |row, start, values| {
            for (column, value) in values.iter_mut().enumerate() {
                *value *= factors[magnitude.axis.number(row, start + column)];
            }
        });
        Ok(())
    }

    /// Adds scaled elements of the matrix, from this one on.
    fn add_all(&self, first: u64, out: &mut [f32]) -> io::Result<()> {
        if let Matrix::Stored(position) = self.matrix {
            let mut values = vec![0.0; out.len()];
            read_part(&self.adapter, position, first, &mut values)?;
            add_scaled(out, &values, self.scaling);
            return Ok(());
        }
        let factors = self.factors()?;
        let mut products = [0.0; BLOCK];
        for_rows(first, self.place.columns, out, |row, start, values| {
            for (block, values) in values.chunks_mut(BLOCK).enumerate() {
                let products = &mut products[..values.len()];
                factors.read(row, start + block * BLOCK, products);
                add_scaled(values, products, self.scaling);
            }
        });
        Ok(())
    }

    /// Returns DoRA's factors: each magnitude, divided by the norm of its part of the base with
    /// this sum alone. The entire weight is read once.
    fn of_outputs(&self, weight: &Merged, files: &dyn Files) -> io::Result<Option<Arc<[f32]>>> {
        let Some(magnitude) = self.magnitude else { return Ok(None) };
        let mut kept = lock(&self.kept.of_outputs);
        if let Some(factors) = &*kept {
            return Ok(Some(Arc::clone(factors)));
        }
        let mut factors = read_all(&self.adapter, magnitude.position)?;
        let mut squares = vec![0.0_f64; factors.len()];
        let Place { rows, columns, .. } = &self.place;
        let elements = rows.start * columns..rows.end * columns;
        let first_of_matrix = self.place.first * columns;
        let mut piece = vec![0.0; MOST.min(elements.len())];
        for first in elements.clone().step_by(MOST) {
            let piece = &mut piece[..MOST.min(elements.end - first)];
            weight.read_base(files, first as u64, piece)?;
            self.add(None, first as u64, piece)?;
            let first = first - elements.start + first_of_matrix;
            for_rows(first as u64, *columns, piece, |row, start, values| {
                for (column, value) in values.iter().enumerate() {
                    let output = magnitude.axis.number(row, start + column);
                    squares[output] += f64::from(*value) * f64::from(*value);
                }
            });
        }
        for (factor, squares) in factors.iter_mut().zip(squares) {
            *factor /= squares.sqrt() as f32 + magnitude.epsilon;
        }
        let factors: Arc<[f32]> = factors.into();
        *kept = Some(Arc::clone(&factors));
        Ok(Some(factors))
    }
}

fn add_scaled(out: &mut [f32], values: &[f32], scaling: f32) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out += value * scaling);
}

/// Calls `each` with the elements of each row, from this element on: with the row and the first
/// column.
fn for_rows(
    first: u64,
    columns: usize,
    values: &mut [f32],
    mut each: impl FnMut(usize, usize, &mut [f32]),
) {
    let (mut row, mut start) =
        ((first / columns.max(1) as u64) as usize, (first % columns.max(1) as u64) as usize);
    let mut rest = values;
    while !rest.is_empty() {
        let (these, more) = rest.split_at_mut((columns - start).min(rest.len()));
        each(row, start, these);
        (rest, row, start) = (more, row + 1, 0);
    }
}

/// Returns whether merged numbers can be rounded to a dtype.
pub(super) fn is_possible(dtype: Dtype) -> bool {
    (8..=32).contains(&dtype.bits()) && dtype.is_float() && dtype != Dtype::F8_E8M0
}
