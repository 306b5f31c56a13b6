//! [`Tied`]: how tensors that share storage are saved.

use alloc::collections::BTreeSet;
use alloc::string::String;

/// What becomes of a tensor that shares storage with another, or fills only a part of its storage,
/// without being the same tensor: a slice, a transposed view, a reinterpretation as another dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Views {
    /// It is an error: the file could not give it back as it was.
    #[default]
    Refuse,
    /// If it overlaps a tensor that fills the whole storage it is dropped, and recorded like a
    /// tensor that is the same, as `safetensors.torch.save_model` does; if none fills it, it is an
    /// error. The file does not say which part it was: only a program that ties the tensors again
    /// by itself gets it back, and here its name gives the whole tensor.
    Drop,
    /// It is saved as a tensor of its own. Nothing is lost; the file has the shared bytes more than
    /// once.
    Save,
}

/// How tensors that share storage are saved: once, under one of their names.
///
/// Of the names whose tensor fills the whole storage, the first in sorted order is kept, unless
/// [`prefer`](Tied::prefer) or [`discard`](Tied::discard) say otherwise. Each of the other names
/// goes into the metadata, with the kept one as its value. The keys `format`, `modelspec.*` and
/// `safetensors_bridge.*` mean something else there: a tensor of such a name has to be the one that
/// is kept. This is what `safetensors.torch.save_model` does, and [`Checkpoint`](crate::Checkpoint)
/// finds the tensor under all of its names again.
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
/// Tensors share if they lie in one allocation and overlap there; merely lying in one allocation
/// ties nothing. Tensors whose [`storage`](crate::TensorSource::storage) is not known, and those
/// without bytes, share with none.
///
/// # Errors of saving
///
/// [`NotCovered`](crate::ErrorKind::NotCovered) if no tensor of a group fills the whole storage,
/// also of a group of one, unless views are to be saved.
/// [`PartlyTied`](crate::ErrorKind::PartlyTied) if a tensor would be dropped that is not the same
/// as the kept one, unless that is asked for.
/// [`DuplicateTensor`](crate::ErrorKind::DuplicateTensor);
/// [`ReservedName`](crate::ErrorKind::ReservedName); [`TieReserved`](crate::ErrorKind::TieReserved)
/// and [`TieNotRecorded`](crate::ErrorKind::TieNotRecorded) if a dropped name cannot be recorded;
/// those of [`shape::byte_len`](crate::shape::byte_len).
#[derive(Clone, Debug, Default)]
pub struct Tied {
    pub(super) prefer: BTreeSet<String>,
    pub(super) discard: BTreeSet<String>,
    pub(super) views: Views,
    /// Whether tensors without bytes are tied too, for sources that number their storages: an
    /// address says nothing of them.
    pub(super) empty: bool,
}

impl Tied {
    /// The first name in sorted order is kept; views are refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps one of these names where it can be kept, the first of several.
    #[must_use]
    pub fn prefer<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.prefer.extend(names.into_iter().map(Into::into));
        self
    }

    /// Keeps none of these names where another can be kept. [`prefer`](Tied::prefer) goes before
    /// it.
    #[must_use]
    pub fn discard<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.discard.extend(names.into_iter().map(Into::into));
        self
    }

    /// Ties tensors without bytes too.
    #[cfg(feature = "std")]
    pub(crate) fn with_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// Says what becomes of tensors that share storage, or fill only a part of theirs, without
    /// being the same tensor.
    #[must_use]
    pub fn views(mut self, views: Views) -> Self {
        self.views = views;
        self
    }
}
