//! [`GgufReader`]: the numbers and texts of a header.

use std::io::BufReader;

use crate::counted::{Counted, Wording};
use crate::error::{ErrorKind, Result};
use crate::input::Cursor;

const FAR: usize = 1 << 20;

const WORDING: Wording = Wording {
    kind: |offset, problem| ErrorKind::BadGguf { offset, problem },
    ended: "the file ends inside the header",
};

pub(super) type GgufReader = Counted<BufReader<Cursor<'static>>>;

impl GgufReader {
    pub(super) fn new(cursor: Cursor<'static>, limit: u64) -> Self {
        let inner = match cursor.input.source.requests() {
            None => BufReader::new(cursor),
            Some(_) => BufReader::with_capacity(FAR, cursor),
        };
        Self::limited(inner, limit, WORDING)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn name(&mut self) -> Result<String> {
        let len = self.u64()?;
        self.text(len)
    }
}
