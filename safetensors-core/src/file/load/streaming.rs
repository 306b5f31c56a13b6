//! Reads a range of a file piece by piece.

use std::io;
use std::ops::Range;

use crate::file::io::ReadAt;
use crate::format::error::{Error, Result};
use crate::format::tensor::Sink;

// Enough bytes for cheap system calls, few enough for the cache.
pub(crate) const PIECE: usize = 1 << 20;

/// Bytes that a load has announced to a source, until the drop.
pub(crate) struct Announced<'s> {
    source: &'s dyn ReadAt,
    range: Range<u64>,
}

impl<'s> Announced<'s> {
    pub(crate) fn new(
        source: &'s dyn ReadAt,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
    ) -> Self {
        let mut start = u64::MAX;
        let mut end = 0;
        source.will_read(&mut ranges.inspect(|range| {
            (start, end) = (start.min(range.start), end.max(range.end));
        }));
        Self { source, range: start..end }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.source.has_read(self.range.clone());
        }
    }
}

/// Passes pieces of the source's [length](ReadAt::requests) to `take`. `failed` makes the error of
/// a failed read.
pub(crate) fn read_pieces(
    source: &dyn ReadAt,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    failed: &dyn Fn(io::Error) -> Error,
    take: &mut Sink<'_>,
) -> Result<()> {
    let piece = source.requests().map_or(PIECE, |requests| requests.byte_len);
    let _announced = Announced::new(source, &mut std::iter::once(range.clone()));
    for start in range.clone().step_by(piece) {
        let len = (range.end - start).min(piece as u64) as usize;
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let piece = &mut buffer[..len];
        source.read_exact_at(piece, start).map_err(failed)?;
        take(piece)?;
    }
    Ok(())
}
