//! Slices of tensors, as the fewest contiguous runs of bytes.
//!
//! [`TensorView::slice`](crate::TensorView::slice) slices in memory,
//! [`LazyTensor::slice`](crate::LazyTensor::slice) in a file.

mod index;
mod part;
mod rank_part;
#[cfg(feature = "std")]
pub(crate) mod read_range;
mod runs;
mod selection;
#[cfg(feature = "std")]
mod tiles;
mod view;

pub use index::{Index, IntoIndices};
pub use part::TensorPart;
pub use rank_part::RankPart;
#[cfg(feature = "std")]
pub(crate) use runs::Repeat;
pub(crate) use runs::{ByteRuns, Runs};
pub(crate) use selection::Selection;
#[cfg(feature = "std")]
pub(crate) use selection::{Positions, TakenDim};
#[cfg(feature = "std")]
pub(crate) use tiles::{BadTiles, Tile, check_tiles};
pub use view::SliceView;
