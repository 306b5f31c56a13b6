//! [`Patch`]: a compressed difference, applied to a tensor in pieces.

use safetensors_core::{LazyTensor, ReadAt};

use crate::error::{ErrorKind, Result};
use crate::format::Encoding;
use crate::frame::Frame;

/// Bytes of positions or values held at a time. A multiple of 4.
const BUFFER_LEN: usize = 16 << 10;

const POSITION: u64 = 4;

/// Positions have 32 bits.
pub(crate) const LARGEST: u64 = if cfg!(test) { 1 << 20 } else { u32::MAX as u64 };

pub(crate) enum Patch<'a, S> {
    Xor { frame: Frame<'a, S>, len: u64 },
    Overwrite(Box<Overwrite<'a, S>>),
}

impl<'a, S: ReadAt> Patch<'a, S> {
    pub(crate) fn open(
        encoding: Encoding,
        compressed: LazyTensor<'a, S>,
        len: u64,
    ) -> Result<Self> {
        match encoding {
            // Positions of other writers have wrapped at this size.
            Encoding::Overwrite if len > LARGEST => {
                let error = ErrorKind::TooLargeToOverwrite { found: len };
                Err(compressed.locate(error.into()))
            }
            Encoding::Xor => Ok(Self::Xor { frame: Frame::open(compressed, Some(len))?, len }),
            Encoding::Overwrite => Ok(Self::Overwrite(Box::new(Overwrite::open(compressed, len)?))),
        }
    }

    /// Each byte comes once, in order.
    pub(crate) fn apply(
        &mut self,
        offset: u64,
        bytes: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        match self {
            Self::Xor { frame, len } => {
                if scratch.len() < bytes.len() {
                    scratch.resize(bytes.len(), 0);
                }
                let difference = &mut scratch[..bytes.len()];
                frame.fill(difference, *len)?;
                xor(bytes, difference);
                Ok(())
            }
            Self::Overwrite(overwrite) => overwrite.apply(offset, bytes),
        }
    }

    pub(crate) fn verify(encoding: Encoding, compressed: LazyTensor<'a, S>) -> Result<()> {
        match encoding {
            Encoding::Xor => {
                let mut frame = Frame::open(compressed, None)?;
                let content = frame.content()?;
                let mut buffer = vec![0; BUFFER_LEN];
                while frame.given() < content && frame.read(&mut buffer)? > 0 {}
                frame.finish(content)
            }
            Encoding::Overwrite => {
                let mut overwrite = Overwrite::open(compressed, LARGEST)?;
                while let Some(position) = overwrite.next {
                    let [_value] = overwrite.values.take()?;
                    overwrite.advance(Some(position))?;
                }
                overwrite.values.frame.finish(overwrite.content)
            }
        }
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            Self::Xor { frame, len } => frame.finish(*len),
            Self::Overwrite(overwrite) => overwrite.values.frame.finish(overwrite.content),
        }
    }
}

pub(crate) fn xor(bytes: &mut [u8], others: &[u8]) {
    bytes.iter_mut().zip(others).for_each(|(byte, other)| *byte ^= other);
}

/// Positions and new bytes are far apart in one frame, so it is read at two places at once.
pub(crate) struct Overwrite<'a, S> {
    positions: BufferedFrame<'a, S>,
    values: BufferedFrame<'a, S>,
    len: u64,
    content: u64,
    left: u64,
    next: Option<u64>,
}

impl<'a, S: ReadAt> Overwrite<'a, S> {
    fn open(compressed: LazyTensor<'a, S>, len: u64) -> Result<Self> {
        let count = BufferedFrame::new(Frame::open(compressed, None)?, POSITION).take()?;
        let count = u64::from(u32::from_le_bytes(count));
        let content = POSITION + count * (POSITION + 1);
        let open = || Frame::open(compressed, Some(content));
        let mut positions = BufferedFrame::new(open()?, content);
        if count > len {
            let error = ErrorKind::TooManyPositions { len, found: count };
            return Err(positions.frame.error(error));
        }
        let _count: [u8; POSITION as usize] = positions.take()?;
        let mut values = BufferedFrame::new(open()?, content);
        values.skip(POSITION * (count + 1))?;
        let mut overwrite = Self { positions, values, len, content, left: count, next: None };
        overwrite.advance(None)?;
        Ok(overwrite)
    }

    fn advance(&mut self, before: Option<u64>) -> Result<()> {
        self.next = None;
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let found = u64::from(u32::from_le_bytes(self.positions.take()?));
        let problem = match before {
            Some(before) if found <= before => ErrorKind::PositionOrder { before, found },
            _ if found >= self.len => ErrorKind::PositionOutside { len: self.len, found },
            _ => {
                self.next = Some(found);
                return Ok(());
            }
        };
        Err(self.positions.frame.error(problem))
    }

    fn apply(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        while let Some(position) = self.next
            && position - offset < bytes.len() as u64
        {
            let [value] = self.values.take()?;
            bytes[(position - offset) as usize] = value;
            self.advance(Some(position))?;
        }
        Ok(())
    }
}

struct BufferedFrame<'a, S> {
    frame: Frame<'a, S>,
    content: u64,
    buffer: Vec<u8>,
    at: usize,
}

impl<'a, S: ReadAt> BufferedFrame<'a, S> {
    fn new(frame: Frame<'a, S>, content: u64) -> Self {
        Self { frame, content, buffer: Vec::new(), at: 0 }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        if self.at == self.buffer.len() {
            self.refill(BUFFER_LEN as u64)?;
        }
        let taken = self.buffer[self.at..].first_chunk().copied();
        self.at += N;
        let expected = self.content;
        let found = self.frame.given();
        taken.ok_or_else(|| self.frame.error(ErrorKind::ContentSize { expected, found }))
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        while bytes > 0 {
            self.refill(bytes.min(BUFFER_LEN as u64))?;
            bytes -= self.buffer.len() as u64;
        }
        (self.at, self.buffer) = (0, Vec::new());
        Ok(())
    }

    fn refill(&mut self, most: u64) -> Result<()> {
        let len = (self.content - self.frame.given()).min(most) as usize;
        self.buffer.resize(len, 0);
        self.at = 0;
        self.frame.fill(&mut self.buffer, self.content)
    }
}
