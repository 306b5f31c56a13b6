//! Views: arrays that borrow a file's bytes.

use ndarray::{ArrayView, Dimension};
use safetensors_core::{ErrorKind, LazyTensor, Result, TensorView, shape};

use crate::ArrayElement;
use crate::error::{dimension, shape_error};

/// Borrows a tensor as an array view, without a copy: a [`TensorView`], or a [`LazyTensor`] of a
/// file in memory or mapped.
///
/// Only errors of a [`LazyTensor`] name the tensor and the file.
///
/// ```
/// use ndarray::{Ix2, array};
/// use safetensors_core::{SafeTensors, SaveOptions, serialize};
/// use safetensors_ndarray::{ViewArrayExt, array_source};
///
/// let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
/// let file: Vec<u8> = serialize([("weight", array_source(&weight))], &SaveOptions::new())?;
///
/// let archive = SafeTensors::parse(&file)?;
/// let view = archive.view("weight")?.as_array::<f32, Ix2>()?;
/// assert_eq!(view.sum(), 10.0);
///
/// let error = archive.tensor("weight")?.as_array::<i64, Ix2>().unwrap_err();
/// assert_eq!(error.to_string(), r#"tensor "weight": expected dtype I64, found F32"#);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub trait ViewArrayExt<'a> {
    /// Borrows the tensor as an array view of elements `T` and dimension `D`, in C order.
    ///
    /// # Errors
    ///
    /// An error of [`TensorView::as_slice`]: [`ErrorKind::WrongDtype`], [`ErrorKind::Misaligned`],
    /// [`ErrorKind::InvalidBool`], [`ErrorKind::BigEndian`]; [`ErrorKind::Framework`] with a
    /// [`WrongNdim`](crate::WrongNdim), or for the shape of an empty tensor with a product of
    /// non-zero dimensions over `isize::MAX`.
    fn as_array<T: ArrayElement, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>>;
}

impl<'a> ViewArrayExt<'a> for TensorView<'a> {
    fn as_array<T: ArrayElement, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>> {
        view_of_slice(self.shape(), self.as_slice::<T>()?)
    }
}

// Codes of quantised weights are borrowed, too, with the type that the caller names, as with
// `LazyTensor::view`. `Reader::view` refuses them.
impl<'a, S: AsRef<[u8]>> ViewArrayExt<'a> for LazyTensor<'a, S> {
    fn as_array<T: ArrayElement, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>> {
        self.view()?.as_array().map_err(|error| self.locate(error))
    }
}

fn view_of_slice<'a, T: ArrayElement, D: Dimension>(
    shape: &[usize],
    elements: &'a [T],
) -> Result<ArrayView<'a, T, D>> {
    // ndarray accepts a slice that is longer than the shape needs, and ignores the rest.
    if shape::element_count(shape)? != elements.len() as u64 {
        return Err(ErrorKind::DataLength {
            dtype: T::DTYPE,
            shape: shape.into(),
            expected: shape::byte_len(T::DTYPE, shape)?,
            found: size_of_val(elements) as u64,
        }
        .into());
    }
    ArrayView::from_shape(dimension::<D>(shape)?, elements).map_err(shape_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_another_length_than_the_shape_is_refused() {
        let elements = [1_u16, 2, 3, 4, 5, 6, 7];
        for length in [0, 5, 7] {
            let error =
                view_of_slice::<u16, ndarray::IxDyn>(&[2, 3], &elements[..length]).unwrap_err();
            let found = length as u64 * 2;
            let ErrorKind::DataLength { expected: 12, found: f, .. } = *error.kind() else {
                panic!()
            };
            assert_eq!(f, found);
        }
        let view = view_of_slice::<u16, ndarray::IxDyn>(&[2, 3], &elements[..6]).unwrap();
        assert_eq!(view[[1, 2]], 6);
    }
}
