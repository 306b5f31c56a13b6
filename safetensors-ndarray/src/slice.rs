//! [`ArraySlice`]: a part of a stored array, given by ndarray's `s![]`.

use std::marker::PhantomData;

use ndarray::{Array, ArrayViewMut, Axis, Dimension, IxDyn, SliceArg, SliceInfoElem};
use safetensors_core::load::LazySlice;
use safetensors_core::slice::Index;
use safetensors_core::{ErrorKind, LazyTensor, LoadOptions, ReadAt, Result};

use crate::array::{array_from_buf, of_dimension};
use crate::error::wrong_ndim;
use crate::{ArrayElement, ReadArrayExt};

/// A slice with a known shape. Its bytes are read on demand.
pub(crate) struct ArraySlice<'a, S, D> {
    slice: LazySlice<'a, S>,
    /// Axes of the result that are read forwards and reversed afterwards.
    reversed: Vec<Axis>,
    /// Axes of the result that the stored array lacks, ascending.
    new_axes: Vec<Axis>,
    dimension: PhantomData<D>,
}

impl<'a, S, D: Dimension> ArraySlice<'a, S, D> {
    pub(crate) fn new(
        array: &LazyTensor<'a, S>,
        slice: impl SliceArg<IxDyn, OutDim = D>,
    ) -> Result<Self> {
        if slice.in_ndim() != array.shape().len() {
            return Err(array.locate(wrong_ndim(slice.in_ndim(), array.shape())));
        }
        let mut indices = Vec::new();
        let mut reversed = Vec::new();
        let mut new_axes = Vec::new();
        let mut axis = 0;
        let mut out_axis = 0;
        for &elem in slice.as_ref() {
            match elem {
                SliceInfoElem::NewAxis => new_axes.push(Axis(out_axis)),
                SliceInfoElem::Index(at) => indices.push(Index::At(at)),
                SliceInfoElem::Slice { start, end, step } => {
                    let range = range(axis, array.shape()[axis], start, end, step);
                    indices.push(range.map_err(|kind| array.locate(kind.into()))?);
                    if step < 0 {
                        reversed.push(Axis(out_axis));
                    }
                }
            }
            axis += usize::from(!elem.is_new_axis());
            out_axis += usize::from(!elem.is_index());
        }
        let slice = array.slice(indices)?;
        Ok(Self { slice, reversed, new_axes, dimension: PhantomData })
    }

    /// Returns the shape of the result.
    fn shape(&self) -> Vec<usize> {
        let mut shape = self.slice.shape().to_vec();
        self.new_axes.iter().for_each(|axis| shape.insert(axis.index(), 1));
        shape
    }
}

impl<S: ReadAt, D: Dimension> ArraySlice<'_, S, D> {
    /// Gives an axis with a negative step a negative stride.
    pub(crate) fn read<T: ArrayElement>(&self) -> Result<Array<T, D>> {
        self.arrange(self.slice.read_array::<T, IxDyn>()?)
    }

    pub(crate) fn read_as<T: ArrayElement>(&self, options: &LoadOptions) -> Result<Array<T, D>> {
        let buf = self.slice.read_with(&options.clone().all_as(T::DTYPE));
        let array = buf.and_then(array_from_buf::<T, IxDyn>);
        self.arrange(array.map_err(|error| self.slice.tensor().locate(error))?)
    }

    /// Reads directly into an array in C order if no step is negative, and through a buffer
    /// otherwise.
    pub(crate) fn read_into<T: ArrayElement>(&self, array: ArrayViewMut<'_, T, D>) -> Result<()> {
        let shape = self.shape();
        if array.shape() != shape {
            let kind = ErrorKind::WrongShape { expected: shape, found: array.shape().into() };
            return Err(self.slice.tensor().locate(kind.into()));
        }
        let mut array = array.into_dyn();
        self.reversed.iter().for_each(|&axis| array.invert_axis(axis));
        for &axis in self.new_axes.iter().rev() {
            array = array.index_axis_move(axis, 0);
        }
        match array.as_slice_mut() {
            Some(elements) => self.slice.read_into(elements),
            None => {
                array.assign(&self.slice.read_array::<T, IxDyn>()?);
                Ok(())
            }
        }
    }

    /// Adds new axes, and reverses axes.
    fn arrange<T>(&self, mut array: Array<T, IxDyn>) -> Result<Array<T, D>> {
        for &axis in &self.new_axes {
            array = array.insert_axis(axis);
        }
        self.reversed.iter().for_each(|&axis| array.invert_axis(axis));
        of_dimension(array).map_err(|error| self.slice.tensor().locate(error))
    }
}

/// Returns the indices of an axis as a range with a positive step.
// ndarray's negative steps go backwards from the last index, so the first index here is the one
// that they meet last.
fn range(
    dim: usize,
    len: usize,
    start: isize,
    end: Option<isize>,
    step: isize,
) -> Result<Index, ErrorKind> {
    let resolve = |index: isize| {
        let position = match index {
            0.. => Some(index.unsigned_abs()),
            _ => len.checked_sub(index.unsigned_abs()),
        };
        position.filter(|&position| position <= len).ok_or_else(|| {
            let asked = Index::Range { start: Some(start), end, step: 1 }.to_string();
            ErrorKind::IndexOutOfBounds { dim, len, asked }
        })
    };
    let first = resolve(start)?;
    let end = end.map_or(Ok(len), resolve)?.max(first);
    let stride = step.unsigned_abs();
    if stride == 0 {
        return Err(ErrorKind::ZeroStep { dim });
    }
    let first = match (end - first).checked_sub(1) {
        Some(last) if step < 0 => first + last % stride,
        _ => first,
    };
    Ok(Index::from(first..end).step(stride))
}
