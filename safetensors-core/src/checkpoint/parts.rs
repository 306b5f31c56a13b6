//! Reading parts of tensors by name; the scales that a load applies.

use std::collections::BTreeSet;

use super::Checkpoint;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::io::ReadAt;
use crate::load::{LoadOptions, read_slices};
use crate::slice::TensorPart;
use crate::tensor::TensorBuf;

impl<S> Checkpoint<S> {
    /// The names of the scales that a load with these options applies to weights. They are of no
    /// other use to a model, so [`framework::load`](crate::framework::load) does not return them.
    pub fn applied_scales(&self, options: &LoadOptions) -> BTreeSet<&str> {
        // A weight whose scales are wrong cannot be loaded, but its scales are scales all the same.
        let weights = self.tensors().filter(|weight| options.dequantizes(weight.dtype()));
        weights.filter_map(|weight| weight.scales()).map(|scales| scales.name()).collect()
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Reads parts of the tensors of these names, or [aliases](Checkpoint::aliases), in parallel,
    /// in this order. Only the bytes of the parts are read, and small gaps between them.
    ///
    /// If the options ask for it, a quantised weight is multiplied by its
    /// [scales](crate::LazyTensor::scales). The part may begin or end inside a block.
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
    /// - [`ErrorKind::TensorNotFound`], and the errors of [`TensorPart::ranges`] and of
    ///   [`TensorView::slice`](crate::TensorView::slice).
    /// - The errors of [`read_slices`].
    ///
    /// The first are found before any data is read.
    pub fn read_parts<N: AsRef<str>>(
        &self,
        parts: impl IntoIterator<Item = (N, TensorPart)>,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let parts = parts.into_iter().map(|(name, part)| self.tensor(name.as_ref())?.slice(part));
        read_slices(&parts.collect::<Result<Vec<_>>>()?, options)
    }
}
