//! [`Limits`]: bounds on the size of headers and indexes.

use crate::format::error::ErrorKind;

/// Bounds on the size of a header and an index. Each limit is checked before memory is allocated
/// for anything beyond it.
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
    /// The longest header in bytes; 100,000,000 by default, as in the reference implementation. A
    /// header longer than 2³² - 1 bytes is always refused.
    pub header_bytes: u64,
    /// The most tensors in one file; 2³² - 1 by default.
    pub tensors: usize,
    /// The most dimensions of a tensor; 1,024 by default, which is far more than any framework has.
    pub ndim: usize,
    /// The most entries in a file's `__metadata__`; 100,000 by default. Their text counts as part
    /// of the header.
    pub metadata_entries: usize,
    /// The longest index file in bytes; 100,000,000 by default.
    pub index_bytes: u64,
    /// The most tensors that an index may name, and the most entries of its `metadata`; 1,000,000
    /// by default.
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
    /// Limits for a header with the tensors of several files, which have kept to these limits.
    pub(crate) fn of_all_files(&self) -> Self {
        Self { header_bytes: u32::MAX.into(), metadata_entries: usize::MAX, ..self.clone() }
    }

    /// Refuses a tensor of too many dimensions.
    pub(crate) fn check_ndim(&self, ndim: usize) -> Result<(), ErrorKind> {
        let limit = self.ndim;
        if ndim > limit { Err(ErrorKind::TooManyDimensions { limit }) } else { Ok(()) }
    }
}
