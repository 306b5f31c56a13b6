//! [`DtypePlan`]: the conversions of a dtype in a load.

use crate::file::load::LoadOptions;
use crate::format::convert::widen::{widen, widened_shape};
use crate::format::convert::{Conversion, ConvertOptions, can_convert};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorBuf, shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct DtypePlan {
    file: Dtype,
    /// First, elements are converted to this dtype while they are read.
    read: Dtype,
    /// Then complex numbers may become pairs of F32, in place.
    pairs: bool,
    /// Then the pairs are converted to this dtype. Without pairs it equals `read`.
    converted: Dtype,
    /// Finally, elements are widened to this dtype.
    held: Dtype,
}

impl LoadOptions {
    /// Decides the conversions of `dtype` by these options, without regard to codes of quantised
    /// weights: see [`LazyTensor::dtype_plan`](crate::LazyTensor::dtype_plan).
    ///
    /// ```
    /// use safetensors_core::{Dtype, LoadOptions};
    ///
    /// let options = LoadOptions::new().floats_as(Dtype::F32);
    /// assert_eq!(options.dtype_plan(Dtype::BF16)?.dtype(), Dtype::F32);
    /// assert_eq!(options.dtype_plan(Dtype::I64)?.dtype(), Dtype::I64);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`]; [`ErrorKind::WouldWiden`]. An impossible conversion fails
    /// when a tensor is read.
    #[doc(hidden)]
    pub fn dtype_plan(&self, dtype: Dtype) -> Result<DtypePlan> {
        let accept = |dtype| match self.table {
            Some(table) => table.accept(dtype, self.widening),
            None => Ok(dtype),
        };
        let asked = self.dtype_of(dtype);
        // A dtype for all tensors is applied after the framework's. Another conversion comes first,
        // and the framework holds its result.
        let accepted = accept(if self.all.is_some() { dtype } else { asked })?;
        let held = if self.all.is_some() { accept(asked)? } else { accepted };
        if dtype == Dtype::C64 && accepted == Dtype::F32 {
            let converted = self.all.unwrap_or(accepted);
            return Ok(DtypePlan { file: dtype, read: dtype, pairs: true, converted, held });
        }
        // Widening after the read would need memory for both dtypes, unless nothing moves. Elements
        // with a requested conversion are rounded to its dtype first, and only then widened.
        let widened_while_read =
            asked == dtype && held.bits() != dtype.bits() && can_convert(dtype, held);
        let read = if widened_while_read { held } else { asked };
        Ok(DtypePlan { file: dtype, read, pairs: false, converted: read, held })
    }
}

impl DtypePlan {
    #[doc(hidden)]
    pub fn dtype(&self) -> Dtype {
        self.held
    }

    /// Complex numbers as pairs gain a last dimension of 2.
    #[doc(hidden)]
    pub fn shape(&self, shape: &[usize]) -> Vec<usize> {
        if self.pairs { widened_shape(Dtype::C64, Dtype::F32, shape) } else { shape.to_vec() }
    }

    /// Returns the conversion of elements while they are read.
    pub(crate) fn conversion(
        &self,
        options: &ConvertOptions,
    ) -> Result<Option<Conversion>, ErrorKind> {
        match self.read {
            read if read == self.file => Ok(None),
            read => Conversion::new(self.file, read, options).map(Some),
        }
    }

    /// Returns the bytes in memory, or
    /// [`ErrorKind::ShapeOverflow`](crate::ErrorKind::ShapeOverflow).
    #[doc(hidden)]
    pub fn byte_len(&self, shape: &[usize], options: &LoadOptions) -> Result<u64> {
        self.conversion(&options.convert)?;
        let paired = self.pairs.then(|| self.shape(shape));
        Ok(shape::byte_len(self.dtype(), paired.as_deref().unwrap_or(shape))?)
    }

    /// Returns `false` if [`finish`](Self::finish) must follow.
    pub(crate) fn is_finished_by_reading(&self) -> bool {
        !self.pairs && self.read == self.held
    }

    /// Applies the conversions after reading.
    pub(crate) fn finish(
        &self,
        mut buf: TensorBuf,
        options: &ConvertOptions,
        threads: usize,
    ) -> Result<TensorBuf> {
        if self.pairs {
            buf = widen(buf, Dtype::F32)?;
        }
        buf = buf.convert_by(self.converted, options, threads)?;
        if self.converted == self.held { Ok(buf) } else { widen(buf, self.held) }
    }
}
