//! What a tensor becomes when it is read: its dtype, and whether its elements are multiplied by the
//! scales of a quantised weight. Every way to read asks [`LazyTensor::decide`].

use std::iter;

use super::catalog::alias_of;
use super::{DtypePlan, LazySlice, LazyTensor, LoadOptions};
use crate::convert::{FoundScales, ScaleLayout, find_scales, may_have_scales};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::io::ReadAt;
use crate::tensor::{ScaleSource, TensorSource};

/// The scales of a weight.
struct FoundScaleTensor<'a, S> {
    tensor: LazyTensor<'a, S>,
    /// The name of other scales, beside another name of the weight.
    other: Option<&'a str>,
}

/// The scales that a weight is multiplied by, and the elements that each scale belongs to.
pub(super) struct Scaling<'a, S> {
    pub(super) tensor: LazyTensor<'a, S>,
    pub(super) layout: ScaleLayout,
}

impl<'a, S> LazyTensor<'a, S> {
    /// The tensor with the scales of a quantised weight, if the checkpoint has one.
    ///
    /// A weight `w` of 8-bit floats has its scales in the tensor `w_scale_inv`, or else `w_scale`.
    /// A weight `X.weight` may also have them in `X.scale_weight`.
    ///
    /// | shape of the scales of `[.., rows, columns]` | each scale belongs to |
    /// |---|---|
    /// | `[.., rows / 128, columns / 128]`, rounded up | a block of 128 × 128 elements |
    /// | `[.., rows]` or `[.., rows, 1]` | a row: an output channel |
    /// | `[]`, `[1]` or `[1, 1]` | the whole weight |
    ///
    /// [`LoadOptions::scaled_weights`] and
    /// [`ConvertOptions::scaled_weights`](crate::ConvertOptions::scaled_weights) apply them,
    /// [`ConvertOptions::scale_block`](crate::ConvertOptions::scale_block) sets the size of blocks.
    ///
    /// A weight that is saved once for several names may have its scales beside any of them, its
    /// [aliases](crate::Checkpoint::aliases) included. If several names have scales, these are the
    /// first: the scales of the name in the file, or else of the first alias. A conversion
    /// is an error then.
    ///
    /// ```
    /// use safetensors_core::convert::ScaledWeights;
    /// use safetensors_core::{
    ///     Checkpoint, Dtype, ErrorKind, LoadOptions, SaveOptions, TensorView, save,
    /// };
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// // The codes of 1 and 2. The weight is 0.5 and 1.
    /// let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1, 1], &[0.5_f32])?;
    /// save(&path, [("w", weight), ("w_scale_inv", scales)], &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let weight = checkpoint.tensor("w")?;
    /// assert_eq!(weight.scales().unwrap().name(), "w_scale_inv");
    /// let options = LoadOptions::new().floats_as(Dtype::F32);
    /// let error = weight.read_with(&options).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }));
    /// let options = options.scaled_weights(ScaledWeights::Dequantize);
    /// assert_eq!(weight.read_with(&options)?.as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scales(&self) -> Option<LazyTensor<'a, S>> {
        self.find_scales().map(|found| found.tensor)
    }

    fn find_scales(&self) -> Option<FoundScaleTensor<'a, S>> {
        if !may_have_scales(self.dtype()) {
            return None;
        }
        let names = iter::once(self.name()).chain(self.aliases());
        let (scales, other) = find_scales(names, |name| self.position(name))?;
        let other = other.and_then(|other| self.sibling(other)).map(|other| other.name());
        Some(FoundScaleTensor { tensor: self.sibling(scales)?, other })
    }

    /// The position of a name in the same checkpoint, or in the same file if it was opened without
    /// one.
    fn position(&self, name: &str) -> Option<usize> {
        match self.catalog {
            Some(catalog) => catalog.position(name),
            None => self.archive.header().position(name),
        }
    }

    /// The tensor at this position.
    fn sibling(&self, position: usize) -> Option<LazyTensor<'a, S>> {
        match self.catalog {
            Some(catalog) => catalog.tensor_at(position),
            None => {
                let info = self.archive.header().tensor_at(position)?;
                Some(LazyTensor::new(info, self.archive, self.file()))
            }
        }
    }

    /// The aliases of the tensor, sorted.
    fn aliases(&self) -> Vec<&'a str> {
        if let Some(catalog) = self.catalog {
            return catalog.aliases_of(self.name()).collect();
        }
        let header = self.archive.header();
        let is_of_this = |key: &str, value: &str| {
            value == self.name() && alias_of(key, value, |name| header.position(name)).is_some()
        };
        let entries = self.archive.metadata().iter();
        entries.filter(|(key, value)| is_of_this(key, value)).map(|(key, _)| &**key).collect()
    }

    /// Decides what the tensor becomes when it is loaded: as [`LoadOptions::dtype_plan`], with its
    /// [scales](LazyTensor::scales) taken into account. Every way to read decides in this way.
    ///
    /// # Errors
    ///
    /// - The errors of [`LoadOptions::dtype_plan`].
    /// - [`ErrorKind::NeedsScales`] if a weight with scales would become another dtype, and the
    ///   options do not say [how](LoadOptions::scaled_weights).
    /// - [`ErrorKind::WrongScales`] or [`ErrorKind::WrongDtype`] if the scales do not belong to the
    ///   weight; [`ErrorKind::AmbiguousScales`] if two names of the weight have different ones.
    pub fn dtype_plan(&self, options: &LoadOptions) -> Result<DtypePlan> {
        self.decide(options).map(|(loaded, _)| loaded)
    }

    /// [`dtype_plan`](LazyTensor::dtype_plan), with the scales that the elements are multiplied by.
    pub(super) fn decide(
        &self,
        options: &LoadOptions,
    ) -> Result<(DtypePlan, Option<Scaling<'a, S>>)> {
        let decide = || {
            let from = self.dtype();
            let Some(FoundScaleTensor { tensor, other }) = self.find_scales() else {
                return Ok((options.dtype_plan(from)?, None));
            };
            let by_scales = || options.dtype_plan_by_scales(from);
            // A framework that lacks the dtype would hold the elements as a wider one. That needs
            // the scales too, although the options ask for no conversion.
            let loaded =
                if options.dequantizes(from) { by_scales()? } else { options.dtype_plan(from)? };
            if loaded.dtype() == from {
                return Ok((loaded, None));
            }
            let (name, dtype, shape) = (tensor.name(), tensor.dtype(), tensor.shape());
            let found = FoundScales { name, dtype, shape, other };
            let layout =
                options.conversions().scale_layout(self.shape(), loaded.dtype(), &found)?;
            Ok(match layout {
                None => (loaded, None),
                Some(layout) => (by_scales()?, Some(Scaling { tensor, layout })),
            })
        };
        decide().map_err(|error| self.locate(error))
    }
}

impl<'a, S: ReadAt> LazyTensor<'a, S> {
    /// The scales of a slice of the tensor, or of all of it, for a save that converts.
    pub(super) fn scale_source(&self, part: Option<&LazySlice<'_, S>>) -> Option<ScaleSource<'a>>
    where
        S: 'a,
    {
        let FoundScaleTensor { tensor, other } = self.find_scales()?;
        Some(ScaleSource {
            name: tensor.name().into(),
            tensor: Box::new(tensor) as Box<dyn TensorSource + 'a>,
            weight: self.shape().to_vec(),
            positions: part.map(|part| part.positions().to_vec()),
            rows: part.and_then(|part| Some(part.by_rows()?.wanted())),
            other: other.map(Into::into),
        })
    }
}
