//! [`Tied`]: how tensors that share storage are saved.

use alloc::collections::BTreeSet;
use alloc::string::String;

/// How a save treats views: tensors that fill only a part of their storage, or share it with a
/// different tensor, such as a slice or another dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Views {
    /// An error, because the file could not restore the view.
    #[default]
    Refuse,
    /// Drops a view of a tensor that fills the storage, as `safetensors.torch.save_model` does, and
    /// records its name as an alias. Other views are errors.
    ///
    /// Loading the name gives the entire tensor.
    Drop,
    /// Saves a view as a separate tensor. The file has shared bytes more than once.
    Save,
}

/// Saves tensors that share storage once, under one of their names.
///
/// Of the tensors that fill the storage, the first name in sorted order is kept, or a
/// [preferred](Tied::prefer) one. Each other name becomes a metadata entry with the kept name, as
/// by `safetensors.torch.save_model`. [`Checkpoint`](crate::Checkpoint) finds the tensor under each
/// name.
///
/// ```
/// use safetensors_core::tied::Tied;
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
///
/// let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let tensors = [("lm_head.weight", weight), ("embed.weight", weight)];
/// let options = SaveOptions::new().tied(Tied::new().prefer(["embed.weight"]));
///
/// let file = SafeTensors::parse(serialize(tensors, &options)?)?;
/// assert_eq!(file.tensors().len(), 1);
/// assert_eq!(file.metadata()["lm_head.weight"], "embed.weight");
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// Tied tensors overlap in one allocation, as their [`storage`](crate::TensorSource::storage) says.
/// Tensors without bytes are never tied.
///
/// # Errors of saving
///
/// [`TieProblem`](crate::error::TieProblem):
///
/// - `NotCovered` if no tensor of a group, even a single one, fills the storage, unless
///   [`Views::Save`] is set;
/// - `PartlyTied` if a dropped tensor is not the same as the kept one, unless [`Views::Drop`] is
///   set;
/// - `NotRecorded` if the metadata has another entry under a dropped name;
/// - `Reserved` if the name is `format`, or begins with `modelspec.`, `attribute:` or
///   `safetensors_bridge.`.
///
/// [`DuplicateTensor`](crate::ErrorKind::DuplicateTensor);
/// [`ReservedName`](crate::ErrorKind::ReservedName).
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct Tied {
    pub(super) prefer: BTreeSet<String>,
    pub(super) views: Views,
    /// Whether tensors without bytes are tied too, for sources that number their storages: their
    /// addresses do not differ.
    pub(super) empty: bool,
}

impl Tied {
    /// Makes the default options: the first name in sorted order is kept, and views are refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps one of these names if possible, the first in sorted order.
    pub fn prefer<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.prefer.extend(names.into_iter().map(Into::into));
        self
    }

    pub(crate) fn with_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// Sets how views are saved.
    #[doc(hidden)]
    pub fn views(mut self, views: Views) -> Self {
        self.views = views;
        self
    }
}
