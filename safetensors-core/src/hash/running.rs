//! [`RunningDigest`]: the digest of a tensor that is just being written.

use std::ops::Range;

use super::compute::read_pieces;
use super::{Digest, Hasher};
use crate::error::Result;
use crate::io::ReadAt;

/// The digest of a tensor whose bytes come in any order. Those that come in order are taken as they
/// come; what comes before its turn is read back in the end.
#[derive(Debug, Default)]
pub(crate) struct RunningDigest {
    /// How many bytes from the beginning on have been taken.
    taken: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Begun,
    /// A hasher is large, and there may be many tensors: only those that are being written have
    /// one.
    Hashing(Box<Hasher>),
    Done(Digest),
}

impl RunningDigest {
    /// Takes bytes that have been written at `offset` of a tensor of `len` bytes.
    pub(crate) fn take(&mut self, offset: u64, bytes: &[u8], len: u64) {
        if offset != self.taken || bytes.is_empty() {
            return;
        }
        self.taken += bytes.len() as u64;
        if self.taken == bytes.len() as u64 && self.taken == len {
            self.state = State::Done(Digest::of(bytes));
            return;
        }
        let mut hasher = match std::mem::take(&mut self.state) {
            State::Hashing(hasher) => hasher,
            State::Begun | State::Done(_) => Box::default(),
        };
        hasher.update(bytes);
        self.state =
            if self.taken == len { State::Done(hasher.finish()) } else { State::Hashing(hasher) };
    }

    /// Gives up what has been taken: it will be written again.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// The digest of the whole tensor, which lies at `place` of what it was written to. What has
    /// not been taken is read through `buffer`.
    pub(crate) fn finish<S: ReadAt>(
        &self,
        source: &S,
        place: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<Digest> {
        let mut hasher = match &self.state {
            State::Done(digest) => return Ok(*digest),
            State::Hashing(hasher) => Hasher::clone(hasher),
            State::Begun => Hasher::new(),
        };
        read_pieces(source, place.start + self.taken..place.end, buffer, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    }
}
