//! [`TensorView`]: a tensor that borrows its bytes.

use bytemuck::checked::CheckedCastError;

use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind};
use crate::format::tensor::boolean::invalid_bool;
use crate::format::tensor::{Element, shape};

/// A tensor that borrows its bytes, in C order and little-endian. Their length fits the shape.
///
/// ```
/// use safetensors_core::{Dtype, TensorView};
///
/// let data = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let view = TensorView::from_slice(&[2, 3], &data)?;
/// assert_eq!(view.dtype(), Dtype::F32);
/// assert_eq!(view.as_slice::<f32>()?, data);
/// assert!(view.as_slice::<i32>().is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Views `data` of any alignment as a tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataLength`] if `data` does not fit the dtype and the shape; also see
    /// [`shape::byte_len`].
    pub fn new(dtype: Dtype, shape: &'a [usize], data: &'a [u8]) -> Result<Self, Error> {
        let expected = shape::byte_len(dtype, shape)?;
        if expected != data.len() as u64 {
            return Err(ErrorKind::DataLength {
                dtype,
                shape: shape.into(),
                expected,
                found: data.len() as u64,
            }
            .into());
        }
        Ok(Self { dtype, shape, data })
    }

    /// Views typed values as a tensor of their dtype.
    ///
    /// # Errors
    ///
    /// As for [`TensorView::new`]; [`ErrorKind::BigEndian`] on a big-endian target, for elements
    /// wider than a byte.
    pub fn from_slice<T: Element>(shape: &'a [usize], values: &'a [T]) -> Result<Self, Error> {
        let view = Self::new(T::DTYPE, shape, bytemuck::cast_slice(values))?;
        refuse_big_endian(T::DTYPE, view.data)?;
        Ok(view)
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Returns the bytes as in the file, with any alignment.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Borrows the elements.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDtype`] if the dtype is not `T`'s;
    /// - [`ErrorKind::Misaligned`]: [`TensorBuf::from_view`](crate::TensorBuf::from_view) makes an
    ///   aligned copy;
    /// - [`ErrorKind::InvalidBool`];
    /// - [`ErrorKind::BigEndian`] on a big-endian target, for elements wider than a byte.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], Error> {
        if T::DTYPE != self.dtype {
            return Err(ErrorKind::WrongDtype { expected: T::DTYPE, found: self.dtype }.into());
        }
        refuse_big_endian(T::DTYPE, self.data)?;
        if self.data.is_empty() {
            // Empty data may start at a misaligned address, which the cast would refuse.
            return Ok(&[]);
        }
        bytemuck::checked::try_cast_slice(self.data).map_err(|error| match error {
            CheckedCastError::InvalidBitPattern => invalid_bool(self.data).into(),
            CheckedCastError::PodCastError(_) => ErrorKind::Misaligned {
                dtype: self.dtype,
                alignment: align_of::<T>(),
                address: self.data.as_ptr().addr(),
            }
            .into(),
        })
    }
}

pub(crate) fn refuse_big_endian(dtype: Dtype, data: &[u8]) -> Result<(), Error> {
    if cfg!(target_endian = "big") && dtype.bits() > 8 && !data.is_empty() {
        return Err(ErrorKind::BigEndian { dtype }.into());
    }
    Ok(())
}
