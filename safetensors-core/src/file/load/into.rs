//! Reads tensors and slices into existing memory.

use super::{LazySlice, LazyTensor};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{Element, shape, swap_on_big_endian};

impl<S: ReadAt> LazyTensor<'_, S> {
    /// Reads the tensor into an existing slice, in C order. BOOL elements are read into a buffer
    /// first, and checked there.
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
    /// [`ErrorKind::WrongDtype`] and [`ErrorKind::DataLength`] leave the values unchanged. After
    /// any other error, see [`read`](LazyTensor::read), some values may have changed.
    pub fn read_into<T: Element>(&self, values: &mut [T]) -> Result<()> {
        let mut read = || {
            check(self.dtype(), self.shape(), values)?;
            let Some(bytes) = T::bytes_mut(values) else {
                values.copy_from_slice(self.read()?.as_slice()?);
                return Ok(());
            };
            self.source().read_exact_at(bytes, self.file_offset()).map_err(ErrorKind::Io)?;
            swap_on_big_endian(T::DTYPE, bytes);
            self.check_unchanged()
        };
        read().map_err(|error| self.locate(error))
    }
}

impl<S: ReadAt> LazySlice<'_, S> {
    /// Reads the slice into existing memory, see [`LazyTensor::read_into`].
    ///
    /// # Errors
    ///
    /// As for [`LazyTensor::read_into`].
    pub fn read_into<T: Element>(&self, values: &mut [T]) -> Result<()> {
        let tensor = self.tensor();
        let mut read = || {
            check(self.dtype(), self.shape(), values)?;
            let Some(bytes) = T::bytes_mut(values) else {
                values.copy_from_slice(self.read()?.as_slice()?);
                return Ok(());
            };
            self.fill(bytes)?;
            swap_on_big_endian(T::DTYPE, bytes);
            tensor.check_unchanged()
        };
        read().map_err(|error| tensor.locate(error))
    }
}

/// Fails unless the number of values matches the shape, and their dtype matches.
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
