//! Where bytes are read from, and into which memory.

use std::io;

/// A buffer, and the offset of the bytes to read into it.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// The offset of the bytes from the start of the source.
    pub offset: u64,
    /// The buffer. It is filled completely.
    pub bytes: &'a mut [u8],
}

/// The bytes of the files of a checkpoint.
pub(crate) trait Files {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()>;
}
