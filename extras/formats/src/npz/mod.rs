//! NumPy's `.npz` archives: zip archives of [`.npy`](crate::npy) files.
//!
//! [`Archive`] reads, [`Writer`] writes. A member is named after its array, with `.npy`.

mod file;
mod read;
mod write;

pub(crate) use file::open_file;
pub use read::Archive;
pub use write::{Compression, Writer};
