//! [`Job`]: what one thread reads at once.

use crate::convert::Conversion;
use crate::error::{ErrorKind, Result};
use crate::io::{ReadAt, ReadRange};
use crate::load::fused::{ReadScratch, convert_read, read_converted};
use crate::load::slice::read_runs;
use crate::load::{LazySlice, LazyTensor};
use crate::slice::Runs;
use crate::tensor::TensorBuf;

/// The most bytes that are read at once. Large enough to keep a disk busy, small enough to share
/// the work evenly.
const PIECE: usize = 4 << 20;

/// Tensors of at most this size are read together with their neighbours.
const SMALL: usize = 256 << 10;

/// Bytes of a slice that lie apart are read by jobs of this size: a thread may need as much again
/// to gather them.
const STRIDED: u64 = 1 << 20;

/// What is to be read: a tensor, or a part of one.
pub(super) struct Wanted<'t, 'a, S> {
    pub(super) tensor: &'t LazyTensor<'a, S>,
    pub(super) shape: &'t [usize],
    /// Where its bytes lie in the tensor.
    pub(super) runs: Runs,
    /// Runs that lie no further apart are read in one call.
    pub(super) gap: u64,
}

impl<'t, 'a, S> Wanted<'t, 'a, S> {
    /// All of a tensor.
    pub(super) fn whole(tensor: &'t LazyTensor<'a, S>) -> Self {
        Self { tensor, shape: tensor.shape(), runs: Runs::whole(tensor.byte_len()), gap: 0 }
    }

    /// A slice of a tensor.
    pub(super) fn part(slice: &'t LazySlice<'a, S>) -> Self {
        let (shape, runs, gap) = (slice.shape(), slice.runs(), slice.gap_len());
        Self { tensor: slice.tensor(), shape, runs, gap }
    }

    /// Room for it, if this conversion is on the way there.
    pub(super) fn reserve(&self, conversion: Option<Conversion>) -> Result<TensorBuf> {
        let dtype = conversion.map_or(self.tensor.dtype(), |conversion| conversion.to());
        TensorBuf::reserved(dtype, self.shape.to_vec()).map_err(|error| self.tensor.locate(error))
    }
}

/// Bytes to be read into their places.
pub(super) enum Job<'t, 'a, 'b, S> {
    /// Parts of tensors of one file, as they are in the file; in the order of their offsets.
    Plain(Vec<Part<'t, 'a, 'b, S>>),
    /// A part of one tensor that is converted.
    Converted(Part<'t, 'a, 'b, S>, Conversion),
    /// Bytes of one tensor that lie apart, and what converts them, if anything does. The part's
    /// offset is that of the tensor.
    Strided(Part<'t, 'a, 'b, S>, Runs, u64, Option<Conversion>),
}

/// What a thread needs besides the places, at most a few MiB.
#[derive(Default)]
pub(super) struct Scratch {
    converted: ReadScratch,
    gathered: Vec<u8>,
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
    wanted: &'t [Wanted<'t, 'a, S>],
    bufs: &'b mut [(TensorBuf, Option<Conversion>)],
) -> Vec<Job<'t, 'a, 'b, S>> {
    let mut jobs = Vec::new();
    let mut small = Vec::new();
    for (wanted, (buf, conversion)) in wanted.iter().zip(bufs) {
        let (tensor, conversion) = (wanted.tensor, *conversion);
        let base = tensor.file_offset();
        let len = buf.byte_len();
        if len == 0 {
            continue;
        }
        if len <= SMALL {
            let part = Part { tensor, offset: base, first: 0, place: Place::Whole(buf) };
            match (wanted.runs.contiguous(), conversion) {
                (Some(start), None) => small.push(Part { offset: base + start, ..part }),
                (Some(start), Some(conversion)) => {
                    jobs.push(Job::Converted(Part { offset: base + start, ..part }, conversion));
                }
                (None, conversion) => {
                    jobs.push(Job::Strided(part, wanted.runs.clone(), wanted.gap, conversion))
                }
            }
            continue;
        }
        // Elements of a part are whole bytes in the file, and those of 1, 2, 4 or 8 bytes after a
        // conversion.
        let (from, to) = (u64::from(tensor.dtype().bits()), u64::from(buf.dtype().bits()));
        let mut rest = buf.bytes_mut();
        let mut first = 0;
        for runs in wanted.runs.clone().split(STRIDED) {
            let bytes;
            (bytes, rest) = rest.split_at_mut((runs.byte_len() * to / from) as usize);
            let next = first + runs.byte_len() * 8 / from;
            match runs.contiguous() {
                None => {
                    let part = Part { tensor, offset: base, first, place: Place::Piece(bytes) };
                    jobs.push(Job::Strided(part, runs, wanted.gap, conversion));
                }
                Some(start) => {
                    let (elements, step) = (PIECE as u64 * 8 / to, PIECE as u64 * from / to);
                    for (number, bytes) in (0..).zip(bytes.chunks_mut(PIECE)) {
                        let (offset, first) =
                            (base + start + number * step, first + number * elements);
                        let part = Part { tensor, offset, first, place: Place::Piece(bytes) };
                        jobs.push(match conversion {
                            Some(conversion) => Job::Converted(part, conversion),
                            None => Job::Plain(vec![part]),
                        });
                    }
                }
            }
            first = next;
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
            source(last) == source(&part)
                && last.offset + last.place.byte_len() as u64 == part.offset
                && len < PIECE
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
            Self::Converted(part, _) | Self::Strided(part, ..) => part.tensor,
        }
    }

    /// The bytes that the job fills.
    pub(super) fn byte_len(&self) -> u64 {
        match self {
            Self::Plain(parts) => parts.iter().map(|part| part.place.byte_len() as u64).sum(),
            Self::Converted(part, _) | Self::Strided(part, ..) => part.place.byte_len() as u64,
        }
    }

    /// Fills the places.
    pub(super) fn read(self, scratch: &mut Scratch) -> Result<()> {
        match self {
            Self::Plain(mut parts) => {
                let source = parts[0].tensor.source();
                let ranges = parts
                    .iter_mut()
                    .map(|part| ReadRange { offset: part.offset, bytes: part.place.bytes_mut() });
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
                let (source, out) = (tensor.source(), place.bytes_mut());
                let read =
                    read_converted(source, offset, &conversion, first, out, &mut scratch.converted);
                read.map_err(|error| tensor.locate(error))
            }
            Self::Strided(Part { tensor, offset, first, mut place }, runs, gap, conversion) => {
                let (source, out) = (tensor.source(), place.bytes_mut());
                let Scratch { converted, gathered } = scratch;
                let mut read =
                    |bytes: &mut [u8]| Ok(read_runs(source, offset, &runs, gap, bytes, gathered)?);
                let read = match conversion {
                    None => read(out),
                    Some(conversion) => convert_read(&conversion, first, out, converted, read),
                };
                read.map_err(|error| tensor.locate(error))
            }
        }
    }
}
