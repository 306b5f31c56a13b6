//! [`Frame`]: a zstd frame with a compressed difference, decompressed on demand.

use safetensors_core::save::Sink;
use safetensors_core::{LazyTensor, ReadAt, shape};
use zstd::stream::raw::{DParameter, Decoder, Operation};
use zstd::zstd_safe;

use crate::blocks::Blocks;
use crate::error::{Error, ErrorKind, Result};
use crate::extra::Form;

const BLOCK: usize = 64 << 10;

/// Stays in the processor's cache.
pub(crate) const PIECE: usize = 256 << 10;

/// A power of two. RFC 8878 asks every reader for it; level 1, which all writers use, needs 512
/// KiB.
const WINDOW_LOG: u32 = 23;

pub(crate) struct Frame<'a, S> {
    blocks: Blocks<'a, S>,
    decoder: Decoder<'static>,
    content: Option<u64>,
    taken: u64,
    given: u64,
    ended: bool,
}

impl<'a, S: ReadAt> Frame<'a, S> {
    /// A size in the header has to be `expected`.
    pub(crate) fn open(tensor: LazyTensor<'a, S>, expected: Option<u64>) -> Result<Self> {
        let mut blocks = Blocks::new(tensor, BLOCK);
        let checked = blocks.at(0).and_then(|start| check_header(start, expected));
        let begun = checked.and_then(|content| {
            let mut decoder = Decoder::new()?;
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
            Ok((content, decoder))
        });
        let (content, decoder) = begun.map_err(|error| tensor.locate(error))?;
        Ok(Self { blocks, decoder, content, taken: 0, given: 0, ended: false })
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < out.len() && !self.ended {
            let input = self.blocks.at(self.taken)?;
            let is_end = input.is_empty();
            let status = self.decoder.run_on_buffers(input, &mut out[filled..]);
            let status = status.map_err(|error| {
                let problem = error.to_string();
                self.error(match problem.contains("too much memory") {
                    true => ErrorKind::WindowTooLarge { limit: 1 << WINDOW_LOG },
                    false => ErrorKind::DamagedFrame { problem },
                })
            })?;
            if is_end && status.bytes_written == 0 && status.remaining != 0 {
                return Err(self.error(ErrorKind::FrameCut { found: self.taken }));
            }
            self.taken += status.bytes_read as u64;
            filled += status.bytes_written;
            self.ended = status.remaining == 0;
        }
        self.given += filled as u64;
        Ok(filled)
    }

    pub(crate) fn fill(&mut self, out: &mut [u8], expected: u64) -> Result<()> {
        if self.read(out)? < out.len() {
            return Err(self.error(ErrorKind::ContentSize { expected, found: self.given }));
        }
        Ok(())
    }

    /// The frame has to fill the tensor.
    pub(crate) fn finish(&mut self, expected: u64) -> Result<()> {
        if self.read(&mut [0])? > 0 || self.given > expected {
            return Err(self.error(ErrorKind::ContentTooLong { expected }));
        }
        if self.given < expected {
            return Err(self.error(ErrorKind::ContentSize { expected, found: self.given }));
        }
        let found = self.blocks.tensor().byte_len();
        if self.taken < found {
            return Err(self.error(ErrorKind::AfterFrame { end: self.taken, found }));
        }
        self.blocks.check_unchanged()
    }

    /// The header must have the size.
    pub(crate) fn content(&mut self) -> Result<u64> {
        if let Some(content) = self.content {
            return Ok(content);
        }
        self.read(&mut [0])?;
        Err(self.error(ErrorKind::UnknownContentSize))
    }

    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        self.blocks.tensor().locate(kind.into())
    }
}

/// The frame must have its size, so that no file is made for an absent tensor.
pub(crate) fn whole<'a, S: ReadAt>(
    tensor: LazyTensor<'a, S>,
    (dtype, shape): Form<'_>,
) -> Result<(Frame<'a, S>, u64)> {
    let len = shape::byte_len(dtype, shape).map_err(|kind| tensor.locate(kind.into()))?;
    let mut frame = Frame::open(tensor, Some(len))?;
    frame.content()?;
    Ok((frame, len))
}

pub(crate) fn pour<S: ReadAt>(
    tensor: LazyTensor<'_, S>,
    form: Form<'_>,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let (mut frame, len) = whole(tensor, form)?;
    let mut buffer = vec![0; len.min(PIECE as u64) as usize];
    while frame.given() < len {
        let piece = &mut buffer[..(len - frame.given()).min(PIECE as u64) as usize];
        frame.fill(piece, len)?;
        sink(piece)?;
    }
    frame.finish(len)
}

fn check_header(start: &[u8], expected: Option<u64>) -> Result<Option<u64>> {
    match start.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic)) {
        Some(zstd_safe::MAGICNUMBER) => {}
        Some(0x184d_2a50..=0x184d_2a5f) => return Err(ErrorKind::SkippableFrame.into()),
        _ => {
            let found = start[..start.len().min(4)].into();
            return Err(ErrorKind::NotAFrame { found }.into());
        }
    }
    if zstd_safe::get_dict_id_from_frame(start).is_some() {
        return Err(ErrorKind::NeedsDictionary.into());
    }
    // Errors of a header are found when the frame is read.
    let content = zstd_safe::get_frame_content_size(start).ok().flatten();
    match expected.zip(content) {
        Some((expected, found)) if expected != found => {
            Err(ErrorKind::ContentSize { expected, found }.into())
        }
        _ => Ok(content),
    }
}
