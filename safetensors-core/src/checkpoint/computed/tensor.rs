//! [`ComputedTensor`]: a tensor that is computed when it is read, and the bytes that it is computed
//! from.

use std::io;
use std::ops::Range;

use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::file::io::{ReadAt, ReadRange};
use crate::format::convert::{ConvertOptions, bytes_of};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, Result};
use crate::format::slice::read_range::Files;
use crate::format::tensor::{TensorBuf, TensorView};

/// The most elements that are computed at once before they are rounded.
pub(crate) const MOST: usize = 1 << 16;

/// A tensor that is computed when it is read.
pub(crate) trait ComputedTensor: Send + Sync {
    fn name(&self) -> &str;

    /// Returns F32, or a float of whole bytes that F32 is rounded to.
    fn dtype(&self) -> Dtype;

    fn shape(&self) -> &[usize];

    /// Returns the numbers of the files that are read.
    fn files(&self) -> Vec<usize>;

    /// Computes elements as F32, from this one on in C order.
    fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()>;

    /// Announces elements that will be read soon, piece by piece. Does nothing by default.
    fn will_read(&self, elements: &[Range<u64>]) {
        let _ = elements;
    }

    /// Announces that these elements will not be read any more. Does nothing by default.
    fn has_read(&self, elements: Range<u64>) {
        let _ = elements;
    }

    /// Returns the file and the bytes that elements are computed from, if these are contiguous.
    fn source_bytes(&self, elements: Range<u64>) -> Option<(usize, Range<u64>)> {
        let _ = elements;
        None
    }
}

impl<S: ReadAt> Files for Vec<CheckpointFile<S>> {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self[file].archive.source().read_ranges_at(ranges)
    }
}

impl<S: ReadAt> Files for Checkpoint<S> {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self.files()[file].archive.source().read_ranges_at(ranges)
    }
}

/// Files, with some bytes of a file already in memory: its number, their start, and the bytes.
pub(crate) struct Ahead<'a, S> {
    files: &'a Vec<CheckpointFile<S>>,
    bytes: Option<(usize, u64, Vec<u8>)>,
}

impl<'a, S: ReadAt> Ahead<'a, S> {
    /// Reads bytes with one call, if their source has calls that wait.
    pub(crate) fn read(
        files: &'a Vec<CheckpointFile<S>>,
        bytes: Option<(usize, Range<u64>)>,
    ) -> io::Result<Self> {
        let room = bytes.and_then(|(file, range)| {
            files[file].archive.source().requests()?;
            // More than memory can hold is read where it is needed.
            let len = usize::try_from(range.end - range.start).ok()?;
            Some((file, range.start, vec![0; len]))
        });
        let mut ahead = Self { files, bytes: room };
        if let Some((file, offset, bytes)) = &mut ahead.bytes {
            files.read(*file, &mut [ReadRange { offset: *offset, bytes }])?;
        }
        Ok(ahead)
    }
}

impl<S> Ahead<'_, S> {
    /// Returns the bytes of a range, if they have been read.
    fn known(&self, file: usize, range: &ReadRange<'_>) -> Option<&[u8]> {
        let (_, start, bytes) = self.bytes.as_ref().filter(|(of, ..)| *of == file)?;
        let skipped = usize::try_from(range.offset.checked_sub(*start)?).ok()?;
        bytes.get(skipped..)?.get(..range.bytes.len())
    }
}

impl<S: ReadAt> Files for Ahead<'_, S> {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        for range in ranges {
            match self.known(file, range) {
                Some(bytes) => range.bytes.copy_from_slice(bytes),
                None => self.files.read(file, std::slice::from_mut(range))?,
            }
        }
        Ok(())
    }
}

/// Rounds numbers to a dtype, and copies their bytes in a file from the byte `skipped` on.
pub(crate) fn round(
    numbers: Vec<f32>,
    dtype: Dtype,
    skipped: usize,
    bytes: &mut [u8],
) -> Result<()> {
    let rounded = TensorBuf::from_vec(vec![numbers.len()], numbers)?
        .convert(dtype, &ConvertOptions::new())?;
    let size = bytes_of(dtype, 1);
    if cfg!(target_endian = "little") {
        bytes.copy_from_slice(&rounded.bytes()[skipped..][..bytes.len()]);
    } else {
        let in_file = rounded.bytes().chunks_exact(size).flat_map(|it| it.iter().rev());
        bytes.iter_mut().zip(in_file.skip(skipped)).for_each(|(byte, new)| *byte = *new);
    }
    Ok(())
}

/// Reads elements of a tensor in a file as F32, which must hold them.
pub(crate) fn read_numbers(
    files: &dyn Files,
    file: usize,
    offset: u64,
    dtype: Dtype,
    out: &mut [f32],
) -> io::Result<()> {
    let mut bytes = vec![0; bytes_of(dtype, out.len())];
    files.read(file, &mut [ReadRange { offset, bytes: &mut bytes }])?;
    let numbers = TensorView::new(dtype, &[out.len()], &bytes)
        .and_then(|view| view.convert(Dtype::F32, &ConvertOptions::new()))
        .and_then(TensorBuf::into_vec::<f32>)
        .map_err(failed)?;
    out.copy_from_slice(&numbers);
    Ok(())
}

/// Wraps an error of this library where only an I/O error can be returned.
pub(crate) fn failed(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
