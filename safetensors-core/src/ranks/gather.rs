//! [`join_parts`]: the whole tensors of a checkpoint whose files have parts of them.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use super::parts::{PartRecord, read_record};
use crate::checkpoint::Checkpoint;
use crate::convert::{find_scales, may_have_scales};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, RankProblem, Result};
use crate::header::{Metadata, PARTS_KEY};
use crate::io::{FileSource, ReadAt};
use crate::load::LazyTensor;
use crate::load::catalog::alias_of;
use crate::load::streaming::PIECE;
use crate::load::tiled::TiledBlock;
use crate::slice::{Tile, Tiles};
use crate::tensor::{ScaleSource, Sink, TensorSource, shape};

/// Whether files of a checkpoint have parts of tensors, as
/// [`RankSaver::save`](super::RankSaver::save) saves them.
pub fn is_divided<S>(checkpoint: &Checkpoint<S>) -> bool {
    let mut files = checkpoint.files().iter();
    files.any(|file| file.safetensors().metadata().contains_key(PARTS_KEY))
}

/// The whole tensors of a checkpoint, in the order of its files. Those whose parts lie in several
/// files are gathered when they are written. A checkpoint without parts gives its tensors as they
/// are. No data is read yet.
///
/// ```
/// use safetensors_core::ranks::{self, Division, RankRules, RankSaver};
/// use safetensors_core::{Checkpoint, SaveOptions, ShardOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let values = [0_u8, 1, 2, 3, 4, 5, 6, 7];
/// let whole = TensorView::from_slice(&[2, 4], &values)?;
/// let rules = RankRules::new().rule("w", Division::Split { dim: 1 })?;
/// let plan = rules.plan_tensors([("w", whole.dtype(), vec![2, 4])], 2)?;
/// for rank in 0..2 {
///     let part = whole.slice((.., rank * 2..rank * 2 + 2))?;
///     RankSaver::new(&plan, rank, "step-1").save(dir.path(), [("w", part)], &ShardOptions::new())?;
/// }
///
/// let divided = Checkpoint::open(dir.path())?;
/// let gathered = ranks::join_parts(&divided)?;
/// let path = dir.path().join("plain.safetensors");
/// save(&path, gathered.iter().map(|w| (w.name(), w)), &SaveOptions::new())?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("w")?.read()?.as_slice::<u8>()?, values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`RankProblem::BadParts`] if the record of a file is malformed, or if the parts of a tensor do
/// not make it up: if one is missing, or two overlap or differ in dtype;
/// [`ErrorKind::DuplicateTensor`].
pub fn join_parts<S>(checkpoint: &Checkpoint<S>) -> Result<Vec<GatheredTensor<'_, S>>> {
    let mut records = Vec::new();
    for file in checkpoint.files() {
        records.push(read_record(file)?);
    }
    let mut gathered: Vec<GatheredTensor<'_, S>> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    for tensor in checkpoint.tensors() {
        let record = records.get(tensor.file_index()).and_then(|record| record.get(tensor.name()));
        let name = record.map_or(tensor.name(), |record| &record.tensor);
        match (positions.get(name), record) {
            (None, _) => {
                positions.insert(name.to_owned(), gathered.len());
                gathered.push(GatheredTensor::begin(tensor, record));
            }
            (Some(&position), Some(record)) => gathered[position].add(tensor, record)?,
            (Some(_), None) => return Err(tensor.locate(ErrorKind::DuplicateTensor.into())),
        }
    }
    gathered.iter_mut().try_for_each(GatheredTensor::finish)?;
    if gathered.iter().any(|weight| may_have_scales(weight.dtype())) {
        find_all_scales(&mut gathered, &positions, checkpoint.metadata());
    }
    Ok(gathered)
}

/// Finds the scales of each quantised weight, beside its name or an alias.
fn find_all_scales<S>(
    gathered: &mut [GatheredTensor<'_, S>],
    positions: &HashMap<String, usize>,
    metadata: &Metadata,
) {
    let named = |name: &str| positions.get(name).copied();
    let (mut aliases, mut aliases_of) = (HashMap::new(), HashMap::<usize, Vec<&str>>::new());
    for (key, value) in metadata {
        if let Some(position) = alias_of(key, value, named) {
            aliases.insert(key.as_str(), position);
            aliases_of.entry(position).or_default().push(key);
        }
    }
    let scales_of = |(position, weight): (usize, &GatheredTensor<'_, S>)| {
        if !may_have_scales(weight.dtype()) {
            return None;
        }
        let aliases_of = aliases_of.get(&position).into_iter().flatten().copied();
        let names = iter::once(weight.name()).chain(aliases_of);
        find_scales(names, |name| named(name).or_else(|| aliases.get(name).copied()))
    };
    let found: Vec<_> = gathered.iter().enumerate().map(scales_of).collect();
    for (position, found) in found.into_iter().enumerate() {
        let Some((scales, other)) = found else { continue };
        let other = other.map(|other| gathered[other].name.clone());
        gathered[position].scales = Some(Box::new((gathered[scales].clone(), other)));
    }
}

/// A whole tensor whose parts lie in the files of a checkpoint. It is a [`TensorSource`] that reads
/// pieces of at most 1 MiB.
#[derive(Debug)]
pub struct GatheredTensor<'a, S = FileSource> {
    name: String,
    shape: Vec<usize>,
    /// The dimension that is cut; `None` if there is one part, the whole tensor.
    dim: Option<usize>,
    /// The parts, with their first positions.
    parts: Vec<(usize, LazyTensor<'a, S>)>,
    /// How the parts make up the tensor; `None` if there is one part.
    tiles: Option<Arc<Tiles>>,
    /// The scales of a quantised weight, and the name of others, beside another of its names.
    scales: Option<Box<(Self, Option<String>)>>,
}

impl<S> Clone for GatheredTensor<'_, S> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            shape: self.shape.clone(),
            dim: self.dim,
            parts: self.parts.clone(),
            tiles: self.tiles.clone(),
            scales: self.scales.clone(),
        }
    }
}

impl<'a, S> GatheredTensor<'a, S> {
    /// The name of the whole tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub(crate) fn dtype(&self) -> Dtype {
        // There is always a part.
        self.parts.first().map_or(Dtype::U8, |(_, part)| part.dtype())
    }

    /// The shape of the whole tensor.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The tensors in the files that it is made of, in the order of their positions.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = &LazyTensor<'a, S>> {
        self.parts.iter().map(|(_, part)| part)
    }

    /// The tensor with the scales of a quantised weight, if the checkpoint has one, see
    /// [`LazyTensor::scales`].
    pub(crate) fn scales(&self) -> Option<&Self> {
        self.scales.as_ref().map(|scales| &scales.0)
    }

    /// The dimension that is cut; `None` if the tensor lies in one file as it is.
    pub(crate) fn dim(&self) -> Option<usize> {
        self.dim
    }

    /// The first position and the shape of the part that a file has under this name.
    pub(super) fn saved(&self, name: &str) -> Option<(usize, &'a [usize])> {
        let part = self.parts.iter().find(|(_, part)| part.name() == name);
        part.map(|(offset, part)| (*offset, part.shape()))
    }

    fn begin(tensor: LazyTensor<'a, S>, record: Option<&PartRecord>) -> Self {
        match record {
            None => Self {
                name: tensor.name().into(),
                shape: tensor.shape().to_vec(),
                dim: None,
                parts: vec![(0, tensor)],
                tiles: None,
                scales: None,
            },
            Some(record) => Self {
                name: record.tensor.clone(),
                shape: record.shape.clone(),
                dim: Some(record.dim),
                parts: vec![(record.offset, tensor)],
                tiles: None,
                scales: None,
            },
        }
    }

    fn add(&mut self, tensor: LazyTensor<'a, S>, record: &PartRecord) -> Result<()> {
        if self.dim.is_none() {
            return Err(tensor.locate(ErrorKind::DuplicateTensor.into()));
        }
        if self.dim != Some(record.dim)
            || self.shape != record.shape
            || self.dtype() != tensor.dtype()
        {
            let first = self.parts().next().map_or("", |part| part.name());
            let problem = format!("it is no part of the same tensor as {first:?}");
            return Err(tensor.locate(RankProblem::BadParts { problem }.into()));
        }
        self.parts.push((record.offset, tensor));
        Ok(())
    }

    /// Checks that the parts make up the tensor.
    fn finish(&mut self) -> Result<()> {
        let Some(dim) = self.dim else { return Ok(()) };
        // Of two parts with one offset, the first must be empty.
        self.parts.sort_by_key(|(offset, part)| (*offset, part.shape()[dim]));
        let tile = |(offset, part): &(usize, LazyTensor<'_, S>)| {
            let mut offsets = vec![0; self.shape.len()];
            offsets[dim] = *offset;
            Tile { offsets, sizes: part.shape().to_vec() }
        };
        let tiles: Vec<_> = self.parts.iter().map(tile).collect();
        let tiles = Tiles::new(self.dtype(), &self.shape, &tiles).map_err(|bad| {
            let part = bad.tile.and_then(|number| self.parts.get(number));
            match part {
                Some((_, part)) => part.locate(bad.kind.into()),
                None => Error::from(bad.kind).in_tensor(&self.name),
            }
        })?;
        self.tiles = Some(Arc::new(tiles));
        Ok(())
    }
}

impl<S: ReadAt> GatheredTensor<'_, S> {
    /// Writes the tensor block by block: of each part the bytes that belong to it.
    fn write_blocks(&self, tiles: &Tiles, sink: &mut Sink<'_>) -> Result<()> {
        let named = |error: Error| error.in_tensor(&self.name);
        let len = shape::byte_len(self.dtype(), &self.shape).map_err(|kind| named(kind.into()))?;
        let requests = self.parts().next().and_then(|part| part.source().requests());
        let most = requests.map_or(PIECE, |requests| requests.byte_len) as u64;
        let mut buffer = vec![0; len.min(most) as usize];
        for start in (0..len).step_by(most as usize) {
            let bytes = &mut buffer[..(len - start).min(most) as usize];
            let mut block = TiledBlock::new(tiles, start, bytes);
            for (number, range) in block.ranges().map_err(|it| named(ErrorKind::Io(it).into()))? {
                let part = &self.parts[number].1;
                let start = part.file_offset() + range.offset;
                let result = part.source().read_exact_at(range.bytes, start);
                result.map_err(|error| part.locate(ErrorKind::Io(error).into()))?;
            }
            block.finish();
            sink(bytes)?;
        }
        Ok(())
    }
}

impl<S: ReadAt> TensorSource for GatheredTensor<'_, S> {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match &self.tiles {
            _ if self.shape.contains(&0) => {}
            Some(tiles) if self.dim != Some(0) => self.write_blocks(tiles, sink)?,
            _ => return self.parts().try_for_each(|part| part.write_to(sink)),
        }
        self.parts().try_for_each(|part| part.check_unchanged())
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        let (scales, other) = &**self.scales.as_ref()?;
        let source = ScaleSource::of_whole(&scales.name, self.shape.clone(), Box::new(scales));
        Some(ScaleSource { other: other.clone(), ..source })
    }
}
