//! NumPy's `.npz` archives: zip archives of [`.npy`](crate::npy) files.
//!
//! [`Archive`] reads, [`Writer`] writes. A member has the name of its array and `.npy`. The names
//! of arrays are kept both ways.

mod file;
mod read;
mod write;

pub(crate) use file::open_file;
pub use read::Archive;
pub use write::{Compression, Writer};
