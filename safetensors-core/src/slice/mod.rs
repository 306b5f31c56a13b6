//! Sub-tensors: what is selected, as the fewest contiguous runs of bytes.

mod index;
mod rank_part;
mod runs;
mod selection;
mod view;

pub use index::{Index, IntoIndices};
pub use rank_part::RankPart;
#[cfg(feature = "std")]
pub(crate) use runs::Runs;
pub use selection::Selection;
pub use view::SliceView;
#[cfg(feature = "std")]
pub(crate) use view::narrow;
