//! [`TensorRead`]: a tensor or a part to read, and its dtype.

use std::borrow::Cow;

use super::fused::ReadConversion;
use super::{DtypePlan, LazySlice, LazyTensor, LoadOptions};
use crate::file::io::ReadAt;
use crate::format::error::{ErrorKind, Result};
use crate::format::slice::{ByteRuns, Runs};
use crate::format::tensor::{Rows, TensorBuf};

pub(crate) struct TensorRead<'t, 'a, S> {
    pub(crate) tensor: &'t LazyTensor<'a, S>,
    pub(crate) shape: &'t [usize],
    /// Counted from the tensor's first byte.
    pub(crate) runs: Cow<'t, ByteRuns>,
    /// Gaps of at most this many bytes are read over.
    pub(crate) gap: u64,
    pub(crate) loaded: DtypePlan,
    rows: Option<&'t Rows>,
}

pub(crate) type Reserved<'t> = (TensorBuf, Option<ReadConversion<'t>>);

impl<'t, 'a, S: ReadAt> TensorRead<'t, 'a, S> {
    pub(crate) fn whole(tensor: &'t LazyTensor<'a, S>, options: &LoadOptions) -> Result<Self> {
        Ok(Self {
            tensor,
            shape: tensor.shape(),
            runs: Cow::Owned(ByteRuns::Pattern(Runs::whole(tensor.byte_len()))),
            gap: 0,
            loaded: tensor.dtype_plan(options)?,
            rows: None,
        })
    }

    pub(crate) fn part(slice: &'t LazySlice<'a, S>, options: &LoadOptions) -> Result<Self> {
        Ok(Self {
            shape: slice.shape(),
            runs: Cow::Borrowed(&slice.runs),
            gap: slice.gap,
            rows: slice.rows.as_ref(),
            ..Self::whole(slice.tensor(), options)?
        })
    }
}

impl<'t, S> TensorRead<'t, '_, S> {
    /// Returns the conversion of elements while they are read.
    pub(crate) fn conversion(
        &self,
        options: &LoadOptions,
    ) -> Result<Option<ReadConversion<'_>>, ErrorKind> {
        let conversion = self.loaded.conversion(&options.convert)?;
        Ok(conversion.map(|conversion| ReadConversion { conversion, rows: self.rows }))
    }

    pub(crate) fn reserve(&self, options: &LoadOptions) -> Result<Reserved<'_>> {
        self.try_to_reserve(options).map_err(|error| self.tensor.locate(error))
    }

    fn try_to_reserve(&self, options: &LoadOptions) -> Result<Reserved<'_>> {
        let conversion = self.conversion(options)?;
        let dtype = conversion.map_or(self.tensor.dtype(), |conversion| conversion.to());
        Ok((TensorBuf::reserved(dtype, self.shape.to_vec())?, conversion))
    }

    pub(crate) fn arrange(&self, buf: &mut TensorBuf) {
        if let Some(rows) = self.rows {
            rows.arrange(buf.bytes_mut());
        }
    }

    pub(crate) fn finish(&self, buf: TensorBuf, options: &LoadOptions) -> Result<TensorBuf> {
        let finished = self.loaded.finish(buf, &options.convert, options.thread_count());
        finished.map_err(|error| self.tensor.locate(error))
    }
}
