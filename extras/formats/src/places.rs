//! Writes tensors to their places in a file, several at once.

use std::ops::Range;

use safetensors_core::framework::in_parallel;
use safetensors_core::save::{AtomicFile, Sink};

use crate::error::Result;

/// The most bytes between a tensor and the next one.
const MOST_PADDING: usize = 256;

/// Writes each tensor by `write` to the beginning of its range, and zeros to the rest of it, which
/// is shorter than [`MOST_PADDING`]. `written` gets the number of bytes of each piece of a tensor.
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
