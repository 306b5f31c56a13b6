//! [`Assembled`]: a file with tensors that are made of pieces of other files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::whole_tensor::{Placed, WholeTensor};
#[cfg(doc)]
use crate::checkpoint::Checkpoint;
use crate::checkpoint::index::Index;
use crate::file::io::{FileSource, ReadAt, ReadRange, Requests};
use crate::file::load::streaming::PIECE;
use crate::file::load::tiled::TiledBlock;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{HeaderEntry, Metadata, encode};
use crate::format::tensor::shape::byte_len;

/// A file with tensors that are made of pieces of other files, or a stored file itself. It reads as
/// a safetensors file. For a part of a tensor, only the bytes of the needed pieces are read.
///
/// [`Checkpoint::open`] makes one from the files that the ranks of a job have saved. An index lists
/// the tensors of all files once; here one tensor has pieces in several files, in any number of
/// dimensions.
pub struct Assembled<S = FileSource> {
    content: Content<S>,
}

enum Content<S> {
    /// A file as it is.
    Stored(S),
    Whole(Box<Whole<S>>),
}

struct Whole<S> {
    sources: Vec<(PathBuf, S)>,
    /// The index of the sources, if there is one.
    index: Option<Index>,
    /// The first bytes.
    header: Vec<u8>,
    /// The data after the header, in order and without gaps. None is empty.
    segments: Vec<Segment>,
    byte_len: u64,
}

/// The bytes of a tensor.
struct Segment {
    name: String,
    start: u64,
    end: u64,
    placed: Placed,
}

impl<S> fmt::Debug for Assembled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: &[(PathBuf, S)] = match &self.content {
            Content::Stored(_) => &[],
            Content::Whole(whole) => &whole.sources,
        };
        let paths: Vec<&Path> = sources.iter().map(|(path, _)| &**path).collect();
        f.debug_struct("Assembled").field("sources", &paths).finish_non_exhaustive()
    }
}

impl<S> Assembled<S> {
    /// Returns the source of the file, or the sources of the pieces of its tensors.
    pub fn sources(&self) -> impl Iterator<Item = &S> {
        let (stored, whole) = match &self.content {
            Content::Stored(source) => (Some(source), &[][..]),
            Content::Whole(whole) => (None, &whole.sources[..]),
        };
        stored.into_iter().chain(whole.iter().map(|(_, source)| source))
    }

    /// Returns the sources with their paths, and their index. A stored file has this path.
    pub(in crate::checkpoint) fn into_sources(
        self,
        path: PathBuf,
    ) -> (Vec<(PathBuf, S)>, Option<Index>) {
        match self.content {
            Content::Stored(source) => (vec![(path, source)], None),
            Content::Whole(whole) => (whole.sources, whole.index),
        }
    }

    /// Returns whether this is a file as it is.
    pub(in crate::checkpoint) fn is_stored(&self) -> bool {
        matches!(self.content, Content::Stored(_))
    }

    /// Returns the source of a file as it is.
    pub(in crate::checkpoint) fn into_stored(self) -> Option<S> {
        match self.content {
            Content::Stored(source) => Some(source),
            Content::Whole(_) => None,
        }
    }

    /// Keeps the index of the sources.
    pub(in crate::checkpoint) fn with_index(mut self, index: Option<Index>) -> Self {
        if let Content::Whole(whole) = &mut self.content {
            whole.index = index;
        }
        self
    }
}

impl<S: ReadAt> Assembled<S> {
    /// Makes a file of these tensors, in this order, with this metadata. The sources come with
    /// their paths for errors, and the pieces of the tensors refer to them by number.
    ///
    /// ```
    /// use safetensors_core::checkpoint::{Assembled, TensorPiece, WholeTensor};
    /// use safetensors_core::{Checkpoint, Dtype};
    ///
    /// // Two files with bytes of a matrix of 2 × 3: the left column, and the other two.
    /// let sources = vec![("left".into(), vec![1_u8, 4]), ("right".into(), vec![2, 3, 5, 6])];
    /// let pieces = vec![
    ///     TensorPiece::new(0, 0, vec![0, 0], vec![2, 1]),
    ///     TensorPiece::new(1, 0, vec![0, 1], vec![2, 2]),
    /// ];
    /// let matrix = WholeTensor { name: "m".into(), dtype: Dtype::U8, shape: vec![2, 3], pieces };
    /// let both = Assembled::new(sources, vec![matrix], &Default::default())?;
    /// let checkpoint = Checkpoint::from_source(both, "both")?;
    /// let matrix = checkpoint.tensor("m")?;
    /// assert_eq!(matrix.read()?.as_slice::<u8>()?, [1, 2, 3, 4, 5, 6]);
    /// assert_eq!(matrix.slice((.., 0..2))?.read()?.as_slice::<u8>()?, [1, 2, 4, 5]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RankProblem::BadParts`](crate::error::RankProblem::BadParts) for pieces that do not make
    /// up their tensor: one is outside of it or of its source, two overlap, or some are missing;
    /// [`ErrorKind::SliceInsideByte`] for a piece that begins or ends inside a byte;
    /// [`ErrorKind::ShapeOverflow`]. Each names the tensor and, if it is about a piece, its file.
    #[doc(hidden)]
    pub fn new(
        sources: Vec<(PathBuf, S)>,
        tensors: Vec<WholeTensor>,
        metadata: &Metadata,
    ) -> Result<Self> {
        let mut segments = Vec::new();
        let mut entries = Vec::new();
        let mut end = 0_u64;
        for tensor in &tensors {
            let WholeTensor { name, dtype, shape, .. } = tensor;
            let placed = Placed::new(tensor, &sources).map_err(|error| error.in_tensor(name))?;
            let len = byte_len(*dtype, shape)?;
            let start = end;
            let overflow = || ErrorKind::ShapeOverflow { shape: shape.clone() };
            end = start.checked_add(len).ok_or_else(overflow)?;
            if len > 0 {
                segments.push(Segment { name: name.clone(), start, end, placed });
            }
            let dtype = *dtype;
            let data_offsets = start..end;
            entries.push(HeaderEntry { name, dtype, shape, data_offsets });
        }
        let header = encode(metadata, entries.into_iter(), 8);
        let start = header.len() as u64;
        for segment in &mut segments {
            segment.start += start;
            segment.end = segment.end.saturating_add(start);
        }
        let byte_len = start.saturating_add(end);
        let whole = Whole { sources, index: None, header, segments, byte_len };
        Ok(Self { content: Content::Whole(Box::new(whole)) })
    }

    pub(in crate::checkpoint) fn stored(source: S) -> Self {
        Self { content: Content::Stored(source) }
    }
}

impl<S: ReadAt> Whole<S> {
    /// Returns the segments that have bytes of a range, and the part of the range in each, counted
    /// from its start.
    fn segments_of(&self, range: Range<u64>) -> impl Iterator<Item = (&Segment, Range<u64>)> {
        let first = self.segments.partition_point(|segment| segment.end <= range.start);
        let start = range.start;
        let end = range.end;
        self.segments[first..].iter().take_while(move |segment| segment.start < end).map(
            move |segment| {
                let to = end.min(segment.end) - segment.start;
                (segment, start.saturating_sub(segment.start)..to)
            },
        )
    }

    /// Returns the bytes of the sources that are read for a range: at most one range of each piece,
    /// with the number of its source.
    fn below(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        self.segments_of(range).flat_map(|(segment, part)| segment.placed.sources_of(part))
    }

    /// Reads blocks of tensors, with one call for each source.
    fn read_blocks(&self, mut blocks: Vec<(&Segment, TiledBlock<'_, '_>)>) -> io::Result<()> {
        let mut wanted: BTreeMap<usize, (&str, Vec<ReadRange<'_>>)> = BTreeMap::new();
        for (segment, block) in &mut blocks {
            for (tile, range) in block.ranges()? {
                let (source, offset) = segment.placed.starts[tile];
                let range = ReadRange { offset: offset + range.offset, ..range };
                let (_, ranges) = wanted.entry(source).or_insert((&segment.name, Vec::new()));
                ranges.push(range);
            }
        }
        for (source, (tensor, mut ranges)) in wanted {
            let (path, source) = &self.sources[source];
            source
                .read_ranges_at(&mut ranges)
                .map_err(|error| Error::io(error, path).in_tensor(tensor).through_io())?;
        }
        blocks.into_iter().for_each(|(_, block)| block.finish());
        Ok(())
    }
}

/// The most ranges of the sources that are held to announce them.
const MOST_HELD: usize = 1 << 10;

impl<S: ReadAt> ReadAt for Whole<S> {
    fn byte_len(&self) -> u64 {
        self.byte_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        // Copied bytes are in memory twice, so this limits them.
        let most = self.requests().map_or(PIECE, |requests| requests.byte_len);
        let mut blocks = Vec::new();
        let mut held = 0;
        for range in ranges {
            let (at, mut rest) = take_header(&self.header, self.byte_len, range)?;
            let end = at + rest.len() as u64;
            for (segment, part) in self.segments_of(at..end) {
                let (bytes, more) = rest.split_at_mut((part.end - part.start) as usize);
                for (number, bytes) in bytes.chunks_mut(most).enumerate() {
                    let start = part.start + (number * most) as u64;
                    held += bytes.len();
                    blocks.push((segment, TiledBlock::new(&segment.placed.tiles, start, bytes)));
                    if held >= most {
                        self.read_blocks(std::mem::take(&mut blocks))?;
                        held = 0;
                    }
                }
                rest = more;
            }
        }
        self.read_blocks(blocks)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let mut below = ranges.flat_map(|range| self.below(range));
        loop {
            let mut wanted = BTreeMap::<usize, Vec<Range<u64>>>::new();
            for (source, range) in below.by_ref().take(MOST_HELD) {
                let ranges = wanted.entry(source).or_default();
                match ranges.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => ranges.push(range),
                }
            }
            if wanted.is_empty() {
                return;
            }
            for (source, ranges) in wanted {
                self.sources[source].1.will_read(&mut ranges.into_iter());
            }
        }
    }

    fn has_read(&self, range: Range<u64>) {
        self.below(range).for_each(|(source, bytes)| self.sources[source].1.has_read(bytes));
    }

    fn requests(&self) -> Option<Requests> {
        self.sources.first().and_then(|(_, source)| source.requests())
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.sources.iter().try_for_each(|(path, source)| {
            source.check_unchanged().map_err(|error| Error::io(error, path).through_io())
        })
    }

    fn is_replaced(&self) -> io::Result<bool> {
        for (_, source) in &self.sources {
            if source.is_replaced()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<S: ReadAt> Assembled<S> {
    fn content(&self) -> &dyn ReadAt {
        match &self.content {
            Content::Stored(source) => source,
            Content::Whole(whole) => &**whole,
        }
    }
}

impl<S: ReadAt> ReadAt for Assembled<S> {
    fn byte_len(&self) -> u64 {
        self.content().byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.content().read_exact_at(buf, offset)
    }

    fn inner(&self) -> Option<&dyn ReadAt> {
        Some(self.content())
    }
}

/// Copies the part of a range that is in a header in memory. Returns the offset of the rest, and
/// its bytes.
pub(in crate::checkpoint) fn take_header<'a>(
    header: &[u8],
    byte_len: u64,
    ReadRange { offset, bytes }: &'a mut ReadRange<'_>,
) -> io::Result<(u64, &'a mut [u8])> {
    let end = offset.saturating_add(bytes.len() as u64);
    if end > byte_len {
        let message = format!("expected at least {end} bytes, found {byte_len}");
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
    }
    let start = usize::try_from(*offset).unwrap_or(usize::MAX);
    let header = header.get(start..).unwrap_or_default();
    let (head, rest) = bytes.split_at_mut(header.len().min(bytes.len()));
    head.copy_from_slice(&header[..head.len()]);
    Ok((*offset + head.len() as u64, rest))
}
