//! [`Job`]: what one thread reads at once.

use crate::convert::{Conversion, ReadScratch, read_converted};
use crate::source::ReadRange;
use crate::{ErrorKind, LazyTensor, ReadAt, Result, TensorBuf};

/// The most bytes that are read at once. Large enough to keep a disk busy, small enough to share the work evenly.
const PIECE: usize = 4 << 20;

/// Tensors of at most this size are read together with their neighbours.
const SMALL: usize = 256 << 10;

/// Bytes to be read into their places.
pub(super) enum Job<'t, 'a, 'b, S> {
    /// Parts of tensors of one file, as they are in the file; in the order of their offsets.
    Plain(Vec<Part<'t, 'a, 'b, S>>),
    /// A part of one tensor that is converted.
    Converted(Part<'t, 'a, 'b, S>, Conversion),
}

/// A part of one tensor, and its place in memory. There may be very many, so it is small.
pub(super) struct Part<'t, 'a, 'b, S> {
    tensor: &'t LazyTensor<'a, S>,
    /// Where the part begins in the file.
    offset: u64,
    /// The index of its first element in the tensor.
    first: u64,
    place: Place<'b>,
}

/// Where a part goes.
enum Place<'b> {
    /// The whole of a small tensor: the thread that reads it is the first to touch the memory.
    Whole(&'b mut TensorBuf),
    /// A part of a large one.
    Piece(&'b mut [u8]),
}

impl Place<'_> {
    fn byte_len(&self) -> usize {
        match self {
            Self::Whole(buf) => buf.byte_len(),
            Self::Piece(bytes) => bytes.len(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Whole(buf) => buf.bytes_mut(),
            Self::Piece(bytes) => bytes,
        }
    }
}

/// The jobs that fill these buffers, each with the conversion on the way into it.
pub(super) fn jobs<'t, 'a, 'b, S>(
    tensors: &'t [LazyTensor<'a, S>],
    bufs: &'b mut [(TensorBuf, Option<Conversion>)],
) -> Vec<Job<'t, 'a, 'b, S>> {
    let mut jobs = Vec::new();
    let mut small = Vec::new();
    for (tensor, (buf, conversion)) in tensors.iter().zip(bufs) {
        let mut add = |part, is_small| match conversion {
            Some(conversion) => jobs.push(Job::Converted(part, *conversion)),
            None if is_small => small.push(part),
            None => jobs.push(Job::Plain(vec![part])),
        };
        let len = buf.byte_len();
        if len == 0 {
            continue;
        }
        if len <= SMALL {
            add(Part { tensor, offset: tensor.file_offset(), first: 0, place: Place::Whole(buf) }, true);
            continue;
        }
        // Both are whole: a part is converted to elements of 1, 2, 4 or 8 bytes, or not at all.
        let elements = PIECE as u64 * 8 / u64::from(buf.dtype().bits());
        let step = PIECE as u64 * u64::from(tensor.dtype().bits()) / u64::from(buf.dtype().bits());
        for (number, bytes) in (0..).zip(buf.bytes_mut().chunks_mut(PIECE)) {
            let (offset, first) = (tensor.file_offset() + number * step, number * elements);
            add(Part { tensor, offset, first, place: Place::Piece(bytes) }, false);
        }
    }
    gather(small, &mut jobs);
    jobs
}

/// Puts small parts that are neighbours in a file together into jobs.
fn gather<'t, 'a, 'b, S>(mut small: Vec<Part<'t, 'a, 'b, S>>, jobs: &mut Vec<Job<'t, 'a, 'b, S>>) {
    let source = |part: &Part<'t, 'a, 'b, S>| std::ptr::from_ref(part.tensor.source());
    small.sort_unstable_by_key(|part| (source(part), part.offset));
    let mut together: Vec<Part<'t, 'a, 'b, S>> = Vec::new();
    let mut len = 0;
    for part in small {
        let follows = together.last().is_some_and(|last| {
            source(last) == source(&part) && last.offset + last.place.byte_len() as u64 == part.offset && len < PIECE
        });
        if !follows && !together.is_empty() {
            jobs.push(Job::Plain(std::mem::take(&mut together)));
            len = 0;
        }
        len += part.place.byte_len();
        together.push(part);
    }
    if !together.is_empty() {
        jobs.push(Job::Plain(together));
    }
}

impl<'t, 'a, S: ReadAt> Job<'t, 'a, '_, S> {
    /// The first tensor of the job.
    pub(super) fn tensor(&self) -> &'t LazyTensor<'a, S> {
        match self {
            Self::Plain(parts) => parts[0].tensor,
            Self::Converted(part, _) => part.tensor,
        }
    }

    /// The bytes that the job fills.
    pub(super) fn byte_len(&self) -> u64 {
        match self {
            Self::Plain(parts) => parts.iter().map(|part| part.place.byte_len() as u64).sum(),
            Self::Converted(part, _) => part.place.byte_len() as u64,
        }
    }

    /// Fills the places.
    pub(super) fn read(self, scratch: &mut ReadScratch) -> Result<()> {
        match self {
            Self::Plain(mut parts) => {
                let source = parts[0].tensor.source();
                let ranges =
                    parts.iter_mut().map(|part| ReadRange { offset: part.offset, bytes: part.place.bytes_mut() });
                if source.read_ranges_at(&mut ranges.collect::<Vec<_>>()).is_ok() {
                    return Ok(());
                }
                // One by one, to find out which of the tensors it is.
                parts.iter_mut().try_for_each(|part| {
                    let read = source.read_exact_at(part.place.bytes_mut(), part.offset);
                    read.map_err(|error| part.tensor.locate(ErrorKind::Io(error).into()))
                })
            }
            Self::Converted(Part { tensor, offset, first, mut place }, conversion) => {
                let read = read_converted(tensor.source(), offset, &conversion, first, place.bytes_mut(), scratch);
                read.map_err(|error| tensor.locate(error))
            }
        }
    }
}
