//! [`Computed`]: a file in which some tensors are computed when they are read, as numbers, or
//! arranged from bytes of others.

pub(super) mod files;
pub(super) mod strided;
pub(super) mod tensor;

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io, iter};

use crate::checkpoint::segments::Segments;
use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::file::io::{ReadAt, ReadRange, Requests};
use crate::file::save::spec::Spec;
use crate::format::convert::bytes_of;
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::format::slice::read_range::Files;
use strided::Strided;
use strided::read::{self, Failed, Part};
use tensor::{Ahead, ComputedTensor, MOST, failed, round};

/// A file of a checkpoint in which some tensors are [quantised weights as
/// numbers](Checkpoint::dequantized), [merged with adapters](Checkpoint::merged), or
/// [arranged](Checkpoint::arranged) from others. It reads as a safetensors file. The elements of
/// these tensors are computed when they are read, from the bytes of the part that is read.
pub struct Computed<S> {
    pub(crate) shared: Arc<Shared<S>>,
    /// The number of the stored file.
    pub(crate) file: usize,
    pub(crate) segments: Segments<Content>,
    /// The files that are read.
    pub(crate) used: BTreeSet<usize>,
    /// How a file with transposed tensors is read: longer reads have more neighbours.
    turned: Option<Requests>,
}

/// A clone reads the same file.
impl<S> Clone for Computed<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            file: self.file,
            segments: self.segments.clone(),
            used: self.used.clone(),
            turned: self.turned,
        }
    }
}

/// The sources of all files of a checkpoint.
pub(crate) struct Shared<S> {
    pub(crate) files: Vec<CheckpointFile<S>>,
    pub(crate) tensors: Vec<NewTensor>,
    /// Other checkpoints that the tensors are computed from.
    pub(crate) others: Vec<Arc<Checkpoint<Box<dyn ReadAt>>>>,
}

/// A tensor that is not stored.
pub(crate) enum NewTensor {
    Numbers(Box<dyn ComputedTensor>),
    Strided(Strided),
}

impl NewTensor {
    pub(crate) fn numbers(tensor: impl ComputedTensor + 'static) -> Self {
        Self::Numbers(Box::new(tensor))
    }

    fn spec(&self) -> Spec<'_> {
        match self {
            Self::Numbers(it) => Spec { name: it.name(), dtype: it.dtype(), shape: it.shape() },
            Self::Strided(it) => Spec { name: &it.name, dtype: it.dtype, shape: &it.shape },
        }
    }

    fn is_turned(&self) -> bool {
        matches!(self, Self::Strided(tensor) if tensor.is_turned())
    }

    /// Returns the numbers of the files that are read.
    fn files(&self) -> Vec<usize> {
        match self {
            Self::Numbers(tensor) => tensor.files(),
            Self::Strided(tensor) => tensor.stored().map(|(file, ..)| file).collect(),
        }
    }
}

/// Where the bytes of a tensor come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// The bytes of the file from this offset on.
    Copied(u64),
    /// The computed tensor of this number.
    Computed(usize),
}

impl<S> fmt::Debug for Computed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.shared.files[self.file].path();
        f.debug_struct("Computed").field("path", &path).finish_non_exhaustive()
    }
}

impl<S> Computed<S> {
    /// Returns whether this is a file as it is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.segments.is_stored()
    }

    /// Returns the source of the stored file.
    pub fn stored(&self) -> &S {
        self.shared.files[self.file].archive.source()
    }

    /// Returns the bytes of files that are read for ranges, by the number of the file, and the
    /// elements of computed tensors, by the number of the tensor.
    fn below(
        &self,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
    ) -> (HashMap<usize, Ranges>, HashMap<usize, Elements<'_>>) {
        let mut below = HashMap::<usize, Vec<_>>::new();
        let mut computed = HashMap::new();
        let mut strided = Vec::new();
        let mut add = |file, bytes| below.entry(file).or_default().push(bytes);
        for (content, bytes) in ranges.flat_map(|range| self.segments.within(range)) {
            let number = match *content {
                Content::Copied(offset) => {
                    add(self.file, offset + bytes.start..offset + bytes.end);
                    continue;
                }
                Content::Computed(number) => number,
            };
            match &self.shared.tensors[number] {
                NewTensor::Strided(tensor) => strided.push((tensor, bytes)),
                NewTensor::Numbers(tensor) => {
                    let size = bytes_of(tensor.dtype(), 1) as u64;
                    let elements = bytes.start / size..bytes.end.div_ceil(size);
                    if let Some((file, bytes)) = tensor.source_bytes(elements.clone()) {
                        add(file, bytes);
                    }
                    computed.entry(number).or_insert((&**tensor, vec![])).1.push(elements);
                }
            }
        }
        read::below(strided.into_iter(), &mut add);
        (below, computed)
    }
}

type Ranges = Vec<Range<u64>>;

/// A computed tensor, and ranges of its elements.
type Elements<'t> = (&'t dyn ComputedTensor, Ranges);

impl<S: ReadAt> ReadAt for Computed<S> {
    fn byte_len(&self) -> u64 {
        self.segments.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let mut copied = Vec::new();
        let mut parts = Vec::new();
        for range in ranges {
            for (content, part, bytes) in self.segments.divide(range)? {
                match *content {
                    Content::Copied(offset) => {
                        copied.push(ReadRange { offset: offset + part.start, bytes });
                    }
                    Content::Computed(number) => match &self.shared.tensors[number] {
                        NewTensor::Numbers(tensor) => self.compute(&**tensor, part.start, bytes)?,
                        NewTensor::Strided(tensor) => {
                            parts.push(Part { tensor, start: part.start, bytes });
                        }
                    },
                }
            }
        }
        let failed = |Failed { file, error, .. }: Failed<'_>| match file == self.file {
            true => error,
            false => Error::io(error, self.shared.files[file].path()).through_io(),
        };
        read::read(&self.shared.files, &mut parts).map_err(failed)?;
        match &mut copied[..] {
            [] => Ok(()),
            copied => self.shared.files.read(self.file, copied),
        }
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let (below, computed) = self.below(ranges);
        for (tensor, elements) in computed.into_values() {
            tensor.will_read(&elements);
        }
        for (file, ranges) in below {
            self.shared.files[file].archive.source().will_read(&mut ranges.into_iter());
        }
    }

    fn has_read(&self, range: Range<u64>) {
        let (below, computed) = self.below(&mut iter::once(range));
        for (tensor, elements) in computed.into_values() {
            elements.into_iter().for_each(|elements| tensor.has_read(elements));
        }
        for (file, ranges) in below {
            let source = self.shared.files[file].archive.source();
            ranges.into_iter().for_each(|range| source.has_read(range));
        }
    }

    fn requests(&self) -> Option<Requests> {
        self.stored().requests().or(self.turned)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.used.iter().try_for_each(|&file| {
            let file = &self.shared.files[file];
            file.archive.source().check_unchanged().map_err(|error| {
                let problem = format!("{}: {error}", file.path().display());
                io::Error::new(error.kind(), problem)
            })
        })?;
        self.shared.others.iter().try_for_each(|other| other.check_unchanged().map_err(failed))
    }

    fn is_replaced(&self) -> io::Result<bool> {
        self.stored().is_replaced()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.stored().as_any()
    }
}

impl<S: ReadAt> Computed<S> {
    /// Reads bytes of a computed tensor, from this byte on.
    fn compute(
        &self,
        tensor: &dyn ComputedTensor,
        skipped: u64,
        bytes: &mut [u8],
    ) -> io::Result<()> {
        let size = bytes_of(tensor.dtype(), 1);
        let mut first = skipped / size as u64;
        let mut inside = (skipped % size as u64) as usize;
        let count = (inside + bytes.len()).div_ceil(size) as u64;
        let source_bytes = tensor.source_bytes(first..first + count);
        let files = &Ahead::read(&self.shared.files, source_bytes)?;
        if cfg!(target_endian = "little")
            && tensor.dtype() == Dtype::F32
            && inside == 0
            && let Ok(numbers) = bytemuck::try_cast_slice_mut(bytes)
        {
            return tensor.read(files, first, numbers);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = (inside + rest.len()).div_ceil(size).min(MOST);
            let mut numbers = vec![0.0_f32; count];
            tensor.read(files, first, &mut numbers)?;
            let len = (count * size - inside).min(rest.len());
            let (these, more) = rest.split_at_mut(len);
            round(numbers, tensor.dtype(), inside, these).map_err(failed)?;
            rest = more;
            first += count as u64;
            inside = 0;
        }
        Ok(())
    }
}
