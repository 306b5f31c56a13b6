//! [`LoadedDtype`]: what becomes of a dtype on the way from a file into memory. The one place that
//! decides it.

use crate::convert::widen::{widen, widened_shape};
use crate::convert::{Conversion, ConvertOptions, can_convert};
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::load::LoadOptions;
use crate::tensor::TensorBuf;

/// What becomes of tensors of one dtype when they are loaded: see [`LoadOptions::loaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedDtype {
    file: Dtype,
    /// First, elements are converted to this dtype while they are read.
    read: Dtype,
    /// Then C64 becomes pairs of F32, without a copy, if this is set.
    pairs: bool,
    /// Then the pairs are converted to this dtype. Without pairs it is that of `read`.
    converted: Dtype,
    /// Last, elements are widened to this dtype.
    held: Dtype,
}

impl LoadOptions {
    /// Decides what becomes of tensors of `dtype`, given the conversion that is asked for, the
    /// dtypes that the [framework](LoadOptions::for_framework) holds, and whether they may be
    /// [widened](LoadOptions::widening). Every load goes by this.
    ///
    /// ```
    /// use safetensors_core::{Dtype, LoadOptions};
    ///
    /// let options = LoadOptions::new().floats_as(Dtype::F32);
    /// assert_eq!(options.loaded(Dtype::BF16)?.dtype(), Dtype::F32);
    /// assert_eq!(options.loaded(Dtype::I64)?.dtype(), Dtype::I64);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] if the framework holds no such elements;
    /// [`ErrorKind::WouldWiden`] if it holds them as a wider dtype only, and that is not allowed.
    /// Whether elements can be converted as asked shows when a tensor is read.
    pub fn loaded(&self, dtype: Dtype) -> Result<LoadedDtype> {
        let accept = |dtype| match self.table {
            Some(table) => table.accept(dtype, self.widening),
            None => Ok(dtype),
        };
        let asked = self.dtype_of(dtype);
        // A dtype for all tensors comes on top of what the framework holds. Another conversion
        // comes first, and the framework holds its result.
        let accepted = accept(if self.all.is_some() { dtype } else { asked })?;
        let held = if self.all.is_some() { accept(asked)? } else { accepted };
        if dtype == Dtype::C64 && accepted == Dtype::F32 {
            let converted = self.all.unwrap_or(accepted);
            return Ok(LoadedDtype { file: dtype, read: dtype, pairs: true, converted, held });
        }
        // Widening after the read would need memory for both dtypes, unless nothing moves. What is
        // to be converted to something else is rounded to that first, and only then widened.
        let widened_while_read =
            asked == dtype && held.bits() != dtype.bits() && can_convert(dtype, held);
        let read = if widened_while_read { held } else { asked };
        Ok(LoadedDtype { file: dtype, read, pairs: false, converted: read, held })
    }
}

impl LoadedDtype {
    /// The dtype that the tensors have in memory.
    pub fn dtype(&self) -> Dtype {
        self.held
    }

    /// The shape that a tensor has in memory, given its shape in the file: the same, but for complex
    /// numbers that become pairs of numbers, which gain a last dimension of 2.
    pub fn shape(&self, shape: &[usize]) -> Vec<usize> {
        if self.pairs { widened_shape(Dtype::C64, Dtype::F32, shape) } else { shape.to_vec() }
    }

    /// What happens to elements while they are read, if anything does.
    pub(super) fn conversion(
        &self,
        options: &ConvertOptions,
    ) -> Result<Option<Conversion>, ErrorKind> {
        match self.read {
            read if read == self.file => Ok(None),
            read => Conversion::new(self.file, read, options).map(Some),
        }
    }

    /// Does what is left to be done once the elements are read.
    pub(super) fn finish(&self, mut buf: TensorBuf, options: &ConvertOptions) -> Result<TensorBuf> {
        if self.pairs {
            buf = widen(buf, Dtype::F32)?;
        }
        buf = buf.convert(self.converted, options)?;
        if self.converted == self.held { Ok(buf) } else { widen(buf, self.held) }
    }
}
