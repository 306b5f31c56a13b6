//! Reading parts of tensors by name.

use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::{LoadOptions, read_slices};
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::format::slice::TensorPart;
use crate::format::tensor::TensorBuf;

impl<S: ReadAt> Checkpoint<S> {
    /// Reads parts of the tensors of these names, or [aliases](Checkpoint::aliases), in parallel,
    /// in this order. Only the bytes of the parts are read, and small gaps between them.
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
    /// - [`ErrorKind::TensorNotFound`], and as for [`TensorPart::ranges`] and
    ///   [`TensorView::slice`](crate::TensorView::slice).
    /// - As for [`read_slices`].
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
