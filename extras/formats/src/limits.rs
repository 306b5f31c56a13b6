//! [`Limits`]: bounds on a reader's memory.

/// Bounds on reading a file before its arrays.
///
/// The memory and the steps to open a file are in proportion to its length, or for a directory or
/// index to all files. These limits bound large files. Data is read in pieces.
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
    /// Bytes of an array's header; 1 MiB by default. NumPy's own limit is 10,000 characters.
    pub header_bytes: u64,
    /// Members of an archive, and tensors and keys of a GGUF file; 500,000 by default.
    pub members: usize,
    /// Bytes of an archive's list of members, a PyTorch pickle, a GGUF header, or an index; 64 MiB
    /// by default, enough for half a million members.
    ///
    /// Everything kept to open a file, such as names, takes up to 32 times this, and opening up to
    /// twice this number of steps, such as one for each value.
    pub directory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { header_bytes: 1 << 20, members: 500_000, directory_bytes: 64 << 20 }
    }
}
