//! Reads a header from a stream.

use std::io::{self, Read};

use super::looks_like::{START, explain};
use super::{Header, LENGTH_BYTES, Limits};
use crate::format::error::{ErrorKind, Result};

impl Header {
    /// Reads the header from a stream, such as a pipe, up to the first byte of the data. Does not
    /// check that the data is complete.
    ///
    /// ```
    /// use safetensors_core::header::Header;
    /// use safetensors_core::{Limits, SaveOptions, TensorView, serialize};
    ///
    /// let values = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let file = serialize([("values", values)], &SaveOptions::new())?;
    /// let mut stream = &file[..];
    /// let header = Header::read(&mut stream, &Limits::default())?;
    /// assert_eq!(stream.len() as u64, header.data_len());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Header::parse`]; [`ErrorKind::Io`].
    pub fn read(mut stream: impl Read, limits: &Limits) -> Result<Self> {
        let mut start = Vec::new();
        read_up_to(&mut stream, LENGTH_BYTES as u64, &mut start)?;
        let header = match start.first_chunk() {
            Some(length) => Self::check_length(*length, u64::MAX, limits)
                .and_then(|len| Self::read_text(&mut stream, len as u64, limits, &mut start)),
            None => Err(ErrorKind::TooShort { found: start.len() as u64 }.into()),
        };
        header.map_err(|error| {
            if start.len() == LENGTH_BYTES {
                // Recognising another format needs a few more bytes. A short or failed read is not
                // an error here, because there is an error already.
                let mut more = [0; START - LENGTH_BYTES];
                let read = stream.read(&mut more).unwrap_or(0);
                start.extend_from_slice(&more[..read]);
            }
            explain(error, &start)
        })
    }

    /// Parses `expected` bytes, and adds the first ones to `start`.
    fn read_text(
        stream: &mut impl Read,
        expected: u64,
        limits: &Limits,
        start: &mut Vec<u8>,
    ) -> Result<Self> {
        // The length may be false, so memory is allocated only for bytes that arrive.
        let mut json = Vec::new();
        read_up_to(stream, expected, &mut json)?;
        let found = json.len() as u64;
        start.extend_from_slice(&json[..json.len().min(START - LENGTH_BYTES)]);
        if found < expected {
            return Err(ErrorKind::HeaderPastEnd { expected, found }.into());
        }
        Self::parse_json(&json, limits)
    }
}

/// Stops at the end of the stream.
fn read_up_to(stream: &mut impl Read, len: u64, bytes: &mut Vec<u8>) -> Result<(), ErrorKind> {
    let read: io::Result<usize> = stream.take(len).read_to_end(bytes);
    read.map(drop).map_err(ErrorKind::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;

    fn file() -> Vec<u8> {
        [&(JSON.len() as u64).to_le_bytes()[..], JSON, &[1, 2]].concat()
    }

    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = buf.len().min(1);
            self.0.read(&mut buf[..len])
        }
    }

    #[test]
    fn the_data_is_left_in_the_stream() {
        let file = file();
        let mut stream = Slow(&file);
        let header = Header::read(&mut stream, &Limits::default()).unwrap();
        assert_eq!((header.len(), header.data_len(), stream.0), (1, 2, &[1, 2][..]));
    }

    #[test]
    fn errors_of_a_stream_equal_errors_of_a_file() {
        let file = file();
        // The last two bytes are the data, which `read` does not check.
        for len in 0..file.len() - 2 {
            let read = Header::read(&file[..len], &Limits::default()).unwrap_err();
            let parsed = Header::parse(&file[..len], &Limits::default()).unwrap_err();
            assert_eq!(read.to_string(), parsed.to_string());
        }
        for other in [&b"GGUF\x03\0\0\0"[..], b"<html>", &[1, 0, 0, 0, 0, 0, 0, 0, b'x']] {
            let read = Header::read(other, &Limits::default()).unwrap_err();
            let parsed = Header::parse(other, &Limits::default()).unwrap_err();
            assert_eq!(read.to_string(), parsed.to_string());
        }
    }

    #[test]
    fn a_false_length_takes_no_memory() {
        let endless = io::repeat(b'z');
        let error = Header::read(endless, &Limits::default()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::HeaderTooLarge { .. }));
        let start = [&99_000_000_u64.to_le_bytes()[..], b"{"].concat();
        let error = Header::read(&start[..], &Limits::default()).unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::HeaderPastEnd { expected: 99_000_000, found: 1 }
        ));
    }
}
