//! Parts of tensors in files of PyTorch's distributed checkpoints (DCP): where they belong.
//!
//! With `HuggingFaceStorageWriter(save_distributed=True)`, each rank writes files of its own. A
//! tensor has the same name in several of them, and in each the shape of its part. The metadata
//! entry `DCP_SHARDING_INFO` has the first position of the part in each dimension:
//!
//! ```json
//! {"up": {"saved_offsets": [16, 0]}}
//! ```
//!
//! No file has the shape of the whole. It ends where the last part does, so a last part that is
//! missing cannot be noticed. Rules: `torch/distributed/checkpoint/hf_storage.py` of torch 2.15.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::CheckpointFile;
use super::whole_tensor::{Piece, WholeTensor};
use crate::error::{Error, RankProblem, Result};
use crate::header::{DCP_KEY, DCP_VERSION_KEY, Metadata, TensorInfo, UniqueMap};

/// Where the part of a tensor belongs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPart {
    saved_offsets: Vec<usize>,
}

/// Whether a file has parts of tensors.
pub(super) fn has_parts<S>(file: &CheckpointFile<S>) -> bool {
    file.archive.metadata().contains_key(DCP_KEY)
}

/// Fails if a file has parts of tensors: they must not be taken for whole ones.
pub(super) fn refuse<S>(file: &CheckpointFile<S>) -> Result<()> {
    if !has_parts(file) {
        return Ok(());
    }
    Err(Error::from(RankProblem::PartsOfTensors).in_path(&file.path))
}

/// Fails if one of these tensors of a file, which an index names, does not begin at its first
/// element. PyTorch writes `DCP_SHARDING_INFO` and an index if one rank saves whole tensors.
pub(super) fn refuse_indexed<S>(file: &CheckpointFile<S>, names: &[String]) -> Result<()> {
    if !has_parts(file) {
        return Ok(());
    }
    let saved = saved_parts(file)?;
    let begins = |name: &&String| {
        saved.get(*name).is_some_and(|part| part.saved_offsets.iter().all(|&offset| offset == 0))
    };
    match names.iter().find(|name| !begins(name)) {
        Some(name) => {
            Err(Error::from(RankProblem::PartsOfTensors).in_tensor(name).in_path(&file.path))
        }
        None => Ok(()),
    }
}

/// Removes what says of a file that it has parts.
pub(super) fn forget(metadata: &mut Metadata) {
    metadata.remove(DCP_KEY);
    metadata.remove(DCP_VERSION_KEY);
}

/// Says in the metadata of a file where its tensors begin.
pub(crate) fn record<'a>(
    metadata: &mut Metadata,
    parts: impl IntoIterator<Item = (&'a str, Vec<usize>)>,
) {
    let part = |(name, saved_offsets)| (name, SavedPart { saved_offsets });
    let parts: BTreeMap<&str, SavedPart> = parts.into_iter().map(part).collect();
    // Strings and numbers can always be written.
    metadata.insert(DCP_KEY.into(), serde_json::to_string(&parts).unwrap_or_default());
    metadata.insert(DCP_VERSION_KEY.into(), "1.0".into());
}

/// The whole tensors of files, all of which have parts. The numbers of the files are those of the
/// sources. Whether the parts make up the tensors is not checked.
pub(super) fn whole_tensors<S>(files: &[CheckpointFile<S>]) -> Result<Vec<WholeTensor>> {
    let mut tensors: Vec<WholeTensor> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (number, file) in files.iter().enumerate() {
        let saved = saved_parts(file)?;
        let header = file.archive.header();
        for info in header.iter() {
            let position = *positions.entry(info.name()).or_insert(tensors.len());
            if position == tensors.len() {
                let (name, shape) = (info.name().to_owned(), vec![0; info.shape().len()]);
                tensors.push(WholeTensor { name, dtype: info.dtype(), shape, pieces: vec![] });
            }
            let offsets = saved.get(info.name()).map(|part| &*part.saved_offsets);
            extend(&mut tensors[position], &info, offsets)
                .map_err(|problem| bad(problem, file).in_tensor(info.name()))?;
            let offset = header.data_start() + info.data_offsets().start;
            let offsets = offsets.unwrap_or_default().to_vec();
            let piece = Piece::new(number, offset, offsets, info.shape().to_vec());
            tensors[position].pieces.push(piece);
        }
    }
    Ok(tensors)
}

/// Lets a tensor reach to the end of a part.
fn extend(
    whole: &mut WholeTensor,
    part: &TensorInfo<'_>,
    offsets: Option<&[usize]>,
) -> Result<(), String> {
    let Some(offsets) = offsets else { return Err(format!("{DCP_KEY} does not name it")) };
    let shape = part.shape();
    if offsets.len() != shape.len() {
        return Err(format!("a part of shape {shape:?} that begins at {offsets:?}"));
    }
    if (whole.dtype, whole.shape.len()) != (part.dtype(), shape.len()) {
        return Err(format!(
            "parts of {} in {} dimensions, and of {} in {}",
            whole.dtype,
            whole.shape.len(),
            part.dtype(),
            shape.len()
        ));
    }
    for ((end, offset), len) in whole.shape.iter_mut().zip(offsets).zip(shape) {
        let far = || format!("a part of shape {shape:?} that begins at {offsets:?}");
        *end = (*end).max(offset.checked_add(*len).ok_or_else(far)?);
    }
    Ok(())
}

/// What a file says of its parts.
fn saved_parts<S>(file: &CheckpointFile<S>) -> Result<BTreeMap<String, SavedPart>> {
    let header = file.archive.header();
    let text = header.metadata().get(DCP_KEY).map_or("{}", String::as_str);
    let expected = "an object from the names of tensors to their saved_offsets";
    let saved: BTreeMap<String, SavedPart> = UniqueMap::new(expected)
        .parse(text)
        .map_err(|error| bad(format!("{DCP_KEY} in __metadata__: {error}"), file))?;
    match saved.keys().find(|name| header.get(name).is_none()) {
        Some(name) => {
            let problem = format!("{DCP_KEY} names a tensor that the file does not have");
            Err(bad(problem, file).in_tensor(name))
        }
        None => Ok(saved),
    }
}

fn bad<S>(problem: String, file: &CheckpointFile<S>) -> Error {
    Error::from(RankProblem::BadParts { problem }).in_path(&file.path)
}
