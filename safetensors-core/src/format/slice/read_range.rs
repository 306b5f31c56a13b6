//! [`ReadRange`]: a place to read, and memory for it.

use std::io;

/// A buffer, and the offset of the bytes to read into it.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// The offset from the start of the source.
    pub offset: u64,
    /// The buffer, to be filled.
    pub bytes: &'a mut [u8],
}

pub(crate) trait Files {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()>;
}

impl<F: Fn(usize, &mut [ReadRange<'_>]) -> io::Result<()>> Files for F {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self(file, ranges)
    }
}
