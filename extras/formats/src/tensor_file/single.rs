//! [`Single`]: the tensors of a file, as the bytes of a safetensors file.

use std::io;
use std::ops::Range;

use safetensors_core::ReadAt;
use safetensors_core::io::Requests;

use super::{Container, Data, Place};
use crate::error::to_io;

#[derive(Debug)]
pub(super) struct Single {
    /// With its length before it.
    pub(super) header: Vec<u8>,
    pub(super) spans: Vec<Span>,
    pub(super) byte_len: u64,
    pub(super) container: Container,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// From the end of the header.
    pub(super) end: u64,
    pub(super) data: Data,
}

impl ReadAt for Single {
    fn byte_len(&self) -> u64 {
        self.byte_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= self.byte_len);
        if end.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = self.header.len() as u64;
        let (of_header, mut rest) = buf.split_at_mut(match header.checked_sub(offset) {
            Some(left) => buf.len().min(usize::try_from(left).unwrap_or(usize::MAX)),
            None => 0,
        });
        if !of_header.is_empty() {
            let start = offset as usize;
            of_header.copy_from_slice(&self.header[start..start + of_header.len()]);
        }
        let mut at = (offset + of_header.len() as u64).saturating_sub(header);
        let first = self.spans.partition_point(|span| span.end <= at);
        let mut start = first.checked_sub(1).map_or(0, |before| self.spans[before].end);
        for span in &self.spans[first..] {
            if rest.is_empty() {
                break;
            }
            let len = (span.end - at).min(rest.len() as u64) as usize;
            let (part, more) = rest.split_at_mut(len);
            // Core adds the file and the tensor to an error.
            span.data.read(&self.container, part, at - start).map_err(to_io)?;
            (rest, at, start) = (more, at + len as u64, span.end);
        }
        Ok(())
    }

    fn requests(&self) -> Option<Requests> {
        self.container.input().source.requests()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.container.input().source.check_unchanged()
    }

    fn may_change_unseen(&self) -> bool {
        self.container.input().source.may_change_unseen()
    }

    fn is_replaced(&self) -> io::Result<bool> {
        self.container.input().source.is_replaced()
    }

    fn lend(&self, range: Range<u64>) -> Option<&[u8]> {
        let header = self.header.len() as u64;
        let start = range.start.checked_sub(header)?;
        let end = range.end.checked_sub(header)?;
        let index = self.spans.partition_point(|span| span.end <= start);
        let span = self.spans.get(index).filter(|span| end <= span.end)?;
        let Data::Plain(Place::At(offset)) = span.data else { return None };
        let before = index.checked_sub(1).map_or(0, |before| self.spans[before].end);
        let at = offset + (start - before);
        self.container.input().source.lend(at..at + (end - start))
    }
}
