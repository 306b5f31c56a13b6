//! One tensor, borrowed or owned.

pub(crate) mod boolean;
mod buf;
pub mod element;
#[cfg(feature = "std")]
#[cfg_attr(not(target_os = "linux"), path = "smallpage.rs")]
pub(crate) mod hugepage;
mod rows;
pub mod shape;
mod source;
mod storage;
mod view;
mod words;

pub(crate) use boolean::{check_bools, non_bools};
pub use buf::TensorBuf;
pub(crate) use buf::{CLEARED_BY_HAND, swap_on_big_endian};
pub(crate) use element::Element;
pub(crate) use rows::Rows;
pub(crate) use source::{Named, named};
pub use source::{PieceSink, Sink, TensorSource, write_exactly, write_in_pieces, write_native};
pub use storage::Storage;
pub use view::TensorView;
