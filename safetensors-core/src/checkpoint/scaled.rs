//! Reading whole tensors and parts of them, quantised weights together with their scales.

use std::collections::BTreeSet;
use std::iter;

use super::Checkpoint;
use crate::convert::{ScaleLayout, ScaledWeights, Scales};
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::io::ReadAt;
use crate::load::{
    LazySlice, LazyTensor, LoadOptions, LoadedDtype, read_scaled, read_slices, read_tensors,
};
use crate::slice::{Index, TensorPart};
use crate::tensor::TensorBuf;

/// The suffixes of the names of scales. DeepSeek's checkpoints use the first. `inv` means that
/// these are the inverse of the factors by which the weight was multiplied when it was quantised.
/// So the elements are multiplied by both kinds.
const SUFFIXES: [&str; 2] = ["_scale_inv", "_scale"];

/// A weight's tensor of scales, and the elements that each scale belongs to.
struct Scaling<'a, S> {
    tensor: LazyTensor<'a, S>,
    layout: ScaleLayout,
}

impl<S> Checkpoint<S> {
    /// The tensor with the scales of a quantised weight, if it has one.
    ///
    /// A weight `w` of 8-bit floats has its scales in the tensor `w_scale_inv`, or else `w_scale`:
    ///
    /// | shape of the scales of `[.., rows, columns]` | each scale belongs to |
    /// |---|---|
    /// | `[.., rows / 128, columns / 128]`, rounded up | a block of 128 × 128 elements |
    /// | `[.., rows]` or `[.., rows, 1]` | a row: an output channel |
    /// | `[]`, `[1]` or `[1, 1]` | the whole weight |
    ///
    /// [`LoadOptions::scaled_weights`] applies them, [`LoadOptions::scale_block`] sets the size of
    /// blocks.
    ///
    /// A weight that is saved once for several names may have its scales beside any of them, its
    /// [aliases](Checkpoint::aliases) included. If several names have scales of their own, these
    /// are the first: those of the name in the file, or else of the first alias. A load that would
    /// apply them is an error.
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
    /// assert_eq!(checkpoint.scales_of(&weight).unwrap().name(), "w_scale_inv");
    /// let options = LoadOptions::new().floats_as(Dtype::F32);
    /// let error = checkpoint.read_named(["w"], &options).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }));
    /// let options = options.scaled_weights(ScaledWeights::Dequantize);
    /// assert_eq!(checkpoint.read_named(["w"], &options)?[0].as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scales_of(&self, weight: &LazyTensor<'_, S>) -> Option<LazyTensor<'_, S>> {
        self.all_scales_of(weight).next()
    }

    /// The scales that lie beside the name of a weight in its file, then those beside each of its
    /// aliases. A tensor of scales with several names may come several times.
    fn all_scales_of<'a, 'w>(
        &'a self,
        weight: &LazyTensor<'w, S>,
    ) -> impl Iterator<Item = LazyTensor<'a, S>> + use<'a, 'w, S> {
        let dtype = weight.dtype();
        let is_quantised = dtype.is_float() && dtype.bits() == 8 && dtype != Dtype::F8_E8M0;
        let beside = move |name: &str| {
            SUFFIXES.iter().find_map(|suffix| self.get(&format!("{name}{suffix}")))
        };
        let of_aliases = self.aliases_of(weight).filter_map(beside);
        let all = iter::once(weight.name()).filter_map(beside).chain(of_aliases);
        is_quantised.then_some(all).into_iter().flatten()
    }

    /// Decides how a tensor is converted when it is loaded: as [`LoadOptions::loaded`], with its
    /// scales taken into account.
    ///
    /// # Errors
    ///
    /// Those of [`LoadOptions::loaded`], and those of [`read_parts`](Checkpoint::read_parts) for
    /// weights with scales.
    pub fn loaded(&self, tensor: &LazyTensor<'_, S>, options: &LoadOptions) -> Result<LoadedDtype> {
        let loaded = match self.scaling(tensor, options)? {
            None => options.loaded(tensor.dtype()),
            Some(_) => options.loaded_by_scales(tensor.dtype()),
        };
        loaded.map_err(|error| tensor.locate(error))
    }

    /// The names of the scales that a load with these options applies to weights. They are of no
    /// other use to a model, so [`framework::load`](crate::framework::load) does not return them.
    pub fn applied_scales(&self, options: &LoadOptions) -> BTreeSet<&str> {
        if options.scaled_weights != ScaledWeights::Dequantize {
            return BTreeSet::new();
        }
        let weights = self.tensors().filter(|weight| options.dequantized(weight.dtype()).is_some());
        weights.filter_map(|weight| self.scales_of(&weight)).map(|scales| scales.name()).collect()
    }

    /// The scales that a tensor is multiplied by.
    fn scaling(
        &self,
        weight: &LazyTensor<'_, S>,
        options: &LoadOptions,
    ) -> Result<Option<Scaling<'_, S>>> {
        if options.scaled_weights == ScaledWeights::Raw {
            return Ok(None);
        }
        let Some(to) = options.dequantized(weight.dtype()) else { return Ok(None) };
        let mut found = self.all_scales_of(weight);
        let Some(tensor) = found.next() else { return Ok(None) };
        let scales = || tensor.name().into();
        if let Some(other) = found.find(|other| other.name() != tensor.name()) {
            let other = other.name().into();
            let ambiguous = ErrorKind::AmbiguousScales { scales: scales(), other };
            return Err(weight.locate(ambiguous.into()));
        }
        if options.scaled_weights == ScaledWeights::Refuse {
            return Err(weight.locate(ErrorKind::NeedsScales { scales: scales(), to }.into()));
        }
        if !tensor.dtype().is_float() {
            let wrong = ErrorKind::WrongDtype { expected: Dtype::F32, found: tensor.dtype() };
            return Err(tensor.locate(wrong.into()));
        }
        let block = options.scale_block;
        match ScaleLayout::new(weight.shape(), tensor.shape(), block) {
            Some(layout) => Ok(Some(Scaling { tensor, layout })),
            None => {
                let expected = ScaleLayout::block_shape(weight.shape(), block);
                let found = tensor.shape().to_vec();
                let wrong = ErrorKind::WrongScales { scales: scales(), block, expected, found };
                Err(weight.locate(wrong.into()))
            }
        }
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Reads part of the tensor of this name or [alias](Checkpoint::aliases), in several threads if
    /// it is large.
    ///
    /// # Errors
    ///
    /// Those of [`read_parts`](Checkpoint::read_parts).
    pub fn read_part(
        &self,
        name: &str,
        part: TensorPart,
        options: &LoadOptions,
    ) -> Result<TensorBuf> {
        let tensor = self.tensor(name)?;
        match self.scaling(&tensor, options)? {
            None => tensor.part(part)?.read_with(options),
            Some(scaling) => {
                let mut bufs = read_with_scales(&[(tensor, part)], vec![Some(scaling)], options)?;
                bufs.pop().ok_or_else(|| tensor.locate(ErrorKind::TensorNotFound.into()))
            }
        }
    }

    /// Reads parts of the tensors of these names, or [aliases](Checkpoint::aliases), in parallel,
    /// in this order. Only the bytes of the parts are read, and small gaps between them.
    ///
    /// If the options ask for it, a quantised weight is multiplied by its
    /// [scales](Checkpoint::scales_of). The part may begin or end inside a block.
    ///
    /// The scales of all these parts are in memory at once, as F32, while the weights are read. For
    /// blocks of 128 × 128 elements that is less than a thousandth of the weights. Scales of rows
    /// take more, the narrower the weights are: those of an FP8 weight of one column take four
    /// times the bytes of the weight in the file.
    ///
    /// ```
    /// use safetensors_core::slice::{RankPart, TensorPart};
    /// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// let values = [1_u8, 2, 3, 4];
    /// let tensors =
    ///     ["up", "down"].map(|name| (name, TensorView::from_slice(&[2, 2], &values).unwrap()));
    /// save(&path, tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let parts = [
    ///     ("up", TensorPart::span(0, 1, 1)),
    ///     ("down", TensorPart::Rank(RankPart::new(1, 0, 2))),
    /// ];
    /// let bufs = checkpoint.read_parts(parts, &LoadOptions::new())?;
    /// assert_eq!(bufs[0].as_slice::<u8>()?, [3, 4]);
    /// assert_eq!(bufs[1].as_slice::<u8>()?, [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TensorNotFound`], and those of [`TensorPart::ranges`] and of
    ///   [`TensorView::slice`](crate::TensorView::slice).
    /// - [`ErrorKind::NeedsScales`] if a weight with scales is to be converted and the options do
    ///   not say [how](LoadOptions::scaled_weights).
    /// - [`ErrorKind::WrongScales`] or [`ErrorKind::WrongDtype`] if the scales do not belong to the
    ///   weight; [`ErrorKind::AmbiguousScales`] if two names of the weight have different ones.
    /// - Those of [`read_slices`].
    ///
    /// All but the last are found before any data is read.
    pub fn read_parts<N: AsRef<str>>(
        &self,
        parts: impl IntoIterator<Item = (N, TensorPart)>,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let parts = parts.into_iter().map(|(name, part)| Ok((self.tensor(name.as_ref())?, part)));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let scalings = parts.iter().map(|(tensor, _)| self.scaling(tensor, options));
        read_with_scales(&parts, scalings.collect::<Result<_>>()?, options)
    }

    /// Reads the scales that whole tensors are multiplied by, all of them at once; `None` for those
    /// without.
    pub(crate) fn read_scales(
        &self,
        tensors: &[LazyTensor<'_, S>],
        options: &LoadOptions,
    ) -> Result<Vec<Option<Scales>>> {
        let scalings = tensors.iter().map(|tensor| self.scaling(tensor, options));
        let parts: Vec<_> = tensors.iter().map(|&tensor| (tensor, TensorPart::Whole)).collect();
        read_scales(&parts, scalings.collect::<Result<_>>()?, options)
    }

    /// Reads whole tensors of this checkpoint. The scales of all of them are in memory at once, see
    /// [`read_parts`](Checkpoint::read_parts).
    pub(crate) fn read_whole(
        &self,
        tensors: &[LazyTensor<'_, S>],
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let scalings = tensors.iter().map(|tensor| self.scaling(tensor, options));
        let scalings = scalings.collect::<Result<Vec<_>>>()?;
        if scalings.iter().all(Option::is_none) {
            return read_tensors(tensors, options);
        }
        let parts: Vec<_> = tensors.iter().map(|&tensor| (tensor, TensorPart::Whole)).collect();
        read_with_scales(&parts, scalings, options)
    }
}

/// Reads parts of tensors, each with its scales if it has any. All scales are read first, in one
/// go, which is fewer reads than one for each weight.
fn read_with_scales<S: ReadAt>(
    parts: &[(LazyTensor<'_, S>, TensorPart)],
    scalings: Vec<Option<Scaling<'_, S>>>,
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    let slices =
        parts.iter().map(|(tensor, part)| tensor.part(*part)).collect::<Result<Vec<_>>>()?;
    read_scaled(&slices, read_scales(parts, scalings, options)?, options)
}

/// Reads the scales of parts of tensors, in one go.
fn read_scales<S: ReadAt>(
    parts: &[(LazyTensor<'_, S>, TensorPart)],
    scalings: Vec<Option<Scaling<'_, S>>>,
    options: &LoadOptions,
) -> Result<Vec<Option<Scales>>> {
    let mut ranges = Vec::new();
    let mut needed: Vec<LazySlice<'_, S>> = Vec::new();
    for ((tensor, part), scaling) in parts.iter().zip(&scalings) {
        let Some(scaling) = scaling else { continue };
        let part = part.ranges(tensor.shape()).map_err(|kind| tensor.locate(kind.into()))?;
        let indices: Vec<_> = scaling.layout.needed(&part).into_iter().map(Index::from).collect();
        needed.push(scaling.tensor.slice(indices)?);
        ranges.push(part);
    }
    let mut values = ranges.into_iter().zip(read_slices(&needed, &options.for_scales())?);
    let mut scales = Vec::with_capacity(parts.len());
    for ((weight, _), scaling) in parts.iter().zip(scalings) {
        let read = scaling.and_then(|scaling| Some((scaling, values.next()?)));
        scales.push(match read {
            None => None,
            Some((Scaling { tensor, layout }, (part, values))) => {
                let values = values.into_vec::<f32>().map_err(|error| tensor.locate(error))?;
                let (expected, found) = (layout.needed(&part), values.len() as u64);
                let expected = expected.iter().map(|range| range.len() as u64).product();
                let scales = Scales::new(&layout, &part, values);
                Some(scales.ok_or_else(|| {
                    weight.locate(ErrorKind::SourceLength { expected, found }.into())
                })?)
            }
        });
    }
    Ok(scales)
}
