//! [`Computed`]: a file some of whose tensors are computed when they are read.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use super::assembled::take_header;
use super::computed_tensor::{Ahead, ComputedTensor, MOST, failed, round};
use super::{Checkpoint, CheckpointFile};
use crate::file::hash::remove_record;
use crate::file::io::{ReadAt, ReadRange, Requests, SafeTensors};
use crate::file::load::catalog::CatalogPlace;
use crate::format::convert::bytes_of;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::header::{HeaderEntry, Limits, Metadata, encode};
use crate::format::slice::read_range::Files;
use crate::format::tensor::shape::byte_len;

/// What takes the place of tensors of a checkpoint.
pub(crate) struct Replacement<'a> {
    pub(crate) tensors: Vec<Box<dyn ComputedTensor>>,
    /// By the names of stored tensors, the number of the computed one that takes the place; `None`
    /// for a tensor that is left out.
    pub(crate) instead: HashMap<&'a str, Option<usize>>,
    /// The numbers of computed tensors that are new. They come last in the last file.
    pub(crate) added: Vec<usize>,
    /// Other checkpoints whose bytes are read.
    pub(crate) others: Vec<Arc<Checkpoint<Box<dyn ReadAt>>>>,
    /// What is left of the metadata.
    pub(crate) metadata: &'a dyn Fn(&Metadata) -> Metadata,
}

/// A file of a checkpoint some of whose tensors are [quantised weights as
/// numbers](Checkpoint::dequantized), or [merged with adapters](Checkpoint::merged). It reads as a
/// safetensors file. The elements of these tensors are computed when they are read, from the bytes
/// of the part that is read.
pub struct Computed<S> {
    shared: Arc<Shared<S>>,
    /// The number of the file that this stands for.
    file: usize,
    /// The first bytes.
    header: Vec<u8>,
    /// What follows, in order and without gaps.
    segments: Vec<Segment>,
    byte_len: u64,
    /// The files whose bytes are read.
    used: BTreeSet<usize>,
}

/// A clone reads the same file.
impl<S> Clone for Computed<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            file: self.file,
            header: self.header.clone(),
            segments: self.segments.clone(),
            byte_len: self.byte_len,
            used: self.used.clone(),
        }
    }
}

/// What all files of a checkpoint read from.
struct Shared<S> {
    files: Vec<CheckpointFile<S>>,
    tensors: Vec<Box<dyn ComputedTensor>>,
    others: Vec<Arc<Checkpoint<Box<dyn ReadAt>>>>,
}

/// Consecutive bytes.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    len: u64,
    content: Content,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// The bytes of the file from this offset on.
    Copied(u64),
    /// The computed tensor of this number.
    Computed(usize),
}

impl<S> fmt::Debug for Computed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computed").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl<S> Computed<S> {
    fn path(&self) -> &Path {
        self.shared.files[self.file].path()
    }

    /// The source of the file that this stands for.
    pub fn stored(&self) -> &S {
        self.shared.files[self.file].archive.source()
    }

    /// The segments that have bytes of a range.
    fn segments_of(&self, start: u64, end: u64) -> &[Segment] {
        let first = self.segments.partition_point(|segment| segment.start + segment.len <= start);
        let rest = &self.segments[first..];
        &rest[..rest.partition_point(|segment| segment.start < end)]
    }

    /// The part of a segment that is in a range: its bytes in the file that this stands for, or the
    /// elements of a computed tensor.
    fn part_of(&self, segment: &Segment, range: &Range<u64>) -> Part {
        let start = range.start.saturating_sub(segment.start);
        let end = (range.end - segment.start).min(segment.len);
        match segment.content {
            Content::Copied(offset) => Part::Copied(offset + start..offset + end),
            Content::Computed(number) => {
                let size = bytes_of(self.shared.tensors[number].dtype(), 1) as u64;
                Part::Computed(number, start / size..end.div_ceil(size))
            }
        }
    }
}

/// A part of a segment.
enum Part {
    Copied(Range<u64>),
    Computed(usize, Range<u64>),
}

impl<S: ReadAt> ReadAt for Computed<S> {
    fn byte_len(&self) -> u64 {
        self.byte_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let mut copied = Vec::new();
        for range in ranges {
            let (mut at, mut rest) = take_header(&self.header, self.byte_len, range)?;
            let end = at + rest.len() as u64;
            for segment in self.segments_of(at, end) {
                let skipped = at - segment.start;
                let len = (segment.len - skipped).min(end - at) as usize;
                let (bytes, more) = rest.split_at_mut(len);
                match segment.content {
                    Content::Copied(offset) => {
                        copied.push(ReadRange { offset: offset + skipped, bytes });
                    }
                    Content::Computed(tensor) => self.compute(tensor, skipped, bytes)?,
                }
                (rest, at) = (more, at + len as u64);
            }
        }
        self.shared.files.read(self.file, &mut copied)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        let mut below: HashMap<usize, Vec<Range<u64>>> = HashMap::new();
        let mut wanted: HashMap<usize, Vec<Range<u64>>> = HashMap::new();
        for range in ranges {
            for segment in self.segments_of(range.start, range.end) {
                match self.part_of(segment, &range) {
                    Part::Copied(bytes) => below.entry(self.file).or_default().push(bytes),
                    Part::Computed(number, elements) => {
                        wanted.entry(number).or_default().push(elements);
                    }
                }
            }
        }
        for (number, elements) in wanted {
            let tensor = &self.shared.tensors[number];
            let bytes = elements.iter().filter_map(|it| tensor.source_bytes(it.clone()));
            bytes.for_each(|(file, bytes)| below.entry(file).or_default().push(bytes));
            tensor.will_read(&elements);
        }
        for (file, ranges) in below {
            self.shared.files[file].archive.source().will_read(&mut ranges.into_iter());
        }
    }

    fn has_read(&self, range: Range<u64>) {
        for segment in self.segments_of(range.start, range.end) {
            let below = match self.part_of(segment, &range) {
                Part::Copied(bytes) => Some((self.file, bytes)),
                Part::Computed(number, elements) => {
                    let tensor = &self.shared.tensors[number];
                    tensor.has_read(elements.clone());
                    tensor.source_bytes(elements)
                }
            };
            if let Some((file, bytes)) = below {
                self.shared.files[file].archive.source().has_read(bytes);
            }
        }
    }

    fn requests(&self) -> Option<Requests> {
        self.stored().requests()
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
    fn compute(&self, tensor: usize, skipped: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (files, tensor) = (&self.shared.files, &*self.shared.tensors[tensor]);
        let size = bytes_of(tensor.dtype(), 1);
        let mut first = skipped / size as u64;
        let mut inside = (skipped % size as u64) as usize;
        let count = (inside + bytes.len()).div_ceil(size) as u64;
        let files = &Ahead::of(files, tensor.source_bytes(first..first + count))?;
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
            (rest, first, inside) = (more, first + count as u64, 0);
        }
        Ok(())
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// The same checkpoint with computed tensors in place of others.
    pub(crate) fn computed(self, replacement: Replacement<'_>) -> Result<Checkpoint<Computed<S>>> {
        let Replacement { tensors, instead, added, others, metadata } = replacement;
        self.with_files(|files, places, of_all| {
            let shared = Arc::new(Shared { files, tensors, others });
            let mut places = places.into_iter().peekable();
            let (mut new_files, mut new_places) = (Vec::new(), Vec::new());
            for number in 0..shared.files.len() {
                let mut kept = Vec::new();
                while let Some(place) = places.next_if(|place| place.file == number) {
                    kept.push(place.position);
                }
                let is_last = number + 1 == shared.files.len();
                let change = (&instead, if is_last { &added[..] } else { &[] }, metadata);
                let file = file(&shared, number, &kept, change)?;
                // A file without such tensors is the same, and may have some that are not in the
                // index.
                if !file.archive.source().header.is_empty() {
                    kept = (0..file.archive.header().len()).collect();
                }
                let place = |position| CatalogPlace { file: number, position };
                new_places.extend(kept.into_iter().map(place));
                new_files.push(file);
            }
            Ok((new_files, new_places, metadata(&of_all)))
        })
    }
}

/// What takes the place of tensors of a file, which are new in it, and what is left of the
/// metadata.
type Change<'a> =
    (&'a HashMap<&'a str, Option<usize>>, &'a [usize], &'a dyn Fn(&Metadata) -> Metadata);

/// A file, of which the tensors at these positions belong to the checkpoint.
fn file<S: ReadAt>(
    shared: &Arc<Shared<S>>,
    file: usize,
    positions: &[usize],
    (instead, added, metadata): Change<'_>,
) -> Result<CheckpointFile<Computed<S>>> {
    let CheckpointFile { path, archive } = &shared.files[file];
    let header = archive.header();
    let infos = || positions.iter().filter_map(|&position| header.tensor_at(position));
    let mut source = Computed {
        shared: Arc::clone(shared),
        file,
        header: Vec::new(),
        segments: Vec::new(),
        byte_len: archive.source().byte_len(),
        used: BTreeSet::from([file]),
    };
    if added.is_empty() && !infos().any(|info| instead.contains_key(info.name())) {
        let (len, content) = (source.byte_len, Content::Copied(0));
        source.segments.push(Segment { start: 0, len, content });
        let archive = SafeTensors::from_parts(header.clone(), source);
        return Ok(CheckpointFile { path: path.clone(), archive });
    }
    let mut contents = Vec::new();
    for info in infos() {
        match instead.get(info.name()) {
            Some(Some(number)) => contents.push((None, Content::Computed(*number))),
            Some(None) => {}
            None => {
                let offset = header.data_start() + info.data_offsets().start;
                contents.push((Some(info), Content::Copied(offset)));
            }
        }
    }
    contents.extend(added.iter().map(|&number| (None, Content::Computed(number))));
    let mut entries = Vec::new();
    let mut end = 0;
    for (info, content) in contents {
        let (name, dtype, shape) = match (info, content) {
            (Some(info), _) => (info.name(), info.dtype(), info.shape()),
            (None, Content::Computed(number)) => {
                let tensor = &shared.tensors[number];
                source.used.extend(tensor.files());
                (tensor.name(), tensor.dtype(), tensor.shape())
            }
            (None, Content::Copied(_)) => continue,
        };
        let len = byte_len(dtype, shape)?;
        let data_offsets = end..end + len;
        source.segments.push(Segment { start: end, len, content });
        end = data_offsets.end;
        entries.push(HeaderEntry { name, dtype, shape, data_offsets });
    }
    let mut metadata = metadata(archive.metadata());
    // Digests of what is stored are none of what is computed.
    remove_record(&mut metadata);
    source.header = encode(&metadata, entries.into_iter(), 8);
    let start = source.header.len() as u64;
    source.segments.iter_mut().for_each(|segment| segment.start += start);
    source.segments.retain(|segment| segment.len > 0);
    source.byte_len = start + end;
    let mut limits = Limits::default();
    (limits.header_bytes, limits.metadata_entries) = (u32::MAX.into(), usize::MAX);
    let archive = SafeTensors::from_source_with(source, &limits);
    Ok(CheckpointFile {
        path: path.clone(),
        archive: archive.map_err(|error| error.in_path(path))?,
    })
}
