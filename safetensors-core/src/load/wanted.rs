//! [`TensorRead`]: a tensor, or a part of one, that is to be read, with what its elements become.

use std::borrow::Cow;

use super::scaled::Scaling;
use super::{DtypePlan, LazySlice, LazyTensor, LoadOptions, read_slices};
use crate::convert::{ReadConversion, Scales};
use crate::error::{ErrorKind, Result};
use crate::io::ReadAt;
use crate::slice::{ByteRuns, Index, Runs};
use crate::tensor::shape::Positions;
use crate::tensor::{Rows, TensorBuf};

/// A tensor, or a part of one, that is to be read.
pub(super) struct TensorRead<'t, 'a, S> {
    pub(super) tensor: &'t LazyTensor<'a, S>,
    pub(super) shape: &'t [usize],
    /// The bytes to read, counted from the tensor's first byte.
    pub(super) runs: Cow<'t, ByteRuns>,
    /// Runs with at most this many bytes between them are read in one call.
    pub(super) gap: u64,
    /// What the elements become.
    pub(super) loaded: DtypePlan,
    /// Where the scales lie that the elements are multiplied by, until they are read.
    pub(super) scaling: Option<Box<Scaling<'a, S>>>,
    /// The scales, once they are read.
    pub(super) scales: Option<Scales>,
    /// The positions of a slice in its tensor.
    positions: Option<&'t [Positions]>,
    /// The rows of a slice that has them one by one.
    rows: Option<&'t Rows>,
}

/// A buffer, and the conversion of the elements that are read into it, if there is one.
pub(super) type Reserved<'t> = (TensorBuf, Option<ReadConversion<'t>>);

impl<'t, 'a, S> TensorRead<'t, 'a, S> {
    /// All of a tensor.
    pub(super) fn whole(tensor: &'t LazyTensor<'a, S>, options: &LoadOptions) -> Result<Self> {
        let (loaded, scaling) = tensor.decide(options)?;
        Ok(Self {
            tensor,
            shape: tensor.shape(),
            runs: Cow::Owned(ByteRuns::Pattern(Runs::whole(tensor.byte_len()))),
            gap: 0,
            loaded,
            scaling: scaling.map(Box::new),
            scales: None,
            positions: None,
            rows: None,
        })
    }

    /// A slice of a tensor.
    pub(super) fn part(slice: &'t LazySlice<'a, S>, options: &LoadOptions) -> Result<Self> {
        Ok(Self {
            shape: slice.shape(),
            runs: Cow::Borrowed(slice.runs()),
            gap: slice.gap_len(),
            positions: Some(slice.positions()),
            rows: slice.by_rows(),
            ..Self::whole(slice.tensor(), options)?
        })
    }

    /// The positions in the tensor.
    pub(super) fn positions(&self) -> Cow<'t, [Positions]> {
        match self.positions {
            Some(positions) => positions.into(),
            None => Positions::whole(self.tensor.shape()).into(),
        }
    }

    /// The conversion while its elements are read, if there is one.
    pub(super) fn conversion(
        &self,
        options: &LoadOptions,
    ) -> Result<Option<ReadConversion<'_>>, ErrorKind> {
        let options = options.conversions();
        let conversion = self.loaded.conversion(&options)?;
        let scaled = |to| ReadConversion::new(to, self.scales.as_ref(), &options);
        Ok(conversion.map(scaled).transpose()?.map(|conversion| conversion.of_rows(self.rows)))
    }

    /// Reserves its buffer, and returns it with the conversion while reading, if there is one.
    pub(super) fn reserve(&self, options: &LoadOptions) -> Result<Reserved<'_>> {
        let reserve = || {
            let conversion = self.conversion(options)?;
            let dtype = conversion.map_or(self.tensor.dtype(), |conversion| conversion.to());
            Ok((TensorBuf::reserved(dtype, self.shape.to_vec())?, conversion))
        };
        reserve().map_err(|error| self.tensor.locate(error))
    }

    /// Moves rows to their places after they are read.
    pub(super) fn arrange(&self, buf: &mut TensorBuf) {
        if let Some(rows) = self.rows {
            rows.arrange(buf.bytes_mut());
        }
    }

    /// Finishes the tensor after its buffer is filled.
    pub(super) fn finish(&self, buf: TensorBuf, options: &LoadOptions) -> Result<TensorBuf> {
        let finished = self.loaded.finish(buf, &options.conversions());
        finished.map_err(|error| self.tensor.locate(error))
    }
}

/// Reads the scales that tensors and slices are multiplied by, all of them in one go, which is
/// fewer reads than one for each weight.
pub(super) fn read_scales<S: ReadAt>(
    wanted: &mut [TensorRead<'_, '_, S>],
    options: &LoadOptions,
) -> Result<()> {
    let mut needed: Vec<LazySlice<'_, S>> = Vec::new();
    let mut scaled = Vec::new();
    for wanted in wanted {
        let Some(scaling) = wanted.scaling.take() else { continue };
        let positions = wanted.positions();
        let ranges = scaling.layout.needed(&positions);
        needed.push(scaling.tensor.slice(ranges.into_iter().map(Index::from).collect::<Vec<_>>())?);
        scaled.push((wanted, scaling, positions));
    }
    if needed.is_empty() {
        return Ok(());
    }
    let values = read_slices(&needed, &options.for_scales())?;
    for ((wanted, scaling, positions), values) in scaled.into_iter().zip(values) {
        let Scaling { tensor, layout } = &*scaling;
        let values = values.into_vec::<f32>().map_err(|error| tensor.locate(error))?;
        let found = values.len() as u64;
        let scales = Scales::of_part(layout, &positions, values).ok_or_else(|| {
            let needed = layout.needed(&positions);
            let expected = needed.iter().map(|range| range.len() as u64).product();
            tensor.locate(ErrorKind::SourceLength { expected, found }.into())
        });
        wanted.scales = Some(match wanted.rows {
            Some(rows) => scales?.of_rows(rows.distinct(), &positions),
            None => scales?,
        });
    }
    Ok(())
}
