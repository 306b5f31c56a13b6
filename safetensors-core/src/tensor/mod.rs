//! One tensor: its elements, its shape, and the bytes that it borrows or owns.

mod buf;
pub mod element;
#[cfg(feature = "std")]
pub(crate) mod hugepage;
pub mod shape;
mod source;
mod storage;
mod view;
mod words;

pub use buf::TensorBuf;
pub(crate) use buf::swap_on_big_endian;
pub(crate) use element::Element;
pub(crate) use source::write_exactly;
pub use source::{Sink, TensorSource, write_native};
pub use storage::Storage;
pub use view::TensorView;
