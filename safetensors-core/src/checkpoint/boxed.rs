//! [`Checkpoint::into_boxed`]: one type for all sources.

use std::convert::Infallible;

use super::Checkpoint;
use crate::file::io::ReadAt;
use crate::format::error::{Error, Result};
use crate::weights::Weight;

/// Accepts the error of a weight, so that its tensors stay as they are stored.
pub(crate) type Leaves<'a> = &'a mut dyn FnMut(&Error) -> bool;

impl<S: ReadAt> Checkpoint<S> {
    /// Erases the type of the sources, so that checkpoints of any store can be used alike.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, ReadAt, SaveOptions, TensorView, serialize};
    ///
    /// fn open(place: &str) -> Result<Checkpoint<Box<dyn ReadAt>>, Box<dyn std::error::Error>> {
    ///     if place == "memory" {
    ///         let weight = TensorView::from_slice(&[2], &[1_u8, 2])?;
    ///         let bytes = serialize([("weight", weight)], &SaveOptions::new())?;
    ///         return Ok(Checkpoint::from_source(bytes, place)?.into_boxed());
    ///     }
    ///     Ok(Checkpoint::open(place)?.into_boxed())
    /// }
    ///
    /// assert_eq!(open("memory")?.tensor("weight")?.read()?.as_slice::<u8>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_boxed<'a>(self) -> Checkpoint<Box<dyn ReadAt + 'a>>
    where
        S: 'a,
    {
        self.map_sources(|source| Box::new(source) as Box<dyn ReadAt + 'a>)
    }

    /// Shows the checkpoint again, without a copy of its sources.
    #[doc(hidden)]
    pub fn by_ref(&self) -> Checkpoint<&dyn ReadAt> {
        Checkpoint { catalog: self.catalog.by_ref(), about: self.about.clone() }
    }

    /// Returns the quantised weights, without errors that `leaves` accepts.
    pub(crate) fn stored_weights(&self, leaves: Leaves<'_>) -> Result<Vec<Weight>> {
        let weights = self.catalog.weights();
        let Err(failed) = weights else { return weights };
        let mut failed = Some(failed);
        let weights = self.tensors().filter_map(|tensor| {
            let found = tensor.weight().map_err(|error| tensor.locate(error)).transpose()?;
            let is_left = found.as_ref().is_err_and(&mut *leaves);
            failed = failed.take().filter(|_| !is_left);
            (!is_left).then_some(found)
        });
        let weights = weights.collect::<Result<_>>()?;
        failed.filter(|error| !leaves(error)).map_or(Ok(weights), Err)
    }
}

impl<S> Checkpoint<S> {
    /// Declares that no tensor is codes of a quantised weight.
    #[doc(hidden)]
    pub fn without_codes(mut self) -> Self {
        self.catalog.table.is_plain = true;
        self
    }

    pub(super) fn map_sources<T>(self, change: impl Fn(S) -> T) -> Checkpoint<T> {
        let Ok(changed) = self.try_map_sources::<T, Infallible>(|source| Ok(change(source)));
        changed
    }

    pub(super) fn try_map_sources<T, E>(
        self,
        change: impl Fn(S) -> Result<T, E>,
    ) -> Result<Checkpoint<T>, E> {
        Ok(Checkpoint { catalog: self.catalog.map_sources(change)?, about: self.about })
    }
}
