//! [`Dequantized`]: a file whose quantised weights are numbers.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use serde_json::Value;

use super::QuantizedWeight;
use super::matrix::Files;
use super::weight::Weight;
use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::header::{HeaderEntry, Limits, Metadata, encode};
use crate::io::{ReadAt, ReadRange, Requests, SafeTensors};
use crate::load::catalog::CatalogPlace;
use crate::tensor::shape::byte_len;

/// A file of a [dequantised](Checkpoint::dequantized) checkpoint. It reads as a safetensors file in
/// which each quantised weight is one F32 tensor. The numbers are computed when they are read, from
/// the codes and scales of the part that is read.
pub struct Dequantized<S> {
    files: Arc<Vec<CheckpointFile<S>>>,
    weights: Arc<Vec<(QuantizedWeight, Weight)>>,
    /// The numbers of the weights by their names.
    names: Arc<HashMap<String, usize>>,
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

impl<S> fmt::Debug for Dequantized<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dequantized").field("path", &self.path()).finish_non_exhaustive()
    }
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
    /// The numbers of the weight with this number.
    Numbers(usize),
}

impl<S> Dequantized<S> {
    fn path(&self) -> &Path {
        self.files[self.file].path()
    }

    /// The file that this stands for, with its tensors as they are stored.
    pub fn stored(&self) -> &SafeTensors<S> {
        self.files[self.file].safetensors()
    }

    /// The quantised weight of this name, whose numbers are read.
    pub fn weight(&self, name: &str) -> Option<&QuantizedWeight> {
        Some(&self.weights[*self.names.get(name)?].0)
    }

    /// The segments that have bytes of a range.
    fn segments_of(&self, start: u64, end: u64) -> &[Segment] {
        let first = self.segments.partition_point(|segment| segment.start + segment.len <= start);
        let rest = &self.segments[first..];
        &rest[..rest.partition_point(|segment| segment.start < end)]
    }
}

impl<S: ReadAt> Files for Vec<CheckpointFile<S>> {
    fn read(&self, file: usize, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self[file].archive.source().read_ranges_at(ranges)
    }
}

impl<S: ReadAt + 'static> ReadAt for Dequantized<S> {
    fn byte_len(&self) -> u64 {
        self.byte_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let mut copied = Vec::new();
        for range in ranges {
            let start = range.offset;
            let end = start.saturating_add(range.bytes.len() as u64);
            if end > self.byte_len {
                let message = format!("expected at least {end} bytes, found {}", self.byte_len);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            let of_header = (self.header.len() as u64).min(end).saturating_sub(start) as usize;
            let (head, mut rest) = range.bytes.split_at_mut(of_header);
            head.copy_from_slice(
                &self.header[start.min(self.header.len() as u64) as usize..][..of_header],
            );
            let mut at = start + of_header as u64;
            for segment in self.segments_of(at, end) {
                let skipped = at - segment.start;
                let len = (segment.len - skipped).min(end - at) as usize;
                let (bytes, more) = rest.split_at_mut(len);
                match segment.content {
                    Content::Copied(offset) => {
                        copied.push(ReadRange { offset: offset + skipped, bytes });
                    }
                    Content::Numbers(weight) => self.read_numbers(weight, skipped, bytes)?,
                }
                (rest, at) = (more, at + len as u64);
            }
        }
        self.files.read(self.file, &mut copied)
    }

    fn requests(&self) -> Option<Requests> {
        self.stored().source().requests()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.used.iter().try_for_each(|&file| {
            let file = &self.files[file];
            file.archive.source().check_unchanged().map_err(|error| {
                let problem = format!("{}: {error}", file.path().display());
                io::Error::new(error.kind(), problem)
            })
        })
    }

    fn is_replaced(&self) -> io::Result<bool> {
        self.stored().source().is_replaced()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl<S: ReadAt> Dequantized<S> {
    /// Reads bytes of the numbers of a weight, from this byte on.
    fn read_numbers(&self, weight: usize, skipped: u64, bytes: &mut [u8]) -> io::Result<()> {
        /// The bytes of a number.
        const SIZE: usize = 4;
        let (files, numbers) = (&*self.files, &self.weights[weight].1.numbers);
        let first = skipped / SIZE as u64;
        let inside = (skipped % SIZE as u64) as usize;
        if cfg!(target_endian = "little")
            && inside == 0
            && let Ok(numbers_out) = bytemuck::try_cast_slice_mut(bytes)
        {
            return numbers.read(files, first, numbers_out);
        }
        let mut values = vec![0.0; (inside + bytes.len()).div_ceil(SIZE)];
        numbers.read(files, first, &mut values)?;
        let read: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        bytes.copy_from_slice(&read[inside..][..bytes.len()]);
        Ok(())
    }
}

/// The same checkpoint with these weights as numbers.
pub(super) fn dequantized<S: ReadAt + 'static>(
    checkpoint: Checkpoint<S>,
    weights: Vec<(QuantizedWeight, Weight)>,
) -> Result<Checkpoint<Dequantized<S>>> {
    let weights = Arc::new(weights);
    checkpoint.with_files(|files, places, metadata| {
        let files = Arc::new(files);
        let view = View::new(&weights);
        let mut places = places.into_iter().peekable();
        let (mut new_files, mut new_places) = (Vec::new(), Vec::new());
        for number in 0..files.len() {
            let mut kept = Vec::new();
            while let Some(place) = places.next_if(|place| place.file == number) {
                kept.push(place.position);
            }
            let file = view.file(&files, number, &kept)?;
            // A file without weights is the same, and may have tensors that are not in the index.
            if !file.archive.source().header.is_empty() {
                kept = (0..file.archive.header().len()).collect();
            }
            let place = |position| CatalogPlace { file: number, position };
            new_places.extend(kept.into_iter().map(place));
            new_files.push(file);
        }
        Ok((new_files, new_places, view.metadata(&metadata)))
    })
}

/// What becomes of the tensors of a checkpoint.
struct View<'w> {
    weights: &'w Arc<Vec<(QuantizedWeight, Weight)>>,
    names: Arc<HashMap<String, usize>>,
    /// The weight whose codes a tensor has.
    codes: HashMap<&'w str, usize>,
    /// The tensors that store weights.
    members: BTreeSet<&'w str>,
}

impl<'w> View<'w> {
    fn new(weights: &'w Arc<Vec<(QuantizedWeight, Weight)>>) -> Self {
        let names = weights.iter().enumerate().map(|(at, (about, _))| (about.name.clone(), at));
        let codes = weights.iter().enumerate();
        let codes =
            codes.filter_map(|(at, (about, _))| Some((about.tensors.first()?.as_str(), at)));
        let members = weights.iter().flat_map(|(about, _)| &about.tensors).map(String::as_str);
        Self {
            weights,
            names: Arc::new(names.collect()),
            codes: codes.collect(),
            members: members.collect(),
        }
    }

    /// A file, of which the tensors at these positions belong to the checkpoint.
    fn file<S: ReadAt + 'static>(
        &self,
        files: &Arc<Vec<CheckpointFile<S>>>,
        file: usize,
        positions: &[usize],
    ) -> Result<CheckpointFile<Dequantized<S>>> {
        let CheckpointFile { path, archive } = &files[file];
        let header = archive.header();
        let infos: Vec<_> =
            positions.iter().filter_map(|&position| header.tensor_at(position)).collect();
        let mut source = Dequantized {
            files: Arc::clone(files),
            weights: Arc::clone(self.weights),
            names: Arc::clone(&self.names),
            file,
            header: Vec::new(),
            segments: Vec::new(),
            byte_len: archive.source().byte_len(),
            used: BTreeSet::from([file]),
        };
        if !infos.iter().any(|info| self.members.contains(info.name())) {
            let (len, content) = (source.byte_len, Content::Copied(0));
            source.segments.push(Segment { start: 0, len, content });
            let archive = SafeTensors::from_parts(header.clone(), source);
            return Ok(CheckpointFile { path: path.clone(), archive });
        }
        let mut entries = Vec::new();
        let mut end = 0;
        for info in &infos {
            let (name, dtype, shape, content) = match self.codes.get(info.name()) {
                Some(&number) => {
                    let (_, weight) = &self.weights[number];
                    source.used.extend(weight.tensors.iter().map(|tensor| tensor.file));
                    (&*weight.name, Dtype::F32, &*weight.shape, Content::Numbers(number))
                }
                None if self.members.contains(info.name()) => continue,
                None => {
                    let offset = header.data_start() + info.data_offsets().start;
                    (info.name(), info.dtype(), info.shape(), Content::Copied(offset))
                }
            };
            let len = byte_len(dtype, shape)?;
            let data_offsets = end..end + len;
            source.segments.push(Segment { start: end, len, content });
            end = data_offsets.end;
            entries.push(HeaderEntry { name, dtype, shape, data_offsets });
        }
        let metadata = self.metadata(archive.metadata());
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

    /// The metadata without what describes how the weights are stored.
    fn metadata(&self, metadata: &Metadata) -> Metadata {
        let mut kept = metadata.clone();
        if self.names.is_empty() {
            return kept;
        }
        if let Some(json) = kept.remove(LAYERS) {
            let json = self.without(&json, "/layers");
            kept.extend(json.map(|json| (LAYERS.to_owned(), json)));
        }
        if let Some(json) = kept.remove(TENSOR_NAMES) {
            let before = kept.len();
            kept.retain(|key, _| !self.names.contains_key(key));
            // Without a weight of torchao, what is left says of each tensor that it is one.
            let is_plain = |json: &String| json.starts_with("{\"_type\": \"Tensor\"");
            let others = kept.values().filter(|json| json.starts_with("{\"_type\""));
            if before > kept.len() && others.clone().all(is_plain) {
                kept.retain(|_, json| !is_plain(json));
            } else if let Some(json) = self.without(&json, "") {
                kept.insert(TENSOR_NAMES.to_owned(), json);
            }
        }
        kept
    }

    /// A JSON without what it says of the modules of these weights, in the object or list at
    /// this pointer. `None` if nothing is left there.
    fn without(&self, json: &str, pointer: &str) -> Option<String> {
        let Ok(mut value) = serde_json::from_str::<Value>(json) else {
            return Some(json.to_owned());
        };
        let is_left = match value.pointer_mut(pointer) {
            Some(Value::Object(layers)) => {
                layers.retain(|module, _| !self.names.contains_key(&format!("{module}.weight")));
                !layers.is_empty()
            }
            Some(Value::Array(names)) => {
                let is_number = |name: &str| self.names.contains_key(name);
                names.retain(|name| !name.as_str().is_some_and(is_number));
                !names.is_empty()
            }
            _ => true,
        };
        is_left.then(|| value.to_string())
    }
}

/// The key of ComfyUI's metadata with the formats of modules.
const LAYERS: &str = "_quantization_metadata";

/// The key of torchao's metadata that lists its tensors.
const TENSOR_NAMES: &str = "tensor_names";
