//! NumPy's files: `.npy` holds one array, `.npz` is a zip archive of such files.
//!
//! | file | what it knows |
//! |---|---|
//! | `header` | the header of an array, and which dtypes NumPy has |
//! | `read` | arrays as tensors, read when they are written elsewhere |
//! | `write` | tensors as arrays |

mod header;
mod read;
mod write;

pub(crate) use read::Arrays;
pub(crate) use write::{copy, header_of, write_npy, write_npz};

/// What to do with a tensor of a dtype that NumPy does not have, while converting.
pub(crate) const CONVERT: &str = "add --dtype f32";
