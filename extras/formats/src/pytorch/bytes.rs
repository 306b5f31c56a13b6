//! [`Bytes`]: the bytes of a pickle.

use std::io::{BufRead, Read};

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};

/// The bytes of a line that are read before they are counted.
const LINE: usize = 256;

/// The bytes of a pickle, counted and limited.
pub(super) struct Bytes<R> {
    inner: R,
    at: u64,
    budget: Budget,
}

impl<R: BufRead> Bytes<R> {
    pub(super) fn new(inner: R, budget: &Budget) -> Self {
        Self { inner, at: 0, budget: budget.clone() }
    }

    /// The number of bytes that are read.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.at = self.at.saturating_add(bytes);
        let limit = self.budget.limits().directory_bytes;
        if self.at <= limit { Ok(()) } else { Err(ErrorKind::DirectoryTooLong { limit }.into()) }
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.count(N as u64)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|error| self.ended(error))?;
        Ok(bytes)
    }

    /// So many bytes.
    pub(super) fn bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        self.count(len)?;
        let bytes = self.budget.read(&mut self.inner, len)?;
        if bytes.len() as u64 == len {
            Ok(bytes)
        } else {
            Err(self.problem("it ends inside a value"))
        }
    }

    /// The bytes up to a line feed.
    pub(super) fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let most = line.len().max(LINE) as u64;
            let read = self.inner.by_ref().take(most).read_until(b'\n', &mut line)?;
            self.count(read as u64)?;
            self.budget.keep(read)?;
            if line.ends_with(b"\n") || (read as u64) < most {
                break;
            }
        }
        if line.pop() != Some(b'\n') {
            return Err(self.problem("it ends inside a line"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }

    pub(super) fn text_line(&mut self) -> Result<String> {
        String::from_utf8(self.line()?).map_err(|_| self.problem("a text is not UTF-8"))
    }

    fn ended(&self, error: std::io::Error) -> Error {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.problem("it ends without its last opcode"),
            _ => error.into(),
        }
    }

    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadPickle { offset: self.at, problem: problem.into() }.into()
    }
}
