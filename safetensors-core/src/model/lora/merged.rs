//! [`Merged`]: a tensor of a checkpoint with adapters applied.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use super::parts::Source;
use super::product::Factors;
use crate::checkpoint::{ComputedTensor, failed, read_numbers};
use crate::file::load::{LazyTensor, LoadOptions};
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
}

/// The sum that one module of an adapter adds. Tensors are positions in the adapter.
pub(super) struct Delta {
    adapter: Arc<Source>,
    product: Product,
    scaling: f32,
    magnitude: Option<usize>,
    recent: Arc<Recent>,
    factors: Mutex<Weak<Factors>>,
    /// The factor of each output, by which DoRA multiplies the sum.
    of_outputs: Mutex<Option<Arc<[f32]>>>,
}

/// The matrices that are multiplied and added.
#[derive(Clone, Copy, Debug)]
pub(super) enum Product {
    Matrices {
        up: usize,
        down: usize,
        is_transposed: bool,
    },
    /// A vector, which is added directly.
    Vector(usize),
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
        Some((base.file, base.offset_of(elements.start)..base.offset_of(elements.end)))
    }

    fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        let mut first = first;
        for piece in out.chunks_mut(MOST) {
            self.read_base(files, first, piece)?;
            for delta in &self.deltas {
                let of_outputs = delta.of_outputs(self, files)?;
                delta.add(self, of_outputs.as_deref(), first, piece)?;
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

    fn columns(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Reads elements as they are before products are added.
    fn read_base(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        match (&self.replaced, &self.base) {
            (Some((adapter, position)), _) => read_part(adapter, *position, first, out),
            (None, Some(base)) => base.read(files, first, out),
            (None, None) => Ok(()),
        }
    }
}

impl<S> From<&LazyTensor<'_, S>> for Stored {
    fn from(tensor: &LazyTensor<'_, S>) -> Self {
        Self { file: tensor.file_index(), offset: tensor.file_offset(), dtype: tensor.dtype() }
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

/// Reads all elements of a tensor of an adapter.
fn read_all(adapter: &Source, position: usize) -> io::Result<Vec<f32>> {
    let tensor = adapter.tensor_at(position).ok_or(io::ErrorKind::NotFound)?;
    let read = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32).threads(1));
    read.and_then(|buf| buf.into_vec()).map_err(failed)
}

impl Delta {
    pub(super) fn new(
        adapter: &Arc<Source>,
        product: Product,
        scaling: f32,
        magnitude: Option<usize>,
        recent: &Arc<Recent>,
    ) -> Self {
        Self {
            adapter: Arc::clone(adapter),
            product,
            scaling,
            magnitude,
            recent: Arc::clone(recent),
            factors: Mutex::default(),
            of_outputs: Mutex::default(),
        }
    }

    /// Returns the matrices, which are read if they are not kept.
    fn factors(&self) -> io::Result<Arc<Factors>> {
        let mut kept = lock(&self.factors);
        if let Some(factors) = kept.upgrade() {
            return Ok(factors);
        }
        let read = |position| read_all(&self.adapter, position);
        let factors = Arc::new(match self.product {
            Product::Matrices { up, down, is_transposed } => {
                let rank = self.adapter.tensor_at(down).map_or(1, |down| down.shape()[0]);
                Factors::new(read(up)?, read(down)?, rank, is_transposed)
            }
            Product::Vector(vector) => Factors::new(read(vector)?, vec![1.0], 1, false),
        });
        *kept = Arc::downgrade(&factors);
        self.recent.keep(&factors);
        Ok(factors)
    }

    /// Returns whether the outputs of the module are the columns of the weight.
    fn is_transposed(&self) -> bool {
        matches!(self.product, Product::Matrices { is_transposed: true, .. })
    }

    /// Adds the scaled product to elements of a weight, from this one on. DoRA multiplies each sum
    /// by the factor of its output.
    fn add(
        &self,
        weight: &Merged,
        of_outputs: Option<&[f32]>,
        first: u64,
        out: &mut [f32],
    ) -> io::Result<()> {
        let factors = self.factors()?;
        for_rows(first, weight.columns(), out, |row, start, values| {
            factors.row(row, start..start + values.len(), |column, products| {
                let values = &mut values[column - start..][..products.len()];
                for (value, product) in values.iter_mut().zip(products) {
                    *value += product * self.scaling;
                }
                match of_outputs {
                    Some(factors) if self.is_transposed() => {
                        let factors = &factors[column..];
                        values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
                    }
                    Some(factors) => values.iter_mut().for_each(|value| *value *= factors[row]),
                    None => {}
                }
            });
        });
        Ok(())
    }

    /// Returns DoRA's factors: the magnitude of each output, divided by the norm of its row of the
    /// base with this product alone. The entire weight is read once.
    fn of_outputs(&self, weight: &Merged, files: &dyn Files) -> io::Result<Option<Arc<[f32]>>> {
        let Some(magnitude) = self.magnitude else { return Ok(None) };
        let mut kept = lock(&self.of_outputs);
        if let Some(factors) = &*kept {
            return Ok(Some(Arc::clone(factors)));
        }
        let mut factors = read_all(&self.adapter, magnitude)?;
        let mut squares = vec![0.0_f64; factors.len()];
        let columns = weight.columns();
        let len: usize = weight.shape.iter().product();
        let mut piece = vec![0.0; MOST.min(len)];
        for first in (0..len).step_by(MOST) {
            let piece = &mut piece[..MOST.min(len - first)];
            weight.read_base(files, first as u64, piece)?;
            self.add(weight, None, first as u64, piece)?;
            for_rows(first as u64, columns, piece, |row, start, values| {
                for (column, value) in values.iter().enumerate() {
                    let output = if self.is_transposed() { start + column } else { row };
                    squares[output] += f64::from(*value) * f64::from(*value);
                }
            });
        }
        for (factor, squares) in factors.iter_mut().zip(squares) {
            *factor /= squares.sqrt() as f32;
        }
        let factors: Arc<[f32]> = factors.into();
        *kept = Some(Arc::clone(&factors));
        Ok(Some(factors))
    }
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
