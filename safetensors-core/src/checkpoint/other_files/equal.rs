//! [`Equal`]: compares written bytes with a file.

use std::io::{self, Write};

use crate::file::io::{FileSource, ReadAt};

pub(super) struct Equal<'f> {
    there: &'f FileSource,
    position: u64,
}

impl<'f> Equal<'f> {
    pub(super) fn new(there: &'f FileSource) -> Self {
        Self { there, position: 0 }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.position == self.there.byte_len()
    }
}

impl Write for Equal<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut there = vec![0; bytes.len()];
        self.there.read_exact_at(&mut there, self.position)?;
        if there != bytes {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
