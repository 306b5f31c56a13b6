//! Writes tensors to their places in a file, several at once.

use std::ops::Range;

use safetensors_core::framework::in_parallel;
use safetensors_core::save::{AtomicFile, Sink};

use crate::error::Result;

const MOST_PADDING: usize = 256;

/// Pads each tensor with zeros, less than [`MOST_PADDING`]. `written` gets the bytes of each piece.
pub(crate) fn write_placed<T>(
    file: &AtomicFile,
    tensors: impl ExactSizeIterator<Item = (T, Range<u64>)> + Send,
    written: impl Fn(u64) + Sync,
    write: impl Fn(T, &mut Sink<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let work = |(tensor, range): (T, Range<u64>), (): &mut ()| {
        let mut at = range.start;
        write(tensor, &mut |bytes| {
            file.write_all_at(bytes, at)?;
            at += bytes.len() as u64;
            written(bytes.len() as u64);
            Ok(())
        })?;
        let rest = range.end.saturating_sub(at).min(MOST_PADDING as u64) as usize;
        file.write_all_at(&[0; MOST_PADDING][..rest], at)
    };
    in_parallel(tensors, 0, work)?;
    Ok(())
}
