//! [`Tied`]: how tensors that share storage are saved.

use alloc::collections::BTreeSet;
use alloc::string::String;

/// How a save treats views. A view is a tensor that fills only a part of its storage, or shares
/// storage with a tensor that is not the same: a slice, a transposed tensor, a reinterpretation as
/// another dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Views {
    /// A view is an error, because it could not be restored from the file.
    #[default]
    Refuse,
    /// A view is dropped if it overlaps a tensor that fills the entire storage, as
    /// `safetensors.torch.save_model` does. Its name is recorded as an alias of that tensor. If no
    /// tensor fills the storage, it is an error.
    ///
    /// The file does not record the position of the view. Loading its name gives the entire tensor.
    /// Only a program that creates the view again can restore it.
    Drop,
    /// A view is saved as a separate tensor. Nothing is lost, but the file holds the shared bytes
    /// more than once.
    Save,
}

/// Options for saving tensors that share storage: once, under one of their names.
///
/// Of the tensors that fill the entire storage, the first name in sorted order is kept.
/// [`prefer`](Tied::prefer) changes the choice. Each dropped name becomes a metadata entry with the
/// kept name as its value. The keys `format`, `modelspec.*`, `attribute:*` and
/// `safetensors_bridge.*` have another meaning in the metadata, so such a name cannot be dropped.
///
/// `safetensors.torch.save_model` does the same. [`Checkpoint`](crate::Checkpoint) finds the tensor
/// under each of its names.
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
/// Tensors share storage if they overlap in one allocation. Tensors in one allocation that do not
/// overlap are not tied. Tensors without bytes are never tied, nor are tensors with unknown
/// [`storage`](crate::TensorSource::storage).
///
/// # Errors of saving
///
/// Of [`TieProblem`](crate::error::TieProblem):
///
/// - `NotCovered` if no tensor of a group fills the entire storage, unless [`Views::Save`] is set.
///   A group may be a single tensor.
/// - `PartlyTied` if a tensor to be dropped is not the same as the kept one, unless [`Views::Drop`]
///   is set.
/// - `NotRecorded` if the metadata has another entry under a name that is dropped, and `Reserved`
///   if that name is a key with a fixed meaning.
///
/// [`DuplicateTensor`](crate::ErrorKind::DuplicateTensor);
/// [`ReservedName`](crate::ErrorKind::ReservedName); for shapes see
/// [`shape::byte_len`](crate::shape::byte_len).
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct Tied {
    pub(super) prefer: BTreeSet<String>,
    pub(super) views: Views,
    /// Whether tensors without bytes are tied too. This suits sources that number their storages;
    /// addresses cannot distinguish tensors without bytes.
    pub(super) empty: bool,
}

impl Tied {
    /// Makes the default options: the first name in sorted order is kept, and views are refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps one of these names if possible. The first in sorted order wins.
    pub fn prefer<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.prefer.extend(names.into_iter().map(Into::into));
        self
    }

    /// Ties tensors without bytes too.
    pub(crate) fn with_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// Sets how views are saved: tensors that fill only a part of their storage, or share it with a
    /// tensor that is not the same.
    #[doc(hidden)]
    pub fn views(mut self, views: Views) -> Self {
        self.views = views;
        self
    }
}
