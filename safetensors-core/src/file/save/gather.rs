//! Writes many small tensors with few system calls.
//!
//! A model can have thousands of tensors of a KiB. A system call for each takes longer than copying
//! its bytes, and threads that write to one file wait for each other at each call.

use super::StreamWriter;
use super::tensor_writer::TensorWriter;
use crate::file::io::positional::write_all_at;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorSource, write_exactly};

/// Tensors of this many bytes or more are written from where they lie.
const LARGE: u64 = 64 << 10;

/// The most bytes that are gathered for one call.
const MOST: u64 = 1 << 20;

/// Divides the tensors of a file, front to back, into runs: one large tensor, or several small ones
/// that lie side by side. Tensors are given by their positions among the declarations.
pub(super) fn runs(writer: &StreamWriter) -> Vec<&[usize]> {
    // The bytes of the run so far, without the tensor that is looked at.
    let mut bytes = 0;
    let in_one_run = |&a: &usize, &b: &usize| {
        let [a, b] = [a, b].map(|position| writer.at(position).byte_len());
        bytes += a;
        let in_one = a < LARGE && b < LARGE && bytes + b <= MOST;
        if !in_one {
            bytes = 0;
        }
        in_one
    };
    writer.order().chunk_by(in_one_run).collect()
}

/// Writes the tensors of a run. `buffer` is reused from run to run.
pub(super) fn write_run<S: TensorSource>(
    writer: &StreamWriter,
    run: &[usize],
    sources: &[S],
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let tensors = || run.iter().map(|&position| (writer.at(position), &sources[position]));
    let Some((first, source)) = tensors().next() else { return Ok(()) };
    if run.len() == 1 {
        return first.write_from(source);
    }
    buffer.clear();
    buffer.reserve_exact(tensors().map(|(tensor, _)| tensor.byte_len() as usize).sum());
    for (tensor, source) in tensors() {
        gather(&tensor, source, buffer).map_err(|error| tensor.locate(error))?;
    }
    let start = first.tensor.place.start;
    write_all_at(writer.file.file(), buffer, start)
        .map_err(|error| first.locate(ErrorKind::Io(error).into()))?;
    writer.note_written(start..start + buffer.len() as u64);
    let mut rest = &buffer[..];
    for (tensor, _) in tensors() {
        // Each tensor has given as many bytes as it has.
        let (bytes, after) = rest.split_at(tensor.byte_len() as usize);
        tensor.take_written(bytes).map_err(|error| tensor.locate(error))?;
        rest = after;
    }
    Ok(())
}

/// Appends the bytes of a tensor to the buffer.
fn gather(
    tensor: &TensorWriter<'_>,
    source: &impl TensorSource,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    tensor.check_source(source)?;
    write_exactly(source, tensor.byte_len(), &mut |bytes| {
        buffer.extend_from_slice(bytes);
        Ok(())
    })
}
