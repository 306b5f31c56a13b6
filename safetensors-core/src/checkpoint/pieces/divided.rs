//! Parts of tensors in files that ranks have saved: their places, as the metadata records them.
//!
//! [The ranks' documentation](crate::ranks) has the convention. The record is not trusted.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::whole_tensor::{TensorPiece, WholeTensor};
use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::format::error::{Error, RankProblem, Result};
use crate::format::header::{
    DCP_KEY, DCP_VERSION_KEY, FILES_KEY, Limits, Metadata, PARTS_KEY, UniqueMap,
};

/// The record of a part in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartRecord {
    /// The name of the whole tensor.
    pub(crate) tensor: String,
    pub(crate) shape: Vec<usize>,
    /// The dimension that is cut.
    pub(crate) dim: usize,
    /// The first position of that dimension in the part.
    pub(crate) offset: usize,
}

/// The record in the metadata of a file: the name of each part that it has.
pub(crate) type Record = BTreeMap<String, PartRecord>;

/// Returns whether a file has parts of tensors.
pub(crate) fn has_parts<S>(file: &CheckpointFile<S>) -> bool {
    file.safetensors().metadata().contains_key(PARTS_KEY)
}

/// Removes the entries that describe parts of a file, including PyTorch's.
pub(crate) fn forget(metadata: &mut Metadata) {
    for key in [DCP_KEY, DCP_VERSION_KEY, FILES_KEY, PARTS_KEY] {
        metadata.remove(key);
    }
}

/// Returns the joined tensors of a checkpoint, in the order of its files. The numbers of the files
/// are the numbers of the sources. Whether the parts make up the tensors is not checked.
pub(crate) fn whole_tensors<S>(checkpoint: &Checkpoint<S>) -> Result<Vec<WholeTensor>> {
    let records = checkpoint.files().iter().map(read_record).collect::<Result<Vec<_>>>()?;
    let mut tensors: Vec<WholeTensor> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for part in checkpoint.tensors() {
        let file = part.file_index();
        let sizes = part.shape().to_vec();
        let mut offsets = vec![0; sizes.len()];
        let mut name = part.name();
        let mut shape = &sizes;
        if let Some(record) = records.get(file).and_then(|record| record.get(part.name())) {
            (name, shape) = (&record.tensor, &record.shape);
            offsets[record.dim] = record.offset;
        }
        let position = *positions.entry(name).or_insert(tensors.len());
        if position == tensors.len() {
            let name = name.to_owned();
            let shape = shape.clone();
            let dtype = part.dtype();
            tensors.push(WholeTensor { name, dtype, shape, pieces: Vec::new() });
        }
        let whole = &mut tensors[position];
        if (whole.dtype, &whole.shape) != (part.dtype(), shape) {
            let dtype = part.dtype();
            let found = &whole.shape;
            let problem = format!(
                "a part of {dtype} {shape:?}, and one of {} {found:?}, of tensor {name:?}",
                whole.dtype
            );
            return Err(part.locate(RankProblem::BadParts { problem }.into()));
        }
        whole.pieces.push(TensorPiece::new(file, part.file_offset(), offsets, sizes));
    }
    Ok(tensors)
}

/// Writes the record of a file into its metadata.
pub(crate) fn record(metadata: &mut Metadata, record: &Record) {
    if !record.is_empty() {
        // Strings and numbers can always be written.
        metadata.insert(PARTS_KEY.into(), serde_json::to_string(record).unwrap_or_default());
    }
}

/// Reads the record of a file; empty if it has none.
fn read_record<S>(file: &CheckpointFile<S>) -> Result<Record> {
    let header = file.safetensors().header();
    let Some(text) = header.metadata().get(PARTS_KEY) else { return Ok(Record::new()) };
    let bad = |problem: String| Error::from(RankProblem::BadParts { problem }).in_path(file.path());
    let record: Record = UniqueMap::new("an object from the names of parts to their tensors")
        .parse(text)
        .map_err(|error| bad(format!("{PARTS_KEY} in __metadata__: {error}")))?;
    for (name, part) in &record {
        let Some(info) = header.get(name) else {
            let problem = format!("{PARTS_KEY} names a tensor that the file does not have");
            return Err(bad(problem).in_tensor(name));
        };
        Limits::default()
            .check_ndim(part.shape.len())
            .map_err(|kind| Error::from(kind).in_tensor(name).in_path(file.path()))?;
        if !fits(part, info.shape()) {
            let problem = format!(
                "shape {:?} is no part of shape {:?} from {} of dimension {} on",
                info.shape(),
                part.shape,
                part.offset,
                part.dim
            );
            return Err(bad(problem).in_tensor(name));
        }
    }
    Ok(record)
}

/// Returns whether a tensor of this shape can be the part that is recorded.
fn fits(part: &PartRecord, shape: &[usize]) -> bool {
    let is_same = |dim: usize| dim == part.dim || shape[dim] == part.shape[dim];
    shape.len() == part.shape.len()
        && part.dim < shape.len()
        && (0..shape.len()).all(is_same)
        && part.offset.checked_add(shape[part.dim]).is_some_and(|end| end <= part.shape[part.dim])
}
