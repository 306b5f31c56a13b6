//! [`Storage`]: the memory that holds a tensor's elements.

use core::ops::Range;

/// The memory that holds a tensor's elements. Comparing two shows whether tensors share memory.
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
    /// Identifies the allocation. Two tensors in a save have the same number if and only if they
    /// are in the same allocation. Usually it is the address. With several devices it must also
    /// differ between devices.
    pub id: u64,
    /// The size in bytes of the whole allocation.
    pub byte_len: u64,
    /// The bytes of the allocation from the tensor's first element to the end of its last one.
    pub range: Range<u64>,
    /// Whether the elements are in C order without gaps.
    pub contiguous: bool,
}

impl Storage {
    /// Returns the storage of a contiguous tensor that fills a whole allocation.
    pub fn whole(id: u64, byte_len: u64) -> Self {
        Self { id, byte_len, range: 0..byte_len, contiguous: true }
    }
}
