//! [`Segments`]: a file of a header in memory, and of tensors with bytes that are elsewhere.

use std::io;
use std::mem;
use std::ops::Range;

use crate::file::io::ReadRange;
use crate::file::save::spec::Spec;
use crate::format::error::{ErrorKind, Result};
use crate::format::header::{HeaderEntry, Metadata, encode};
use crate::format::tensor::shape::byte_len;

/// The header of a file, and where the bytes after it come from.
#[derive(Clone, Debug)]
pub(crate) struct Segments<T> {
    /// The first bytes; none if the file is as it is stored.
    header: Vec<u8>,
    /// The bytes after these, in order and without gaps. None is empty.
    segments: Vec<Segment<T>>,
    byte_len: u64,
}

#[derive(Clone, Debug)]
struct Segment<T> {
    start: u64,
    end: u64,
    content: T,
}

impl<T> Segments<T> {
    /// Makes a safetensors file of tensors, each with the place of its bytes.
    pub(crate) fn new(tensors: Vec<(Spec<'_>, T)>, metadata: &Metadata) -> Result<Self> {
        let mut segments = Vec::with_capacity(tensors.len());
        let mut entries = Vec::with_capacity(tensors.len());
        let mut end = 0_u64;
        for (Spec { name, dtype, shape }, content) in tensors {
            let overflow = || ErrorKind::ShapeOverflow { shape: shape.to_vec() };
            let start = end;
            end = start.checked_add(byte_len(dtype, shape)?).ok_or_else(overflow)?;
            if start < end {
                segments.push(Segment { start, end, content });
            }
            entries.push(HeaderEntry { name, dtype, shape, data_offsets: start..end });
        }
        let header = encode(metadata, entries.into_iter(), 8);
        let start = header.len() as u64;
        for segment in &mut segments {
            segment.start += start;
            segment.end = segment.end.saturating_add(start);
        }
        Ok(Self { header, segments, byte_len: start.saturating_add(end) })
    }

    /// Makes a file with all of its bytes in one place.
    pub(crate) fn stored(content: T, byte_len: u64) -> Self {
        let segments = vec![Segment { start: 0, end: byte_len, content }];
        Self { header: Vec::new(), segments, byte_len }
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.header.is_empty()
    }

    pub(crate) fn byte_len(&self) -> u64 {
        self.byte_len
    }

    /// Returns the tensors that have bytes of a range, each with the part of its bytes that is in
    /// the range.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (&T, Range<u64>)> {
        let first = self.segments.partition_point(|segment| segment.end <= range.start);
        let Range { start, end } = range;
        let here = self.segments[first..].iter().take_while(move |segment| segment.start < end);
        here.map(move |segment| {
            let from = start.saturating_sub(segment.start);
            (&segment.content, from..end.min(segment.end) - segment.start)
        })
    }

    /// Copies the part of a range that is in the header, and divides the rest among the tensors.
    pub(crate) fn divide<'r>(
        &self,
        ReadRange { offset, bytes }: &'r mut ReadRange<'_>,
    ) -> io::Result<impl Iterator<Item = (&T, Range<u64>, &'r mut [u8])>> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.byte_len {
            let message = format!("expected at least {end} bytes, found {}", self.byte_len);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let start = usize::try_from(*offset).unwrap_or(usize::MAX);
        let header = self.header.get(start..).unwrap_or_default();
        let (head, mut rest) = bytes.split_at_mut(header.len().min(bytes.len()));
        head.copy_from_slice(&header[..head.len()]);
        let begin = *offset + head.len() as u64;
        Ok(self.within(begin..end).map(move |(content, part)| {
            let len = (part.end - part.start) as usize;
            let (bytes, more) = mem::take(&mut rest).split_at_mut(len);
            rest = more;
            (content, part, bytes)
        }))
    }
}
