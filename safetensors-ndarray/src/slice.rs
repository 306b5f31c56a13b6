//! [`ArraySlice`]: a part of a stored array, given by ndarray's `s![]`. Only its bytes are read.

use std::marker::PhantomData;

use ndarray::{Array, ArrayViewMut, Axis, Dimension, IxDyn, SliceArg, SliceInfoElem};
use safetensors_core::load::LazySlice;
use safetensors_core::slice::Index;
use safetensors_core::{ConvertOptions, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result};

use crate::error::{shape_error, wrong_ndim};
use crate::load::converted;
use crate::{ArrayElement, ReadArrayExt};

/// Takes slices of stored arrays by ndarray's `s![]`. [`LazyTensor`] implements it, a tensor of an
/// open file.
///
/// ```
/// use ndarray::{Array2, array, s};
/// use safetensors_ndarray::{Reader, SliceArrayExt, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.safetensors");
/// let w = Writer::create(&path)?;
/// w.add("table", &Array2::from_shape_fn((4, 3), |(row, column)| (3 * row + column) as i32))?;
/// w.finish()?;
///
/// let r = Reader::open(&path)?;
/// let rows = r.array("table")?.slice_array(s![1..3, ..;-1])?;
/// assert_eq!(rows.shape(), [2, 3]);
/// assert_eq!(rows.read::<i32>()?, array![[5, 4, 3], [8, 7, 6]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait SliceArrayExt<'a, S> {
    /// Takes a slice without reading it. The slice is what `s![]` returns, or a
    /// `&[SliceInfoElem]`. It means the same as for an array in memory: indices can count from the
    /// end, steps can be negative, and there can be new axes.
    ///
    /// # Errors
    ///
    /// - [`Framework`](ErrorKind::Framework) with a [`WrongNdim`](crate::WrongNdim) if the array
    ///   has another number of axes than the slice.
    /// - [`IndexOutOfBounds`](ErrorKind::IndexOutOfBounds), where ndarray panics.
    /// - [`SliceInsideByte`](ErrorKind::SliceInsideByte).
    ///
    /// Each names the array, and the file if there is one.
    fn slice_array<I: SliceArg<IxDyn>>(&self, slice: I) -> Result<ArraySlice<'a, S, I::OutDim>>;
}

impl<'a, S> SliceArrayExt<'a, S> for LazyTensor<'a, S> {
    fn slice_array<I: SliceArg<IxDyn>>(&self, slice: I) -> Result<ArraySlice<'a, S, I::OutDim>> {
        if slice.in_ndim() != self.shape().len() {
            return Err(self.locate(wrong_ndim(slice.in_ndim(), self.shape())));
        }
        let (mut indices, mut reversed, mut new_axes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut axis, mut out_axis) = (0, 0);
        for &elem in slice.as_ref() {
            match elem {
                SliceInfoElem::NewAxis => new_axes.push(Axis(out_axis)),
                SliceInfoElem::Index(at) => indices.push(Index::At(at)),
                SliceInfoElem::Slice { start, end, step } => {
                    let len = self.shape()[axis];
                    let range = range(axis, len, start, end, step);
                    indices.push(range.map_err(|kind| self.locate(kind.into()))?);
                    if step < 0 {
                        reversed.push(Axis(out_axis));
                    }
                }
            }
            axis += usize::from(!elem.is_new_axis());
            out_axis += usize::from(!elem.is_index());
        }
        let slice = self.slice(indices)?;
        Ok(ArraySlice { slice, reversed, new_axes, dimension: PhantomData })
    }
}

/// A slice of a stored array. Its shape is known, and its bytes are read on demand. Made by
/// [`SliceArrayExt`].
///
/// Only the bytes of the slice and [small gaps](ArraySlice::max_gap) between them are read.
#[derive(Debug)]
pub struct ArraySlice<'a, S, D> {
    slice: LazySlice<'a, S>,
    /// Axes of the result that are read forwards and reversed afterwards.
    reversed: Vec<Axis>,
    /// Axes of the result that the stored array lacks, ascending.
    new_axes: Vec<Axis>,
    dimension: PhantomData<D>,
}

impl<S, D: Dimension> ArraySlice<'_, S, D> {
    /// The shape of the result.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.slice.shape().to_vec();
        self.new_axes.iter().for_each(|axis| shape.insert(axis.index(), 1));
        shape
    }

    /// The number of bytes of the slice.
    pub fn byte_len(&self) -> u64 {
        self.slice.byte_len()
    }

    /// Sets the largest gap, in bytes, that is read along with the slice, because reading a small
    /// gap costs less than another call. The default is 512. With 0, no byte outside the slice is
    /// read.
    #[must_use]
    pub fn max_gap(self, bytes: u64) -> Self {
        Self { slice: self.slice.max_gap(bytes), ..self }
    }
}

impl<S: ReadAt, D: Dimension> ArraySlice<'_, S, D> {
    /// Reads the slice. An axis with a negative step has a negative stride in the result.
    ///
    /// # Errors
    ///
    /// [`WrongDtype`](ErrorKind::WrongDtype) if the elements are not of type `T`; those of
    /// [`LazyTensor::read`].
    pub fn read<T: ArrayElement>(&self) -> Result<Array<T, D>> {
        self.arrange(self.slice.read_array::<T, IxDyn>()?)
    }

    /// Reads the slice and converts its elements, see [`ReadArrayExt::read_array_as`].
    ///
    /// # Errors
    ///
    /// The errors of [`LazyTensor::read_with`].
    pub fn read_as<T: ArrayElement>(&self, options: &ConvertOptions) -> Result<Array<T, D>> {
        self.read_as_with(&LoadOptions::new().convert_options(*options))
    }

    pub(crate) fn read_as_with<T: ArrayElement>(
        &self,
        options: &LoadOptions,
    ) -> Result<Array<T, D>> {
        let read = |options: &_| self.slice.read_with(options);
        let array = converted::<T, IxDyn>(self.slice.shape(), options, read);
        self.arrange(array.map_err(|error| self.slice.tensor().locate(error))?)
    }

    /// Reads the slice into an existing array. If that array is in C order and no step is negative,
    /// the elements are read directly into it. Otherwise they are read to a buffer first.
    ///
    /// # Errors
    ///
    /// [`WrongShape`](ErrorKind::WrongShape) if the array has another shape than the slice, and
    /// those of [`read`](ArraySlice::read). After an error of reading, some elements may have
    /// changed.
    pub fn read_into<T: ArrayElement>(&self, array: ArrayViewMut<'_, T, D>) -> Result<()> {
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

    /// Turns what was read into the result: adds new axes, and reverses axes.
    fn arrange<T>(&self, mut array: Array<T, IxDyn>) -> Result<Array<T, D>> {
        for &axis in &self.new_axes {
            array = array.insert_axis(axis);
        }
        self.reversed.iter().for_each(|&axis| array.invert_axis(axis));
        array.into_dimensionality().map_err(|error| self.slice.tensor().locate(shape_error(error)))
    }
}

/// The indices of an axis as a range with a positive step. A negative step in ndarray goes
/// backwards from the last index of the range, so the first index here is the one that it meets
/// last.
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
        let out_of_bounds = || {
            let asked = Index::Range { start: Some(start), end, step: 1 }.to_string();
            ErrorKind::IndexOutOfBounds { dim, len, asked }
        };
        position.filter(|&position| position <= len).ok_or_else(out_of_bounds)
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
