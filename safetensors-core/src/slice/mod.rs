//! Sub-tensors: what is selected, as the fewest contiguous runs of bytes.

mod index;
#[cfg(feature = "std")]
mod lazy;
mod selection;
mod shard;
mod view;

pub use index::{Index, IntoIndices};
#[cfg(feature = "std")]
pub use lazy::LazySlice;
pub use selection::Selection;
pub use shard::Shard;
pub use view::SliceView;
