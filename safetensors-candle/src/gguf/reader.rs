//! [`GgufReader`]: a file as candle's functions read one, by [`Read`] and [`Seek`].

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors_core::{ErrorKind, ReadAt};

use super::read::fill;

/// The windows that are kept. Models ask for the tensors of a layer in another order than a file
/// has them.
const KEPT: usize = 4;

/// The bytes of a window of a local file.
const NEAR: usize = 256 << 10;

/// The calls that a window takes, of a source with calls that wait. They run at the same time.
const CALLS: usize = 8;

/// The bytes of a window if only the header is read from such a source.
const HEADER: usize = 1 << 20;

/// Reads a GGUF file front to back and at any position, for candle's own functions. See
/// [`GgufFile::reader`](super::GgufFile::reader).
pub(super) struct GgufReader<'a> {
    source: &'a dyn ReadAt,
    path: &'a Path,
    at: u64,
    window: usize,
    /// Where each begins, and its bytes; the one that was used last comes last.
    windows: Vec<(u64, Vec<u8>)>,
}

impl<'a> GgufReader<'a> {
    pub(super) fn new(source: &'a dyn ReadAt, path: &'a Path) -> Self {
        let window = source.requests().map_or(NEAR, |far| far.byte_len.min(NEAR << 5) * CALLS);
        Self { source, path, at: 0, window, windows: Vec::new() }
    }

    pub(super) fn for_header(source: &'a dyn ReadAt, path: &'a Path) -> Self {
        let reader = Self::new(source, path);
        Self { window: reader.window.min(HEADER), ..reader }
    }

    fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let read = fill(self.source, bytes, offset, 0, |_| Ok(()));
        let read = read.and_then(|()| Ok(self.source.check_unchanged()?));
        read.map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::Io(error) => error.kind(),
                _ => io::ErrorKind::Other,
            };
            // Inside candle's error, it is still one that names the file.
            io::Error::new(kind, error.in_path(self.path))
        })
    }

    /// Puts the window of this position last.
    fn load_window(&mut self, start: u64) -> io::Result<()> {
        let found = self.windows.iter().position(|(at, _)| *at == start);
        let window = match found {
            Some(index) => self.windows.remove(index),
            None => {
                let full = self.windows.len() == KEPT;
                let mut bytes = if full { self.windows.remove(0).1 } else { Vec::new() };
                let len = (self.source.byte_len() - start).min(self.window as u64);
                bytes.resize(len as usize, 0);
                self.fill(&mut bytes, start)?;
                (start, bytes)
            }
        };
        self.windows.push(window);
        Ok(())
    }
}

impl Read for GgufReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.source.byte_len().saturating_sub(self.at);
        let len = left.min(buf.len() as u64) as usize;
        let read = if len >= self.window {
            self.fill(&mut buf[..len], self.at)?;
            len
        } else if len > 0 {
            let start = self.at / self.window as u64 * self.window as u64;
            self.load_window(start)?;
            let bytes = self.windows.last().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
            (&bytes[(self.at - start) as usize..]).read(&mut buf[..len])?
        } else {
            0
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for GgufReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.source.byte_len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
