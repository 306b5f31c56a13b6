//! One tensor: its dtype, its shape and its bytes, borrowed or owned.

pub(crate) mod boolean;
mod buf;
pub mod element;
#[cfg(feature = "std")]
pub(crate) mod hugepage;
#[cfg_attr(not(feature = "std"), expect(dead_code, reason = "only files have lazy tensors"))]
mod rows;
pub mod shape;
mod source;
mod storage;
mod view;
mod words;

pub(crate) use boolean::check_bools;
#[cfg(feature = "std")]
pub(crate) use boolean::non_bools;
#[cfg(feature = "std")]
pub(crate) use buf::CLEARED_BY_HAND;
pub use buf::TensorBuf;
pub(crate) use buf::swap_on_big_endian;
pub(crate) use element::Element;
#[cfg(feature = "std")]
pub(crate) use rows::Rows;
pub use source::{PieceSink, Sink, TensorSource, write_exactly, write_in_pieces, write_native};
pub use storage::Storage;
pub use view::TensorView;
