//! [`Storage`]: the memory that holds a tensor's elements.

use core::ops::Range;

/// The memory of a tensor's elements.
///
/// ```
/// use safetensors_core::TensorSource;
/// use safetensors_core::{TensorView, tied::Storage};
///
/// let embedding = TensorView::from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
/// let head = embedding;
/// assert_eq!(embedding.storage(), head.storage());
/// assert_eq!(Storage::whole(7, 16).range, 0..16);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Identifies the allocation in a save, usually by its address. Devices must not share numbers.
    pub id: u64,
    /// The size of the allocation in bytes.
    pub byte_len: u64,
    /// The bytes from the first element to the end of the last one.
    pub range: Range<u64>,
    /// Whether the elements are in C order without gaps.
    pub contiguous: bool,
}

impl Storage {
    /// Returns the storage of a contiguous tensor that fills its allocation.
    pub fn whole(id: u64, byte_len: u64) -> Self {
        Self { id, byte_len, range: 0..byte_len, contiguous: true }
    }
}
