//! [`Assembled`]: a file with tensors that are made of pieces of other files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::whole_tensor::WholeTensor;
use crate::checkpoint::Strided;
use crate::checkpoint::computed::strided::read::{self, Failed, Part};
use crate::checkpoint::index::Index;
use crate::checkpoint::segments::Segments;
use crate::file::io::{FileSource, ReadAt, ReadRange, Requests};
use crate::file::save::spec::Spec;
use crate::format::error::{Error, Result};
use crate::format::header::Metadata;
use crate::format::slice::read_range::Files;

/// A file with tensors that are made of pieces of other files, or a stored file itself. It reads as
/// a safetensors file. For a part of a tensor, only the bytes of the needed pieces are read.
///
/// [`Checkpoint::open`](crate::Checkpoint::open) makes one from the files that the ranks of a job
/// have saved. An index lists the tensors of all files once; here one tensor has pieces in several
/// files, in any number of dimensions.
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
    segments: Segments<Strided>,
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
    pub(crate) fn into_sources(self, path: PathBuf) -> (Vec<(PathBuf, S)>, Option<Index>) {
        match self.content {
            Content::Stored(source) => (vec![(path, source)], None),
            Content::Whole(whole) => (whole.sources, whole.index),
        }
    }

    /// Returns whether this is a file as it is.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.content, Content::Stored(_))
    }

    /// Returns the source of a file as it is.
    pub(crate) fn into_stored(self) -> Option<S> {
        match self.content {
            Content::Stored(source) => Some(source),
            Content::Whole(_) => None,
        }
    }

    /// Keeps the index of the sources.
    pub(crate) fn with_index(mut self, index: Option<Index>) -> Self {
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
        let mut placed = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            let WholeTensor { name, dtype, shape, .. } = tensor;
            let spec = Spec { name, dtype: *dtype, shape };
            let tensor = tensor.placed(&sources).map_err(|error| error.in_tensor(name))?;
            placed.push((spec, tensor));
        }
        let segments = Segments::new(placed, metadata)?;
        let whole = Whole { sources, index: None, segments };
        Ok(Self { content: Content::Whole(Box::new(whole)) })
    }

    pub(crate) fn stored(source: S) -> Self {
        Self { content: Content::Stored(source) }
    }
}

/// Reads from the sources by their numbers.
impl<S: ReadAt> Files for Vec<(PathBuf, S)> {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self[file].1.read_ranges_at(ranges)
    }
}

/// The most ranges of a source that are held to announce them.
const MOST_HELD: usize = 1 << 10;

impl<S: ReadAt> ReadAt for Whole<S> {
    fn byte_len(&self) -> u64 {
        self.segments.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let mut parts = Vec::new();
        for range in ranges {
            for (tensor, part, bytes) in self.segments.divide(range)? {
                parts.push(Part { tensor, start: part.start, bytes });
            }
        }
        let failed = |Failed { file, tensor, error }: Failed<'_>| {
            Error::io(error, &self.sources[file].0).in_tensor(tensor).through_io()
        };
        read::read(&self.sources, &mut parts).map_err(failed)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let announce = |source: usize, ranges: &mut Vec<_>| {
            self.sources[source].1.will_read(&mut ranges.drain(..));
        };
        let mut below = BTreeMap::<_, Vec<_>>::new();
        let ranges = ranges.flat_map(|range| self.segments.within(range));
        read::below(ranges, &mut |source, range| {
            let ranges = below.entry(source).or_default();
            ranges.push(range);
            if ranges.len() == MOST_HELD {
                announce(source, ranges);
            }
        });
        below.into_iter().for_each(|(source, mut ranges)| announce(source, &mut ranges));
    }

    fn has_read(&self, range: Range<u64>) {
        let has_read = &mut |source: usize, range| self.sources[source].1.has_read(range);
        read::below(self.segments.within(range), has_read);
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
