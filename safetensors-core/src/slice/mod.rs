//! Parts of tensors: what is selected, as the fewest contiguous runs of bytes.
//!
//! [`TensorView::slice`](crate::TensorView::slice) takes a part of a tensor in memory, and
//! [`LazyTensor::slice`](crate::LazyTensor::slice) one of a tensor in a file.

mod index;
mod rank_part;
mod runs;
mod selection;
mod view;

pub use index::{Index, IntoIndices};
pub use rank_part::RankPart;
#[cfg(feature = "std")]
pub(crate) use runs::Runs;
pub(crate) use selection::Selection;
pub use view::SliceView;
#[cfg(feature = "std")]
pub(crate) use view::narrow;
