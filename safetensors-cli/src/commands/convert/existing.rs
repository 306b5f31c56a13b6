//! What lies at OUT already, and would be lost.
//!
//! A forgotten OUT makes the last input the output: `convert *.safetensors`. So what is there is
//! replaced only by what may be a new version of it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::FilePattern;
use safetensors_core::framework::NameList;
use safetensors_core::ranks::{gather, is_divided};
use safetensors_core::rewrite::PlannedTensor;
use safetensors_core::{Error, ErrorKind, LazyTensor};

use super::preview::Preview;
use super::source::Source;
use crate::input::{self, Checkpoint, Opening, Rewrite};
use crate::{address, text, values};

/// The place of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One file.
    File,
    /// One array, which is named after its file.
    Array,
    /// A directory, of which the files of an earlier checkpoint are replaced.
    Directory,
}

/// What would be lost.
#[derive(Debug)]
pub(super) enum Loss {
    /// These tensors, of so many.
    Tensors(Vec<String>, usize),
    /// The values: those of the only input would take their place as they are.
    Values,
    /// It is not known what, because what is there cannot be read.
    Unreadable(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensors(names, of) => write!(
                f,
                "{} of its {} would be lost: {}",
                text::count(names.len() as u64),
                text::counted(*of as u64, "tensor"),
                NameList(names)
            ),
            Self::Values => f.write_str("its values would be lost: nothing of IN is converted"),
            Self::Unreadable(why) => write!(f, "what it holds would be lost, unread ({why})"),
        }
    }
}

/// What would be lost if the rewrite took the place of what is at `path`. `None` if there is
/// nothing, or if all of it stays.
///
/// A tensor stays if the output has one of its name and shape, or if it is taken from there.
pub(super) fn loss(
    path: &Path,
    place: Place,
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    preview: &Preview,
) -> Option<Loss> {
    let existing = match open(path, place) {
        Ok(existing) => existing,
        Err(why) => return Some(Loss::Unreadable(format!("{why:#}"))),
    };
    let new = || rewrite.tensors().filter(|(name, _)| preview.writes(name));
    let shapes: HashMap<_, _> = new().map(|(name, tensor)| (name, tensor.shape())).collect();
    let taken: HashSet<_> = new().map(|(_, tensor)| tensor.source_name()).collect();
    let (mut lost, mut count) = (Vec::new(), 0);
    for checkpoint in &existing {
        let tensors = match tensors(checkpoint) {
            Ok(tensors) => tensors,
            Err(why) => return Some(Loss::Unreadable(why.to_string())),
        };
        let files: HashSet<_> = checkpoint.files().iter().map(|it| identity(it.path())).collect();
        let inputs = sources.iter().filter(|it| it.files().any(|it| files.contains(&identity(it))));
        let from_there: HashSet<_> = inputs.flat_map(Source::names).collect();
        count += tensors.len();
        for (name, shape) in tensors {
            let has_new = match place {
                Place::Array => shapes.values().any(|new| **new == *shape),
                _ => shapes.get(&*name).is_some_and(|new| **new == *shape),
            };
            let is_taken = from_there.contains(&*name) && taken.contains(&*name);
            if !has_new && !is_taken {
                lost.push(name);
            }
        }
    }
    match (existing.as_slice(), sources) {
        _ if !lost.is_empty() => Some(Loss::Tensors(lost, count)),
        ([old], [source]) if place == Place::File && source.is_one_file() => {
            let is_same = source.files().any(|it| identity(it) == identity(path));
            (!is_same && is_another(old, new())).then_some(Loss::Values)
        }
        _ => None,
    }
}

/// Asks whether to replace what is there if `may_ask`, or else fails.
pub(super) fn permit(path: &Path, loss: &Loss, may_ask: bool) -> anyhow::Result<()> {
    let path = input::shown(path);
    if !may_ask || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        anyhow::bail!(
            "{path}: OUT, the last argument, is there already, and {loss}; --force replaces it"
        );
    }
    let question = text::printable(&format!("{path} is there already, and {loss}")).to_string();
    write!(io::stderr(), "{question}; replace it? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => anyhow::bail!("{path} is as it was"),
    }
}

/// Opens what would be replaced: several for a directory in which nothing says what belongs
/// together.
fn open(path: &Path, place: Place) -> anyhow::Result<Vec<Checkpoint>> {
    if let Some(address) = address::of(path) {
        return Ok(address::find(address)?.into_iter().collect());
    }
    if place != Place::Directory {
        return Ok(open_file(path)?.into_iter().collect());
    }
    let Ok(entries) = fs::read_dir(path) else { return Ok(Vec::new()) };
    let pattern = FilePattern::default();
    let mut all = Vec::new();
    // What ranks have saved is whole tensors only together.
    let index = path.join(pattern.index_name());
    if let Ok(checkpoint) = safetensors_core::Checkpoint::open(&index)
        && is_divided(&checkpoint)
    {
        all.push(checkpoint.into_boxed());
    }
    let together: HashSet<_> =
        all.iter().flat_map(Checkpoint::files).map(|file| identity(file.path())).collect();
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort_unstable();
    for name in names.iter().filter(|name| name.to_str().is_some_and(|it| pattern.matches(it))) {
        let file = path.join(name);
        if !together.contains(&identity(&file)) {
            all.extend(open_file(&file)?);
        }
    }
    Ok(all)
}

/// Opens a file; `None` if it is not there, or is empty.
fn open_file(path: &Path) -> anyhow::Result<Option<Checkpoint>> {
    if fs::metadata(path).map_or(true, |metadata| metadata.len() == 0) {
        return Ok(None);
    }
    match input::open_file(path, Opening::default()) {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        Err(error) => match error.downcast_ref().map(Error::kind) {
            // Another save has removed it meanwhile.
            Some(ErrorKind::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        },
    }
}

/// The names and shapes of all tensors, of whole ones if ranks have saved them.
fn tensors(checkpoint: &Checkpoint) -> safetensors_core::Result<Vec<(String, Vec<usize>)>> {
    if is_divided(checkpoint) {
        let whole = gather(checkpoint)?;
        return Ok(whole.iter().map(|it| (it.name().into(), it.shape().into())).collect());
    }
    let tensors = checkpoint.tensors().map(|tensor| (tensor.name(), tensor));
    let all = tensors.chain(checkpoint.aliases());
    Ok(all.map(|(name, tensor)| (name.into(), tensor.shape().into())).collect())
}

/// Whether the tensors are those of `old` but for their values, and nothing of them is converted.
/// An input that cannot be read is an error later.
fn is_another<'a>(
    old: &Checkpoint,
    mut new: impl Iterator<Item = (&'a str, &'a PlannedTensor<'a, input::Source>)>,
) -> bool {
    let mut differs = false;
    let is_copy = new.all(|(name, tensor)| {
        let is_kept = tensor.source_name() == name && tensor.source_dtype() == tensor.dtype();
        match (tensor.tensor(), old.get(name)) {
            (Some(new), Some(old)) if is_kept && old.dtype() == new.dtype() => {
                differs = differs || has_other_values(&old, new);
                true
            }
            _ => is_kept && tensor.is_alias(),
        }
    });
    is_copy && differs
}

fn has_other_values(
    old: &LazyTensor<'_, input::Source>,
    new: &LazyTensor<'_, input::Source>,
) -> bool {
    let mut buffers = [Vec::new(), Vec::new()];
    old.pieces().zip(new.pieces()).any(|(old, new)| {
        let [left, right] = &mut buffers;
        matches!((values::read(&old, left), values::read(&new, right)), (Ok(a), Ok(b)) if a != b)
    })
}

/// What is the same for all paths to a file.
fn identity(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}
