//! Parts of tensors in files of PyTorch's distributed checkpoints (DCP): their places.
//!
//! With `HuggingFaceStorageWriter(save_distributed=True)`, each rank writes its own files. A tensor
//! has the same name in several of them, and in each the shape of its part. The metadata entry
//! `DCP_SHARDING_INFO` has the first position of the part in each dimension:
//!
//! ```json
//! {"up": {"saved_offsets": [16, 0]}}
//! ```
//!
//! No file has the full shape. The tensor ends with its last part, so a last part that is missing
//! cannot be noticed. Rules: `torch/distributed/checkpoint/hf_storage.py` of torch 2.15.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::whole_tensor::{TensorPiece, WholeTensor};
use crate::checkpoint::CheckpointFile;
use crate::format::error::{Error, RankProblem, Result};
use crate::format::header::{
    ATTEMPT_KEY, DCP_KEY, DCP_VERSION_KEY, FILES_KEY, Metadata, TensorInfo, UniqueMap,
};

/// Where the part of a tensor belongs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPart {
    saved_offsets: Vec<usize>,
}

/// Returns whether a file has parts of tensors.
pub(crate) fn has_parts<S>(file: &CheckpointFile<S>) -> bool {
    file.archive.metadata().contains_key(DCP_KEY)
}

/// Fails if a tensor of a file, which an index names, does not begin at its first element.
pub(crate) fn refuse_indexed<S>(file: &CheckpointFile<S>) -> Result<()> {
    let saved = saved_parts(file)?;
    match saved.iter().find(|(_, part)| part.saved_offsets.iter().any(|&offset| offset > 0)) {
        Some((name, _)) => Err(bad("the index names a part".into(), file).in_tensor(name)),
        None => Ok(()),
    }
}

/// Returns the error of an index that names a file, while another file of its directory has parts.
pub(crate) fn not_in_index<S>(named: &CheckpointFile<S>, other: &str) -> Error {
    bad(format!("the index names it, but not {other:?}, which has parts as well"), named)
}

/// Returns the error of an index that names a file with parts, if the store cannot list the
/// directory, and the names do not show that these are all files.
pub(crate) fn not_listed<S>(named: &CheckpointFile<S>) -> Error {
    let problem = "the store does not list its directory, where others may have parts as well";
    bad(problem.into(), named)
}

/// Fails if files with parts belong to several saves, or if some are missing, as far as this can be
/// known.
///
/// Files of our ranks have the name of their save, and the number of its files. PyTorch's files
/// have numbers in their names. A rank writes a file only if it has tensors of it, so each number
/// must occur once, and not once for each rank.
pub(crate) fn check_complete<S>(files: &[CheckpointFile<S>]) -> Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    let of = |file: &CheckpointFile<S>, key| file.archive.metadata().get(key).cloned();
    if let Some(other) = files.iter().find(|file| of(file, ATTEMPT_KEY) != of(first, ATTEMPT_KEY)) {
        let save =
            |file| of(file, ATTEMPT_KEY).map_or("no known save".into(), |it| format!("{it:?}"));
        let one = save(other);
        let two = save(first);
        let name = name_of(&first.path);
        let problem = format!("ranks of two saves: the file is of {one}, and {name:?} of {two}");
        return Err(bad(problem, other));
    }
    let found = files.len();
    let counts = || files.iter().filter_map(|file| Some((file, of(file, FILES_KEY)?)));
    if let Some((file, count)) = counts().find(|(_, count)| *count != found.to_string()) {
        let problem = format!("the save has {count} files with parts, and {found} are there");
        return Err(bad(problem, file));
    }
    if counts().next().is_some() {
        return Ok(());
    }
    let numbered = || files.iter().filter_map(|file| Some((file, numbers_of(&file.path)?)));
    let Some((first, (_, count))) = numbered().next() else { return Ok(()) };
    if let Some((other, (_, found))) = numbered().find(|(_, (_, of))| *of != count) {
        let name = name_of(&first.path);
        let problem = format!("files of two saves: it is one of {found}, and {name:?} of {count}");
        return Err(bad(problem, other));
    }
    let numbers: BTreeSet<_> = numbered().map(|(_, (number, _))| number).collect();
    match (1..=count).find(|number| !numbers.contains(number)) {
        Some(number) => {
            let problem = format!("no file is number {number} of the {count} that its name counts");
            Err(bad(problem, first))
        }
        None => Ok(()),
    }
}

/// Returns the last part of a path.
fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns the last two numbers of a name such as `shard-00001-model-00002-of-00003.safetensors`.
fn numbers_of(path: &Path) -> Option<(usize, usize)> {
    numbers_in(name_of(path).strip_prefix("shard-")?.split_once("-model-")?.1)
}

/// Returns the two numbers of the end of a name, such as `00002-of-00003.safetensors`.
fn numbers_in(name: &str) -> Option<(usize, usize)> {
    let (number, count) = name.strip_suffix(".safetensors")?.split_once("-of-")?;
    Some((number.parse().ok()?, count.parse().ok()?))
}

/// Returns `true` if files are, by their names, all files to which PyTorch has saved entire
/// tensors: `model-00001-of-00002.safetensors` and so on. The names of files of parts begin with
/// `shard-`.
pub(crate) fn are_whole<S>(files: &[CheckpointFile<S>]) -> bool {
    let numbers: BTreeSet<_> = files
        .iter()
        .filter_map(|file| numbers_in(name_of(&file.path).strip_prefix("model-")?))
        .collect();
    numbers.into_iter().eq((1..=files.len()).map(|number| (number, files.len())))
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

/// Returns the joined tensors of files with parts. The numbers of the files are the numbers of the
/// sources. Whether the parts make up the tensors is not checked.
pub(crate) fn whole_tensors<S>(files: &[CheckpointFile<S>]) -> Result<Vec<WholeTensor>> {
    let mut tensors: Vec<WholeTensor> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (number, file) in files.iter().enumerate() {
        let saved = saved_parts(file)?;
        let header = file.archive.header();
        for info in header.iter() {
            let position = *positions.entry(info.name()).or_insert(tensors.len());
            if position == tensors.len() {
                let name = info.name().to_owned();
                let shape = vec![0; info.shape().len()];
                tensors.push(WholeTensor { name, dtype: info.dtype(), shape, pieces: vec![] });
            }
            let offsets = saved.get(info.name()).map(|part| &*part.saved_offsets);
            extend(&mut tensors[position], &info, offsets)
                .map_err(|problem| bad(problem, file).in_tensor(info.name()))?;
            let offset = header.data_start() + info.data_offsets().start;
            let offsets = offsets.unwrap_or_default().to_vec();
            let piece = TensorPiece::new(number, offset, offsets, info.shape().to_vec());
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

/// Returns the record of parts in a file.
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
