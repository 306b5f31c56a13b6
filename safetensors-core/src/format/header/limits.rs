//! [`Limits`]: bounds on headers and indexes.

use crate::format::error::ErrorKind;

/// Bounds on a header and an index, checked before memory is allocated.
///
/// | limit | default |
/// |---|---|
/// | [`header_bytes`](Limits::header_bytes) | 100,000,000 |
/// | [`tensors`](Limits::tensors) | 4,294,967,295 |
/// | [`ndim`](Limits::ndim) | 1,024 |
/// | [`metadata_entries`](Limits::metadata_entries) | 100,000 |
/// | [`index_bytes`](Limits::index_bytes) | 100,000,000 |
/// | [`index_entries`](Limits::index_entries) | 1,000,000 |
///
/// Saving keeps to the defaults, so that every saved file can be read.
///
/// ```
/// use safetensors_core::{ErrorKind, Limits, header::Header};
///
/// let mut limits = Limits::default();
/// limits.header_bytes = 1024;
/// let file = [&5000_u64.to_le_bytes()[..], &[b' '; 5000]].concat();
/// let error = Header::parse(&file, &limits).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::HeaderTooLarge { limit: 1024, found: 5000 }));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The longest header in bytes, by default as in the reference implementation. A header of 2³²
    /// bytes or more is always refused.
    pub header_bytes: u64,
    /// The most tensors in one file.
    pub tensors: usize,
    /// The most dimensions of a tensor.
    pub ndim: usize,
    /// The most entries in a file's `__metadata__`.
    pub metadata_entries: usize,
    /// The longest index file in bytes.
    pub index_bytes: u64,
    /// The most tensors of an index, and the most entries of its `metadata`.
    pub index_entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 100_000_000,
            tensors: u32::MAX as usize,
            ndim: 1_024,
            metadata_entries: 100_000,
            index_bytes: 100_000_000,
            index_entries: 1_000_000,
        }
    }
}

impl Limits {
    pub(crate) fn of_all_files(&self) -> Self {
        Self { header_bytes: u32::MAX.into(), metadata_entries: usize::MAX, ..self.clone() }
    }

    pub(crate) fn check_ndim(&self, ndim: usize) -> Result<(), ErrorKind> {
        let limit = self.ndim;
        if ndim > limit { Err(ErrorKind::TooManyDimensions { limit }) } else { Ok(()) }
    }
}
