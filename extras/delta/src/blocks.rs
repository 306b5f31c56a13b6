//! [`Blocks`]: the bytes of a stored tensor, read block by block.

use safetensors_core::{ErrorKind, LazyTensor, ReadAt};

use crate::error::Result;

/// Bytes of a block if the source's calls wait.
const MOST: usize = 1 << 20;

pub(crate) struct Blocks<'a, S> {
    tensor: LazyTensor<'a, S>,
    block: usize,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a, S: ReadAt> Blocks<'a, S> {
    /// Blocks have `block` bytes, or more if the source's calls wait.
    pub(crate) fn new(tensor: LazyTensor<'a, S>, block: usize) -> Self {
        let requests = tensor.source().requests();
        let block = requests.map_or(block, |requests| requests.byte_len.clamp(block, MOST));
        Self { tensor, block, buffer: Vec::new(), start: 0 }
    }

    pub(crate) fn tensor(&self) -> &LazyTensor<'a, S> {
        &self.tensor
    }

    /// Returns at least one byte, unless the tensor ends there.
    pub(crate) fn at(&mut self, offset: u64) -> Result<&[u8]> {
        let held = self.start..self.start + self.buffer.len() as u64;
        if !held.contains(&offset) {
            let left = self.tensor.byte_len().saturating_sub(offset);
            let len = left.min(self.block as u64) as usize;
            self.buffer.resize(len, 0);
            self.start = offset;
            let at = self.tensor.file_offset() + offset;
            let read = self.tensor.source().read_exact_at(&mut self.buffer, at);
            read.map_err(|error| self.tensor.locate(ErrorKind::Io(error).into()))?;
        }
        Ok(&self.buffer[(offset - self.start) as usize..])
    }

    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let unchanged = self.tensor.source().check_unchanged();
        unchanged.map_err(|error| self.tensor.locate(ErrorKind::Io(error).into()))
    }
}
