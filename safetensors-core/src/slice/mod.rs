//! Slices of tensors, as the fewest contiguous runs of bytes.
//!
//! [`TensorView::slice`](crate::TensorView::slice) slices a tensor in memory.
//! [`LazyTensor::slice`](crate::LazyTensor::slice) slices a tensor in a file.

mod index;
mod part;
mod rank_part;
mod runs;
#[allow(unreachable_pub, reason = "only the fuzz targets reach it")]
mod selection;
mod view;

pub use index::{Index, IntoIndices};
pub use part::TensorPart;
pub use rank_part::RankPart;
#[cfg(feature = "std")]
pub(crate) use runs::Runs;
#[cfg(not(feature = "__failpoints"))]
pub(crate) use selection::Selection;
#[cfg(feature = "__failpoints")]
#[doc(hidden)]
pub use selection::Selection;
pub use view::SliceView;
#[cfg(feature = "std")]
pub(crate) use view::narrow;
