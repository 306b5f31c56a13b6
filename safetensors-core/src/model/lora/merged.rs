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
use crate::format::parallel::{default_threads, lock};
use crate::format::slice::read_range::Files;

/// The most elements that are computed at once.
const MOST: usize = 1 << 16;

/// A tensor that adapters change. It is a matrix: all dimensions but the first are one.
pub(super) struct Merged {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// `None` for a tensor that the checkpoint does not have.
    pub(super) base: Option<Stored>,
    /// The adapter that replaces the base's tensor, and the new tensor there.
    pub(super) replaced: Option<(Arc<Source>, Stored)>,
    pub(super) deltas: Vec<Delta>,
    kept: Mutex<Weak<Matrices>>,
    recent: Arc<Recent>,
}

/// The place of a tensor in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    file: usize,
    offset: u64,
    dtype: Dtype,
    /// The number of elements.
    len: u64,
}

/// The sum that one module of an adapter adds. Tensors are positions in the adapter.
pub(super) struct Delta {
    pub(super) adapter: Arc<Source>,
    pub(super) matrix: Matrix,
    pub(super) place: Place,
    pub(super) scaling: f32,
    pub(super) magnitude: Option<Magnitude>,
    /// The factor of each output, by which DoRA multiplies the sum, once it is known.
    pub(super) of_outputs: Mutex<Option<Arc<[f32]>>>,
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

/// The magnitude of DoRA: for each row, or for each group of this many neighbouring columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Magnitude {
    pub(super) position: usize,
    pub(super) columns: Option<usize>,
    /// A number that is added to each norm.
    pub(super) epsilon: f32,
}

impl Magnitude {
    fn output(self, row: usize, column: usize) -> usize {
        self.columns.map_or(row, |count| column / count.max(1))
    }
}

/// The matrices of each delta of a weight; `None` for a difference, which is read part by part.
type Matrices = Vec<Option<Factors>>;

/// The matrices of the weights that were begun last, for their next parts.
///
/// Threads take the parts of weights in order, so that a thread has at most one weight unfinished:
/// the matrices of each weight are read once.
pub(super) type Recent = Mutex<VecDeque<Arc<Matrices>>>;

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
        let matrices = self.matrices()?;
        let mut first = first;
        for piece in out.chunks_mut(MOST) {
            self.read_base(files, first, piece)?;
            for (delta, matrix) in self.deltas.iter().zip(&*matrices) {
                let part = delta.part(first, piece.len());
                if !part.is_empty() {
                    let of_outputs = delta.of_outputs(self, matrix.as_ref(), files)?;
                    let first = first + part.start as u64;
                    delta.add(matrix.as_ref(), first, &mut piece[part.clone()])?;
                    delta.multiply(of_outputs.as_deref(), first, &mut piece[part]);
                }
            }
            first += piece.len() as u64;
        }
        Ok(())
    }
}

impl Merged {
    /// A tensor like this one, which is not changed yet.
    pub(super) fn new<S>(
        name: &str,
        like: &LazyTensor<'_, S>,
        base: Option<Stored>,
        recent: Arc<Recent>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            dtype: like.dtype(),
            shape: like.shape().to_vec(),
            base,
            replaced: None,
            deltas: Vec::new(),
            kept: Mutex::default(),
            recent,
        }
    }

    /// Returns the matrices of all deltas, which are read if they are not kept.
    fn matrices(&self) -> io::Result<Arc<Matrices>> {
        let mut kept = lock(&self.kept);
        if let Some(matrices) = kept.upgrade() {
            return Ok(matrices);
        }
        let matrices = self.deltas.iter().map(Delta::matrix).collect::<io::Result<_>>()?;
        let matrices = Arc::new(matrices);
        *kept = Arc::downgrade(&matrices);
        let mut recent = lock(&self.recent);
        recent.truncate(2 * default_threads());
        recent.push_front(Arc::clone(&matrices));
        Ok(matrices)
    }

    /// Reads elements as they are before products are added.
    fn read_base(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        let (files, stored): (&dyn Files, _) = match (&self.replaced, &self.base) {
            (Some((adapter, stored)), _) => (&**adapter, stored),
            (None, Some(base)) => (files, base),
            (None, None) => return Ok(()),
        };
        // The rows of a vocabulary that the checkpoint lacks are zeros.
        let known = stored.len.saturating_sub(first).min(out.len() as u64) as usize;
        out[known..].fill(0.0);
        stored.read(files, first, &mut out[..known])
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

impl Delta {
    fn matrix(&self) -> io::Result<Option<Factors>> {
        match &self.matrix {
            Matrix::Stored(_) => Ok(None),
            matrix => matrix.read(&self.adapter, self.place.is_transposed).map(Some),
        }
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

    /// Adds the scaled matrix to elements of a weight in its rows, from this one on.
    fn add(&self, matrix: Option<&Factors>, first: u64, out: &mut [f32]) -> io::Result<()> {
        if let Matrix::Stored(position) = self.matrix {
            let tensor = self.adapter.tensor_at(position).ok_or(io::ErrorKind::NotFound)?;
            let mut values = vec![0.0; out.len()];
            let first = self.in_matrix(first);
            Stored::from(&tensor).read(&*self.adapter, first, &mut values)?;
            add_scaled(out, &values, self.scaling);
        }
        let Some(matrix) = matrix else { return Ok(()) };
        let mut products = [0.0; BLOCK];
        self.for_rows(first, out, |row, start, values| {
            for (block, values) in values.chunks_mut(BLOCK).enumerate() {
                let products = &mut products[..values.len()];
                matrix.read(row, start + block * BLOCK, products);
                add_scaled(values, products, self.scaling);
            }
        });
        Ok(())
    }

    /// Multiplies elements with DoRA's factors of their outputs.
    fn multiply(&self, of_outputs: Option<&[f32]>, first: u64, out: &mut [f32]) {
        let (Some(factors), Some(magnitude)) = (of_outputs, self.magnitude) else { return };
        self.for_rows(first, out, |row, start, values| {
            for (column, value) in values.iter_mut().enumerate() {
                *value *= factors[magnitude.output(row, start + column)];
            }
        });
    }

    /// Returns DoRA's factors: each magnitude, divided by the norm of its part of the base with
    /// this sum alone. The entire weight is read once.
    fn of_outputs(
        &self,
        weight: &Merged,
        matrix: Option<&Factors>,
        files: &dyn Files,
    ) -> io::Result<Option<Arc<[f32]>>> {
        let Some(magnitude) = self.magnitude else { return Ok(None) };
        let mut kept = lock(&self.of_outputs);
        if kept.is_some() {
            return Ok(kept.clone());
        }
        let mut factors = read_all(&self.adapter, magnitude.position)?;
        let mut squares = vec![0.0_f64; factors.len()];
        let Place { rows, columns, .. } = &self.place;
        let elements = rows.start * columns..rows.end * columns;
        let mut piece = vec![0.0; MOST.min(elements.len())];
        for first in elements.clone().step_by(MOST) {
            let piece = &mut piece[..MOST.min(elements.end - first)];
            weight.read_base(files, first as u64, piece)?;
            self.add(matrix, first as u64, piece)?;
            self.for_rows(first as u64, piece, |row, start, values| {
                for (column, value) in values.iter().enumerate() {
                    let output = magnitude.output(row, start + column);
                    squares[output] += f64::from(*value) * f64::from(*value);
                }
            });
        }
        for (factor, squares) in factors.iter_mut().zip(squares) {
            *factor /= squares.sqrt() as f32 + magnitude.epsilon;
        }
        *kept = Some(factors.into());
        Ok(kept.clone())
    }

    /// Returns the element of the matrix that is added to this one of the weight.
    fn in_matrix(&self, element: u64) -> u64 {
        let Place { rows, columns, first, .. } = &self.place;
        element - (rows.start * columns) as u64 + (first * columns) as u64
    }

    /// Calls `each` with the elements of each row, from this element of the weight on: with the row
    /// and the first column of the matrix.
    fn for_rows(
        &self,
        first: u64,
        values: &mut [f32],
        mut each: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let (first, columns) = (self.in_matrix(first), self.place.columns.max(1));
        let mut row = (first / columns as u64) as usize;
        let mut start = (first % columns as u64) as usize;
        let mut rest = values;
        while !rest.is_empty() {
            let (these, more) = rest.split_at_mut((columns - start).min(rest.len()));
            each(row, start, these);
            (rest, row, start) = (more, row + 1, 0);
        }
    }
}

fn add_scaled(out: &mut [f32], values: &[f32], scaling: f32) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out += value * scaling);
}

/// Returns whether merged numbers can be rounded to a dtype.
pub(super) fn is_possible(dtype: Dtype) -> bool {
    (8..=32).contains(&dtype.bits()) && dtype.is_float() && dtype != Dtype::F8_E8M0
}
