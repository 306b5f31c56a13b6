//! [`most_expanded`]: how large compressed tensors may become.

// A deflated byte becomes at most this many.
const MOST: u64 = 1032;

// A small file may have tensors of this many bytes anyway.
const ALWAYS_FINE: u64 = 64 << 20;

/// Returns the most bytes that the tensors of a file of `compressed` bytes may have, if `base`
/// bytes are known already.
#[doc(hidden)]
pub fn most_expanded(compressed: u64, base: u64) -> u64 {
    compressed.saturating_mul(MOST).saturating_add(base).max(ALWAYS_FINE)
}
