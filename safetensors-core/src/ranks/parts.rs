//! How the parts of tensors are named in the files that ranks save, and how the metadata records
//! them.
//!
//! [The module's documentation](super) has the convention. The record is not trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::RankTensor;
use crate::checkpoint::CheckpointFile;
use crate::error::{Error, RankProblem, Result};
use crate::header::{Limits, Metadata, PARTS_KEY, UniqueMap, part_name};

/// What a file records of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartRecord {
    /// The name of the whole tensor.
    pub(super) tensor: String,
    /// Its shape.
    pub(super) shape: Vec<usize>,
    /// The dimension that is cut.
    pub(super) dim: usize,
    /// The first position of that dimension in the part.
    pub(super) offset: usize,
}

/// What the metadata of a file records: the name of each part that it has.
pub(super) type Record = BTreeMap<String, PartRecord>;

/// The name under which a rank's part of a tensor is saved, and its record. A tensor of one part is
/// saved under its own name, and needs no record.
pub(super) fn saved_as(
    tensor: &RankTensor,
    rank: usize,
    world_size: usize,
) -> Result<(String, Option<PartRecord>)> {
    let parts = tensor.division().parts(world_size);
    let Some(dim) = tensor.division().dim().filter(|_| parts > 1) else {
        return Ok((tensor.name().into(), None));
    };
    let (part, _) = tensor.division().held(rank, world_size);
    let ranges = tensor.part(rank)?.ranges(tensor.shape())?;
    let offset = ranges.get(dim).map_or(0, |range| range.start);
    let record =
        PartRecord { tensor: tensor.name().into(), shape: tensor.shape().to_vec(), dim, offset };
    Ok((part_name(tensor.name(), part, parts), Some(record)))
}

/// Writes the record of a file into its metadata.
pub(super) fn record(metadata: &mut Metadata, record: &Record) {
    if !record.is_empty() {
        // Strings and numbers can always be written.
        metadata.insert(PARTS_KEY.into(), serde_json::to_string(record).unwrap_or_default());
    }
}

/// Reads the record of a file; empty if it has none.
pub(super) fn read_record<S>(file: &CheckpointFile<S>) -> Result<Record> {
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
        let limit = Limits::default().ndim;
        if part.shape.len() > limit {
            let too_many = crate::error::ErrorKind::TooManyDimensions { limit };
            return Err(Error::from(too_many).in_tensor(name).in_path(file.path()));
        }
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

/// Whether a tensor of this shape can be the part that is recorded.
fn fits(part: &PartRecord, shape: &[usize]) -> bool {
    let is_same = |dim: usize| dim == part.dim || shape[dim] == part.shape[dim];
    shape.len() == part.shape.len()
        && part.dim < shape.len()
        && (0..shape.len()).all(is_same)
        && part.offset.checked_add(shape[part.dim]).is_some_and(|end| end <= part.shape[part.dim])
}
