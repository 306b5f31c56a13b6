//! Slices of tensors, as the fewest contiguous runs of bytes.
//!
//! [`TensorView::slice`](crate::TensorView::slice) slices a tensor in memory.
//! [`LazyTensor::slice`](crate::LazyTensor::slice) slices a tensor in a file.
//!
//! `index.rs` and `part.rs` describe a part, `rank_part.rs` the part for one rank. `selection.rs`
//! checks it against a shape, `runs.rs` finds its bytes, and `tiles.rs` joins pieces to a tensor.

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
pub(crate) use tiles::{BadTiles, Tile, Tiles};
pub use view::SliceView;
