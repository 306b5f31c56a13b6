//! [`jobs`] plans a load as [`Job`]s for threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::slice::from_ref;

use crate::file::io::{ReadAt, ReadRange};
use crate::file::load::TensorPlace;
use crate::file::load::fused::{ReadConversion, ReadScratch};
use crate::file::load::size::{JOB, SMALL, STRIDED};
use crate::file::load::slice::{FileRuns, read_runs};
use crate::file::load::tensor_read::{Reserved, TensorRead};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::slice::ByteRuns;
use crate::format::tensor::TensorBuf;

/// The jobs of a load fill disjoint memory, so they can run in any order.
pub(super) enum Job<'t, 'b> {
    /// Contiguous parts in one file, by offset. One call reads them into place.
    Plain(Vec<ReadPart<'t, 'b>>),
    /// A contiguous part, converted in [`Scratch`].
    Converted(ReadPart<'t, 'b>, ReadConversion<'t>),
    /// Bytes with gaps: runs and the part's offset count from the tensor's first byte. The number
    /// is the largest gap to read over.
    Strided(ReadPart<'t, 'b>, ByteRuns, u64, Option<ReadConversion<'t>>),
}

/// A thread's buffers, at most a few MiB.
#[derive(Default)]
pub(super) struct Scratch {
    converted: ReadScratch,
    gathered: Vec<u8>,
}

// Small, because there may be millions.
pub(super) struct ReadPart<'t, 'b> {
    tensor: &'t TensorPlace<'t>,
    offset: u64,
    /// In the tensor or slice, for errors.
    first: u64,
    place: ReadMemory<'b>,
}

enum ReadMemory<'b> {
    /// The buffer of a small tensor. The reading thread touches it first, so threads share the page
    /// faults.
    Whole(&'b mut TensorBuf),
    /// A part of a large tensor.
    Piece(&'b mut [u8]),
}

impl ReadMemory<'_> {
    fn byte_len(&self) -> usize {
        match self {
            Self::Whole(buf) => buf.byte_len(),
            Self::Piece(bytes) => bytes.len(),
        }
    }

    fn room(&self) -> Range<*const u8> {
        match self {
            Self::Whole(buf) => buf.room(),
            Self::Piece(bytes) => bytes.as_ptr_range(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Whole(buf) => buf.bytes_mut(),
            Self::Piece(bytes) => bytes,
        }
    }
}

/// Plans the jobs that fill these buffers.
///
/// - **Small** (at most [`SMALL`] bytes in memory): one part, which [`gather`] joins with its
///   neighbours, because a small read mostly costs the call. One that is converted or has gaps is a
///   job of its own.
/// - **Large and contiguous**: pieces, so that threads share a tensor. They end at multiples of
///   [`JOB`] in the file, or have this length if they are converted. A source with calls that wait
///   sets their [length](ReadAt::requests).
/// - **Large with gaps**, such as columns: [`Job::Strided`] of at most [`STRIDED`] bytes of the
///   file, which bounds the scratch memory. One long run is planned as if contiguous.
pub(super) fn jobs<'t, 'b>(
    wanted: &'t [TensorRead<'t>],
    bufs: &'b mut [Reserved<'t>],
) -> Vec<Job<'t, 'b>> {
    let mut planner = Planner { jobs: Vec::new(), small: Vec::new() };
    for (wanted, (buf, conversion)) in wanted.iter().zip(bufs) {
        match buf.byte_len() {
            0 => {}
            len if len <= SMALL => planner.small(wanted, buf, *conversion),
            _ => planner.large(wanted, buf, *conversion),
        }
    }
    let Planner { mut jobs, small } = planner;
    gather(small, &mut jobs);
    jobs
}

struct Planner<'t, 'b> {
    jobs: Vec<Job<'t, 'b>>,
    small: Vec<ReadPart<'t, 'b>>,
}

impl<'t, 'b> Planner<'t, 'b> {
    fn small(
        &mut self,
        wanted: &'t TensorRead<'t>,
        buf: &'b mut TensorBuf,
        conversion: Option<ReadConversion<'t>>,
    ) {
        let tensor = &wanted.tensor;
        let start = wanted.runs.contiguous();
        // Runs count from the tensor's first byte.
        let offset = tensor.offset + start.unwrap_or(0);
        // Rows that are wanted several times are read once, to the front of the buffer.
        let file_bits = tensor.dtype().bits();
        let memory_bits = buf.dtype().bits();
        let len = wanted.runs.byte_len() * u64::from(memory_bits) / u64::from(file_bits);
        let place = match buf.byte_len() as u64 {
            all if len < all => ReadMemory::Piece(&mut buf.bytes_mut()[..len as usize]),
            _ => ReadMemory::Whole(buf),
        };
        let part = ReadPart { tensor, offset, first: 0, place };
        match (start, conversion) {
            (Some(_), None) => self.small.push(part),
            // Not joined with others: each goes through the scratch buffer, regardless of its
            // neighbours.
            (Some(_), Some(conversion)) => self.jobs.push(Job::Converted(part, conversion)),
            (None, conversion) => {
                let runs = wanted.runs.clone().into_owned();
                self.jobs.push(Job::Strided(part, runs, wanted.gap, conversion));
            }
        }
    }

    // Offsets count bytes of the file, lengths of `bytes` count bytes of the buffer. So `n` bytes
    // of the file are `n * memory_bits / file_bits` bytes of the buffer, and `n * 8 / file_bits`
    // elements. The divisions are exact: a run holds whole elements, and a converted element has 1,
    // 2, 4 or 8 bytes. Without a conversion the widths are equal, and nothing uses `first`, because
    // a piece may end within an element.
    fn large(
        &mut self,
        wanted: &'t TensorRead<'t>,
        buf: &'b mut TensorBuf,
        conversion: Option<ReadConversion<'t>>,
    ) {
        let tensor = &wanted.tensor;
        let base = tensor.offset;
        let longest = longest(tensor.source);
        let file_bits = u64::from(tensor.dtype().bits());
        let memory_bits = u64::from(buf.dtype().bits());
        // The page cache has large pages. Where a read ends within one, `drop_page_cache` drops all
        // of it, and the next read brings it back.
        let ends_at_multiples = conversion.is_none() && tensor.source.requests().is_none();
        let part = |offset, first, bytes: &'b mut [u8]| ReadPart {
            tensor,
            offset,
            first,
            place: ReadMemory::Piece(bytes),
        };
        // The parts of the split come in order and fill the buffer one after another. `rest` is the
        // buffer that is not yet assigned, `first` the index of the next element.
        let mut rest = buf.bytes_mut();
        let mut first = 0;
        for runs in wanted.runs.split(STRIDED) {
            let mut bytes;
            (bytes, rest) = rest.split_at_mut((runs.byte_len() * memory_bits / file_bits) as usize);
            let next = first + runs.byte_len() * 8 / file_bits;
            // Gaps of a wide matrix may leave whole rows, which need no gathering.
            let Some(start) = runs.contiguous() else {
                let part = part(base, first, bytes);
                self.jobs.push(Job::Strided(part, runs, wanted.gap, conversion));
                first = next;
                continue;
            };
            let mut offset = base + start;
            let mut len = match ends_at_multiples {
                true => longest - (offset % longest as u64) as usize,
                false => longest,
            };
            while !bytes.is_empty() {
                let piece;
                (piece, bytes) = bytes.split_at_mut(len.min(bytes.len()));
                let file_len = piece.len() as u64 * file_bits / memory_bits;
                let part = part(offset, first, piece);
                self.jobs.push(match conversion {
                    Some(conversion) => Job::Converted(part, conversion),
                    None => Job::Plain(vec![part]),
                });
                offset += file_len;
                first += file_len * 8 / file_bits;
                len = longest;
            }
            first = next;
        }
    }
}

/// Returns the most bytes in memory of a contiguous job.
fn longest(source: &dyn ReadAt) -> usize {
    source.requests().map_or(JOB, |requests| requests.byte_len)
}

/// Whether the source joins ranges with gaps between them as it sees fit.
fn joins_gaps(source: &dyn ReadAt) -> bool {
    source.requests().is_some_and(|requests| requests.joins_gaps)
}

/// Joins small neighbours of a file up to about a piece of a large tensor, for one system call. A
/// source that joins gaps gets parts with gaps, too.
// Files stay in the caller's order, because ranks that read at the same time begin with different
// files.
fn gather<'t, 'b>(mut small: Vec<ReadPart<'t, 'b>>, jobs: &mut Vec<Job<'t, 'b>>) {
    let source = |part: &ReadPart<'t, 'b>| std::ptr::from_ref(part.tensor.source).cast::<()>();
    // Compared and not hashed, because most tensors are in few files.
    let mut files = BTreeMap::new();
    for part in &small {
        let next = files.len();
        files.entry(source(part)).or_insert(next);
    }
    small.sort_by_cached_key(|part| (files.get(&source(part)).copied(), part.offset));
    let mut together: Vec<ReadPart<'t, 'b>> = Vec::new();
    let mut len = 0;
    for part in small {
        let follows = together.last().is_some_and(|last| {
            let is_neighbour = last.offset + last.place.byte_len() as u64 == part.offset;
            source(last) == source(&part)
                && (is_neighbour || joins_gaps(part.tensor.source))
                && len < longest(part.tensor.source)
        });
        if !follows && !together.is_empty() {
            jobs.push(Job::Plain(std::mem::take(&mut together)));
            len = 0;
        }
        // The limit is looked at before a part is added, so a job is longer by one small part at
        // most.
        len += part.place.byte_len();
        together.push(part);
    }
    if !together.is_empty() {
        jobs.push(Job::Plain(together));
    }
}

impl<'t> Job<'t, '_> {
    pub(super) fn tensor(&self) -> &'t TensorPlace<'t> {
        self.parts()[0].tensor
    }

    fn parts(&self) -> &[ReadPart<'t, '_>] {
        match self {
            Self::Plain(parts) => parts,
            Self::Converted(part, _) | Self::Strided(part, ..) => from_ref(part),
        }
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.parts().iter().map(|part| part.place.byte_len() as u64).sum()
    }

    /// Returns the addresses to fill.
    pub(super) fn rooms(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.parts().iter().map(|part| part.place.room())
    }

    pub(super) fn read(self, scratch: &mut Scratch) -> Result<()> {
        match self {
            Self::Plain(mut parts) => {
                let source = parts[0].tensor.source;
                let ranges = parts
                    .iter_mut()
                    .map(|part| ReadRange { offset: part.offset, bytes: part.place.bytes_mut() });
                let joint = match source.read_ranges_at(&mut ranges.collect::<Vec<_>>()) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                };
                if joins_gaps(source) {
                    // It has tried again already, and each further call would wait as long.
                    let error = Error::from(ErrorKind::Io(joint));
                    return Err(match (&parts[..], parts[0].tensor.file) {
                        ([part], _) => part.tensor.locate(error),
                        (_, Some(file)) => error.in_path(file),
                        _ => error,
                    });
                }
                // The joint read failed. Read the parts one by one, so that the error names the
                // right tensor.
                parts.iter_mut().try_for_each(|part| {
                    let read = source.read_exact_at(part.place.bytes_mut(), part.offset);
                    read.map_err(|error| part.tensor.locate(ErrorKind::Io(error).into()))
                })
            }
            Self::Converted(ReadPart { tensor, offset, first, mut place }, conversion) => {
                let source = tensor.source;
                let out = place.bytes_mut();
                let scratch = &mut scratch.converted;
                let read = scratch.read_converted(source, offset, &conversion, first, out);
                read.map_err(|error| tensor.locate(error))
            }
            Self::Strided(ReadPart { tensor, offset, first, mut place }, runs, gap, conversion) => {
                let source = tensor.source;
                let out = place.bytes_mut();
                let Scratch { converted, gathered } = scratch;
                let runs = FileRuns { base: offset, runs: &runs, gap };
                let mut read = |bytes: &mut [u8]| Ok(read_runs(source, &runs, bytes, gathered)?);
                let read = match conversion {
                    None => read(out),
                    Some(conversion) => converted.convert_read(&conversion, first, out, &mut read),
                };
                read.map_err(|error| tensor.locate(error))
            }
        }
    }
}
