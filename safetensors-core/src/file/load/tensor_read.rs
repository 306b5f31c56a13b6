//! [`TensorRead`]: a tensor or a part to read, and its dtype.

use std::borrow::Cow;

use super::fused::ReadConversion;
use super::lazy::TensorPlace;
use super::{DtypePlan, LazySlice, LazyTensor, LoadOptions};
use crate::file::io::ReadAt;
use crate::format::error::{ErrorKind, Result};
use crate::format::slice::{ByteRuns, Runs};
use crate::format::tensor::{Rows, TensorBuf};

pub(crate) struct TensorRead<'t> {
    pub(crate) tensor: TensorPlace<'t>,
    pub(crate) shape: &'t [usize],
    /// Counted from the tensor's first byte.
    pub(crate) runs: Cow<'t, ByteRuns>,
    /// Gaps of at most this many bytes are read over.
    pub(crate) gap: u64,
    pub(crate) loaded: DtypePlan,
    rows: Option<&'t Rows>,
}

pub(crate) type Reserved<'t> = (TensorBuf, Option<ReadConversion<'t>>);

impl<'t> TensorRead<'t> {
    pub(crate) fn whole<S: ReadAt>(
        tensor: &LazyTensor<'t, S>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Ok(Self {
            tensor: tensor.place(),
            shape: tensor.shape(),
            runs: Cow::Owned(ByteRuns::Pattern(Runs::whole(tensor.byte_len()))),
            gap: 0,
            loaded: tensor.dtype_plan(options)?,
            rows: None,
        })
    }

    pub(crate) fn part<S: ReadAt>(
        slice: &'t LazySlice<'_, S>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Ok(Self {
            shape: slice.shape(),
            runs: Cow::Borrowed(&slice.runs),
            gap: slice.gap,
            rows: slice.rows.as_ref(),
            ..Self::whole(slice.tensor(), options)?
        })
    }
}

impl TensorRead<'_> {
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
