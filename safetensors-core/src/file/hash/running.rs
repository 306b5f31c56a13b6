//! [`RunningDigest`]: the digest of a tensor that is being written.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::compute::failed;
use super::{Digest, Hasher};
use crate::file::io::ReadAt;
use crate::file::io::positional::read_exact_at;
use crate::file::load::streaming::read_pieces;
use crate::format::error::Result;

/// Hashes bytes that are written in order. After the first one out of order, bytes are read back.
#[derive(Debug, Default)]
pub(crate) struct RunningDigest {
    taken: u64,
    state: HashState,
}

#[derive(Debug, Default)]
enum HashState {
    #[default]
    Begun,
    // Boxed: a hasher is large, and only tensors that are being written need one.
    Hashing(Box<Hasher>),
    Done(Digest),
}

impl RunningDigest {
    /// Hashes bytes at `offset` if they are the next of `len`.
    pub(crate) fn take(&mut self, offset: u64, bytes: &[u8], len: u64) {
        if offset != self.taken || bytes.is_empty() {
            return;
        }
        self.taken += bytes.len() as u64;
        // A tensor that arrives in one piece needs no hasher.
        if self.taken == bytes.len() as u64 && self.taken == len {
            self.state = HashState::Done(Digest::compute(bytes));
            return;
        }
        let mut hasher = match std::mem::take(&mut self.state) {
            HashState::Hashing(hasher) => hasher,
            HashState::Begun | HashState::Done(_) => Box::default(),
        };
        hasher.update(bytes);
        self.state = if self.taken == len {
            HashState::Done(hasher.finish())
        } else {
            HashState::Hashing(hasher)
        };
    }

    /// Lets the tensor be written again.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Returns the digest of the range `place` of `file`, reading the rest back.
    pub(crate) fn finish(
        &self,
        file: &File,
        place: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<Digest> {
        let mut hasher = match &self.state {
            HashState::Done(digest) => return Ok(*digest),
            HashState::Hashing(hasher) => Hasher::clone(hasher),
            HashState::Begun => Hasher::default(),
        };
        let rest = place.start + self.taken..place.end;
        read_pieces(&Written { file, end: place.end }, rest, buffer, &failed, &mut |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    }
}

/// The file up to the end of a tensor.
struct Written<'a> {
    file: &'a File,
    end: u64,
}

impl ReadAt for Written<'_> {
    fn byte_len(&self) -> u64 {
        self.end
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        read_exact_at(self.file, buf, offset)
    }
}
