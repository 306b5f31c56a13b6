//! [`Counted`]: the bytes of a header or a pickle, in order, counted and limited.

use std::io::{self, Read};

use crate::error::{Error, ErrorKind, Result};

pub(crate) struct Counted<R> {
    pub(crate) inner: R,
    pub(crate) at: u64,
    pub(crate) allowed: u64,
    limit: u64,
    pub(crate) wording: Wording,
}

#[derive(Clone, Copy)]
pub(crate) struct Wording {
    pub(crate) kind: fn(u64, String) -> ErrorKind,
    pub(crate) ended: &'static str,
}

impl<R: Read> Counted<R> {
    pub(crate) fn limited(inner: R, limit: u64, wording: Wording) -> Self {
        Self { inner, at: 0, allowed: limit, limit, wording }
    }

    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    pub(crate) fn count(&mut self, bytes: u64) -> Result<()> {
        self.at = self.at.saturating_add(bytes);
        let left = self.allowed.checked_sub(bytes);
        self.allowed = left.ok_or(ErrorKind::DirectoryTooLong { limit: self.limit })?;
        Ok(())
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.count(N as u64)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.problem(self.wording.ended),
            _ => error.into(),
        })?;
        Ok(bytes)
    }

    /// Memory grows with present bytes, not with `len`.
    pub(crate) fn text(&mut self, len: u64) -> Result<String> {
        self.count(len)?;
        let mut bytes = Vec::new();
        self.inner.by_ref().take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return Err(self.problem(self.wording.ended));
        }
        String::from_utf8(bytes).map_err(|_| self.problem("a text is not UTF-8"))
    }

    pub(crate) fn problem(&self, problem: impl Into<String>) -> Error {
        (self.wording.kind)(self.at, problem.into()).into()
    }
}
