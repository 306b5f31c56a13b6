//! [`FileLayout`]: header, padding and alignment of a file.

use std::io;

use crate::file::io::{ReadAt, SafeTensors};
use crate::format::error::{ErrorKind, Result};
use crate::format::header::TensorInfo;

// A memory page, for files that are made to be mapped.
const LARGEST_ALIGNMENT: u64 = 4096;

/// Facts about the layout of a file that do not matter for its validity, in bytes from the start of
/// the file.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
///
/// let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let file = serialize([("w", weight)], &SaveOptions::new().align(4096))?;
/// let checkpoint = Checkpoint::from_source(file, "bytes in memory")?;
/// let layout = checkpoint.files()[0].layout()?;
/// assert_eq!(
///     (layout.data_start, layout.data_alignment, layout.misaligned_tensors),
///     (4096, 4096, 0)
/// );
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileLayout {
    /// The length of the header's text with its padding.
    pub header_len: u64,
    /// The length of the white space before the header's opening brace.
    pub leading_space: u64,
    /// The length of the white space after the header's closing brace.
    pub padding: u64,
    /// Whether the padding has white space other than spaces.
    pub is_padding_foreign: bool,
    /// The offset of the first byte of the data.
    pub data_start: u64,
    /// The largest power of two up to 4096 that divides `data_start`.
    pub data_alignment: u64,
    /// The number of tensors that do not begin at a multiple of their dtype's alignment.
    pub misaligned_tensors: u64,
    pub(super) first_misaligned: Option<MisalignedTensor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(super) struct MisalignedTensor {
    pub(super) name: String,
    /// From the start of the file.
    pub(super) offset: u64,
    pub(super) alignment: u64,
}

impl FileLayout {
    /// Reads the white space at both ends of the header again, and no tensor.
    pub(super) fn read(file: &SafeTensors<impl ReadAt>) -> Result<Self> {
        let header = file.header();
        let data_start = header.data_start();
        let header_len = header.json_len();
        let text_start = data_start - header_len;
        let white_space = |at_end| {
            white_space(file.source(), text_start, data_start, at_end).map_err(ErrorKind::Io)
        };
        let leading = white_space(false)?;
        let trailing = white_space(true)?;
        let mut misaligned = header.iter().filter_map(|tensor| misaligned(data_start, &tensor));
        let first_misaligned = misaligned.next();
        Ok(Self {
            header_len,
            leading_space: leading.bytes,
            padding: trailing.bytes,
            is_padding_foreign: trailing.is_foreign,
            data_start,
            data_alignment: (data_start & data_start.wrapping_neg()).min(LARGEST_ALIGNMENT),
            misaligned_tensors: misaligned.count() as u64 + u64::from(first_misaligned.is_some()),
            first_misaligned,
        })
    }
}

fn misaligned(data_start: u64, tensor: &TensorInfo<'_>) -> Option<MisalignedTensor> {
    let offset = data_start + tensor.data_offsets().start;
    let alignment = tensor.dtype().alignment() as u64;
    let is_off = !offset.is_multiple_of(alignment) && tensor.byte_len() > 0;
    is_off.then(|| MisalignedTensor { name: tensor.name().into(), offset, alignment })
}

struct WhiteSpace {
    bytes: u64,
    is_foreign: bool,
}

fn white_space(source: &impl ReadAt, start: u64, end: u64, at_end: bool) -> io::Result<WhiteSpace> {
    let mut found = WhiteSpace { bytes: 0, is_foreign: false };
    let mut buf = [0; 4096];
    while found.bytes < end - start {
        let left = end - start - found.bytes;
        let piece = &mut buf[..left.min(4096) as usize];
        let offset =
            if at_end { end - found.bytes - piece.len() as u64 } else { start + found.bytes };
        source.read_exact_at(piece, offset)?;
        if at_end {
            piece.reverse();
        }
        let run = piece.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        let run = run.inspect(|&&byte| found.is_foreign |= byte != b' ').count();
        found.bytes += run as u64;
        if run < piece.len() {
            break;
        }
    }
    Ok(found)
}
