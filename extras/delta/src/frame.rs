//! [`Frame`]: the one frame of zstd that a compressed difference is, decompressed as it is needed.

use safetensors_core::save::Sink;
use safetensors_core::{LazyTensor, ReadAt, shape};
use zstd::stream::raw::{DParameter, Decoder, Operation};

use crate::blocks::Blocks;
use crate::error::{Error, ErrorKind, Result};
use crate::extra::Form;

/// The compressed bytes that are held at a time.
const BLOCK: usize = 64 << 10;

/// The bytes of a tensor that are changed at a time: they stay in the processor's cache.
pub(crate) const PIECE: usize = 256 << 10;

/// The largest window that a frame may need, as a power of two. It is what RFC 8878 asks every
/// reader for. The first level of zstd, which all writers of deltas use, needs 512 KiB.
const WINDOW_LOG: u32 = 23;

/// A frame of zstd in a tensor of bytes. It has to fill the tensor.
pub(crate) struct Frame<'a, S> {
    blocks: Blocks<'a, S>,
    decoder: Decoder<'static>,
    /// The bytes of the content, if the header says.
    content: Option<u64>,
    /// The compressed bytes that are taken.
    taken: u64,
    /// The bytes of the content that are given.
    given: u64,
    ended: bool,
}

impl<'a, S: ReadAt> Frame<'a, S> {
    /// Begins to read a frame. Its header is checked, and the size of the content there, if it has
    /// one, is `expected`.
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

    /// Reads until the buffer is full or the frame ends.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < out.len() && !self.ended {
            let input = self.blocks.at(self.taken)?;
            let is_end = input.is_empty();
            let status = self.decoder.run_on_buffers(input, &mut out[filled..]);
            let status = status.map_err(|error| {
                let problem = error.to_string();
                self.error(ErrorKind::DamagedFrame { problem })
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

    /// Fills a buffer with the next of `expected` bytes.
    pub(crate) fn fill(&mut self, out: &mut [u8], expected: u64) -> Result<()> {
        if self.read(out)? < out.len() {
            return Err(self.error(ErrorKind::ContentSize { expected, found: self.given }));
        }
        Ok(())
    }

    /// Checks that the frame ends after these bytes of content, and the tensor with the frame.
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

    /// The number of bytes of the content, if the header says.
    pub(crate) fn content(&self) -> Option<u64> {
        self.content
    }

    /// The number of bytes of the content so far.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// An error of this tensor.
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        self.blocks.tensor().locate(kind.into())
    }
}

/// Begins to read a tensor of this dtype and shape, whole. Its frame has to say how large it is, so
/// that no file is made for a tensor that is not there. Returns the number of bytes, too.
pub(crate) fn whole<'a, S: ReadAt>(
    tensor: LazyTensor<'a, S>,
    (dtype, shape): Form<'_>,
) -> Result<(Frame<'a, S>, u64)> {
    let len = shape::byte_len(dtype, shape).map_err(|kind| tensor.locate(kind.into()))?;
    let frame = Frame::open(tensor, Some(len))?;
    match frame.content {
        Some(_) => Ok((frame, len)),
        None => Err(frame.error(ErrorKind::UnknownContentSize)),
    }
}

/// Passes the content of the frame of a tensor, whole, to a sink.
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

/// Checks the header of a frame (RFC 8878, 3.1.1.1), of which zstd itself says less. Returns the
/// size of the content, if it is there.
fn check_header(start: &[u8], expected: Option<u64>) -> Result<Option<u64>> {
    let header = Header::parse(start)?;
    if header.needs_dictionary {
        return Err(ErrorKind::NeedsDictionary.into());
    }
    let (limit, found) = (1 << WINDOW_LOG, header.window);
    if found > limit {
        return Err(ErrorKind::WindowTooLarge { limit, found }.into());
    }
    match (expected, header.content) {
        (Some(expected), Some(found)) if expected != found => {
            Err(ErrorKind::ContentSize { expected, found }.into())
        }
        (_, found) => Ok(found),
    }
}

struct Header {
    needs_dictionary: bool,
    window: u64,
    content: Option<u64>,
}

impl Header {
    fn parse(start: &[u8]) -> Result<Self> {
        let not_a_frame = || ErrorKind::NotAFrame { found: start[..start.len().min(4)].into() };
        let cut = || Error::from(ErrorKind::FrameCut { found: start.len() as u64 });
        let (magic, rest) = start.split_first_chunk::<4>().ok_or_else(not_a_frame)?;
        match u32::from_le_bytes(*magic) {
            zstd::zstd_safe::MAGICNUMBER => {}
            0x184d_2a50..=0x184d_2a5f => return Err(ErrorKind::SkippableFrame.into()),
            _ => return Err(not_a_frame().into()),
        }
        let (&flags, mut rest) = rest.split_first().ok_or_else(cut)?;
        let is_single = flags & 0x20 != 0;
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at_checked(len).ok_or_else(cut)?;
            rest = left;
            let number = taken.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            Ok::<u64, Error>(number)
        };
        let window = if is_single { 0 } else { take(1)? };
        let dictionary = take([0, 1, 2, 4][usize::from(flags & 3)])?;
        let content = match flags >> 6 {
            0 if !is_single => None,
            0 => Some(take(1)?),
            1 => Some(take(2)? + 256),
            2 => Some(take(4)?),
            _ => Some(take(8)?),
        };
        let (exponent, mantissa) = (window >> 3, window & 7);
        let base = 1_u64 << (10 + exponent);
        let window = if is_single { content.unwrap_or(0) } else { base + base / 8 * mantissa };
        Ok(Self { needs_dictionary: dictionary != 0, window, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: &[u8]) -> (u64, Option<u64>) {
        let header = Header::parse(bytes).unwrap();
        (header.window, header.content)
    }

    #[test]
    fn headers_say_how_large_the_content_and_the_window_are() {
        // What zstandard makes of the example that ModelExpress was run with.
        assert_eq!(header(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x0c, 0x61]), (12, Some(12)));
        for len in [0_usize, 1, 255, 256, 65_791, 65_792, 1 << 20, 9 << 20] {
            let compressed = zstd::bulk::compress(&vec![7; len], 1).unwrap();
            let (window, content) = header(&compressed);
            assert_eq!(content, Some(len as u64));
            assert!(window <= 1 << 19 || window == len as u64, "{len}: {window}");
        }
        assert_eq!(header(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58]), (1 << 21, None));
        assert_eq!(header(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff]).0, (1 << 41) + (7 << 38));
    }

    #[test]
    fn other_bytes_are_named() {
        let error = |bytes: &[u8]| Header::parse(bytes).err().unwrap().to_string();
        assert!(error(&[]).ends_with("found no bytes"));
        assert!(error(b"PK\x03\x04").ends_with("found 504b0304"));
        assert!(error(&[0x5f, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]).contains("skip"));
        assert!(error(&[0x28, 0xb5, 0x2f, 0xfd]).contains("cut off after 4 bytes"));
        assert!(error(&[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 1]).contains("cut off after 6 bytes"));
    }
}
