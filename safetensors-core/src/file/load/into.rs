//! Reads tensors and slices into existing memory.

use super::{LazySlice, LazyTensor};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{Element, TensorBuf, shape, swap_on_big_endian};

impl<S: ReadAt> LazyTensor<'_, S> {
    /// Reads the tensor into `values`, in C order. BOOL is checked in a buffer first.
    ///
    /// ```
    /// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let file =
    ///     serialize([("w", TensorView::from_slice(&[3], &[1_i16, 2, 3])?)], &SaveOptions::new())?;
    /// let file = SafeTensors::from_source(file)?;
    /// let mut values = [0_i16; 3];
    /// file.tensor("w")?.read_into(&mut values)?;
    /// assert_eq!(values, [1, 2, 3]);
    /// file.tensor("w")?.slice((1..,))?.read_into(&mut values[..2])?;
    /// assert_eq!(values, [2, 3, 3]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] and [`ErrorKind::DataLength`] leave the values unchanged. Errors
    /// of [`read`](LazyTensor::read) may not.
    pub fn read_into<T: Element>(&self, values: &mut [T]) -> Result<()> {
        let read = |bytes: &mut [u8]| Ok(self.source().read_exact_at(bytes, self.file_offset())?);
        read_into(self, self.shape(), values, read).map_err(|error| self.locate(error))
    }
}

impl<S: ReadAt> LazySlice<'_, S> {
    /// Reads the slice as [`LazyTensor::read_into`].
    pub fn read_into<T: Element>(&self, values: &mut [T]) -> Result<()> {
        let tensor = self.tensor();
        read_into(tensor, self.shape(), values, |bytes| Ok(self.fill(bytes)?))
            .map_err(|error| tensor.locate(error))
    }
}

/// Fills the values by `read` with a tensor, or a slice of this shape.
fn read_into<S: ReadAt, T: Element>(
    tensor: &LazyTensor<'_, S>,
    shape: &[usize],
    values: &mut [T],
    read: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    check(tensor.dtype(), shape, values)?;
    match T::bytes_mut(values) {
        Some(bytes) => {
            read(bytes)?;
            swap_on_big_endian(T::DTYPE, bytes);
        }
        None => {
            let buf = TensorBuf::filled_by(T::DTYPE, shape.to_vec(), read)?;
            values.copy_from_slice(buf.as_slice()?);
        }
    }
    tensor.check_unchanged()
}

fn check<T: Element>(dtype: Dtype, shape: &[usize], values: &[T]) -> Result<(), ErrorKind> {
    if T::DTYPE != dtype {
        return Err(ErrorKind::WrongDtype { expected: T::DTYPE, found: dtype });
    }
    let expected = shape::byte_len(dtype, shape)?;
    let found = size_of_val(values) as u64;
    if expected != found {
        return Err(ErrorKind::DataLength { dtype, shape: shape.into(), expected, found });
    }
    Ok(())
}
