//! [`Limits`]: bounds on the memory that a hostile file can make a reader use.

/// Bounds on reading a file before its arrays.
///
/// A small file can claim much, and name the same things again and again. The memory to open it is
/// in proportion to its length, and so is the number of steps. The files of a directory or an index
/// count together. These limits bound large files. The data is read in pieces.
///
/// ```
/// use safetensors_formats::{ErrorKind, Limits, npy};
///
/// let mut limits = Limits::default();
/// limits.header_bytes = 1024;
/// let file = [&b"\x93NUMPY\x01\x00"[..], &5000_u16.to_le_bytes(), &[b' '; 5000]].concat();
/// let error = npy::Array::from_source(file, "a.npy", &limits).unwrap_err();
/// assert!(matches!(error.other(), Some(ErrorKind::HeaderTooLong { limit: 1024, found: 5000 })));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The longest header of an array in bytes; 1 MiB by default. NumPy's own limit is 10,000
    /// characters.
    pub header_bytes: u64,
    /// The most members of an archive; 500,000 by default. It also limits the tensors of a GGUF
    /// file, and its keys.
    pub members: usize,
    /// The most bytes that are read to list the members of an archive; 64 MiB by default, enough
    /// for half a million names of usual length.
    ///
    /// It also limits the pickle of a file of PyTorch, the header of a GGUF file, and an index.
    /// Everything that is kept to open a file, such as names, takes up to 32 times this. Opening
    /// takes up to twice this number of steps, such as one for each value that is looked at.
    pub directory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { header_bytes: 1 << 20, members: 500_000, directory_bytes: 64 << 20 }
    }
}
