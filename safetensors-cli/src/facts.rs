//! [`Facts`]: how a file is laid out: its header, its padding, and what is aligned.

use std::io;

use safetensors_core::{ErrorKind, ReadAt, Result, SafeTensors};

use crate::text;

/// The data of most files starts at a multiple of 8; of those made for mapping, at a page.
const LARGEST_ALIGNMENT: u64 = 4096;

/// What the layout of one file is, beyond what makes it sound.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Facts {
    /// The length of the header's text with its padding.
    pub(crate) header_bytes: u64,
    /// White space before the header's opening brace.
    pub(crate) leading_bytes: u64,
    /// White space after the header's closing brace.
    pub(crate) padding_bytes: u64,
    /// Whether some of that padding is not spaces.
    pub(crate) foreign_padding: bool,
    /// Where the data begins, from the start of the file.
    pub(crate) data_start: u64,
    /// The largest power of two up to 4096 that `data_start` is a multiple of.
    pub(crate) data_alignment: u64,
    /// Tensors that do not lie at a multiple of their dtype's alignment.
    pub(crate) misaligned_tensors: u64,
    /// The first of them.
    #[serde(skip)]
    first_misaligned: Option<Misaligned>,
}

#[derive(Clone, Debug)]
struct Misaligned {
    name: String,
    at: u64,
    alignment: u64,
}

impl Facts {
    /// Looks at the ends of the header and at where tensors lie.
    pub(crate) fn of(archive: &SafeTensors<impl ReadAt>) -> Result<Self> {
        let header = archive.header();
        let (data_start, header_bytes) = (header.data_start(), header.json_len());
        let text_start = data_start - header_bytes;
        let read = || -> io::Result<_> {
            let leading = white_space(archive.bytes(), text_start, data_start, false)?;
            let trailing = white_space(archive.bytes(), text_start, data_start, true)?;
            Ok((leading, trailing))
        };
        let (leading, trailing) = read().map_err(ErrorKind::Io)?;
        let misaligned = |tensor: &safetensors_core::TensorInfo<'_>| {
            let (at, alignment) = (data_start + tensor.data_offsets().start, tensor.dtype().alignment() as u64);
            let is_off = !at.is_multiple_of(alignment) && tensor.byte_len() > 0;
            is_off.then(|| Misaligned { name: tensor.name().into(), at, alignment })
        };
        let mut off = header.tensors().filter_map(|tensor| misaligned(&tensor));
        let first_misaligned = off.next();
        Ok(Self {
            header_bytes,
            leading_bytes: leading.bytes,
            padding_bytes: trailing.bytes,
            foreign_padding: trailing.foreign,
            data_start,
            data_alignment: (data_start & data_start.wrapping_neg()).min(LARGEST_ALIGNMENT),
            misaligned_tensors: off.count() as u64 + u64::from(first_misaligned.is_some()),
            first_misaligned,
        })
    }

    /// Where the file departs from the text of the format or from what its writers are asked to do, though readers take it.
    pub(crate) fn departures(&self) -> Vec<String> {
        let mut departures = Vec::new();
        if self.leading_bytes > 0 {
            let bytes = text::counted(self.leading_bytes, "byte");
            departures.push(format!("the header starts with {bytes} of white space, not with its opening brace"));
        }
        if self.foreign_padding {
            departures.push("the header is padded with other white space than spaces".into());
        }
        if !self.data_start.is_multiple_of(8) {
            departures.push(format!("the data starts at byte {}, not at a multiple of 8", self.data_start));
        }
        if let Some(Misaligned { name, at, alignment }) = &self.first_misaligned {
            let others = match self.misaligned_tensors - 1 {
                0 => String::new(),
                others => format!(", and {} too", text::counted(others, "other tensor")),
            };
            let name = text::name(name);
            departures.push(format!("tensor {name} lies at byte {at}, not at a multiple of {alignment}{others}"));
        }
        departures
    }
}

/// A run of white space.
struct WhiteSpace {
    bytes: u64,
    /// Whether it has other characters than spaces.
    foreign: bool,
}

/// The white space at one end of a header.
fn white_space(source: &impl ReadAt, start: u64, end: u64, at_end: bool) -> io::Result<WhiteSpace> {
    let mut found = WhiteSpace { bytes: 0, foreign: false };
    let mut buf = [0; 4096];
    while found.bytes < end - start {
        let left = end - start - found.bytes;
        let piece = &mut buf[..left.min(4096) as usize];
        let offset = if at_end { end - found.bytes - piece.len() as u64 } else { start + found.bytes };
        source.read_exact_at(piece, offset)?;
        if at_end {
            piece.reverse();
        }
        let run = piece.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        let run = run.inspect(|&&byte| found.foreign |= byte != b' ').count();
        found.bytes += run as u64;
        if run < piece.len() {
            break;
        }
    }
    Ok(found)
}
