//! Sub-tensors: what is selected, as the fewest contiguous runs of bytes.

mod index;
mod runs;
mod selection;
mod shard;
mod view;

pub use index::{Index, IntoIndices};
#[cfg(feature = "std")]
pub(crate) use runs::Runs;
pub use selection::Selection;
pub use shard::Shard;
pub use view::SliceView;
#[cfg(feature = "std")]
pub(crate) use view::narrow;
