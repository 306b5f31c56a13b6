//! [`Reader`]: the numbers and texts of a header, counted and limited.

use std::io::{self, BufReader, Read};

use safetensors_core::ReadAt;

use crate::error::{Error, ErrorKind, Result};
use crate::input::Cursor;

/// The bytes of one call to a source whose calls wait.
const FAR: usize = 1 << 20;

/// Reads a header front to back.
pub(super) struct Reader<S: ReadAt> {
    inner: BufReader<Cursor<S>>,
    at: u64,
    limit: u64,
}

impl<S: ReadAt> Reader<S> {
    pub(super) fn new(cursor: Cursor<S>, limit: u64) -> Self {
        let inner = match cursor.input.source.requests() {
            None => BufReader::new(cursor),
            Some(_) => BufReader::with_capacity(FAR, cursor),
        };
        Self { inner, at: 0, limit }
    }

    /// The number of bytes that are read.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.count(N as u64)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|error| self.ended(error))?;
        Ok(bytes)
    }

    /// A text whose length comes first. Memory grows with what is there, not with that length.
    pub(super) fn text(&mut self) -> Result<String> {
        let len = self.u64()?;
        self.count(len)?;
        let mut bytes = Vec::new();
        self.inner.by_ref().take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return Err(self.ended(io::ErrorKind::UnexpectedEof.into()));
        }
        String::from_utf8(bytes).map_err(|_| self.problem("a text is not UTF-8"))
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.at = self.at.saturating_add(bytes);
        if self.at <= self.limit {
            Ok(())
        } else {
            Err(ErrorKind::DirectoryTooLong { limit: self.limit }.into())
        }
    }

    fn ended(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.problem("the file ends inside the header"),
            _ => error.into(),
        }
    }

    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadGguf { offset: self.at, problem: problem.into() }.into()
    }
}
