//! What lies at OUT already, and would be lost.
//!
//! A forgotten OUT makes the last input the output: `convert *.safetensors`. So what is there is
//! replaced only by what may be a new version of it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::{CheckpointPath, FilePattern};
use safetensors_core::framework::NameList;
use safetensors_core::rewrite::PlannedTensor;
use safetensors_core::{Dtype, Error, ErrorKind, LazyTensor, TensorSource};
use safetensors_formats::Format;

use super::config::is_of_same_model;
use super::preview::Preview;
use super::source::{CONFIG, MOST, Source};
use crate::input::address;
use crate::input::{self, Checkpoint, Opening, Rewrite};
use crate::model::values;
use crate::terminal::text;

/// Files of trainers that say which directory beside them is the newest checkpoint.
const NEWEST: [&str; 2] = ["latest", "latest_checkpointed_iteration.txt"];

/// The most bytes of such a file.
const LONGEST_NAME: u64 = 4096;

/// The place of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputPlace {
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
    /// These tensors, of this many.
    Tensors(Vec<String>, usize),
    /// The values: those of the only input would take their place as they are.
    Values,
    /// The settings of another model.
    Config,
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
            Self::Config => f.write_str("its config.json would be lost: it is of another model"),
            Self::Unreadable(why) => write!(f, "what it holds would be lost, unread ({why})"),
        }
    }
}

/// What would be lost if the rewrite took the place of what is at `path`. `None` if there is
/// nothing, or if all of it stays.
///
/// A tensor stays if the output has one of its name and shape, or if it is taken from there. So do
/// the scales of a quantised weight that stays in another dtype.
pub(super) fn loss(
    path: &Path,
    place: OutputPlace,
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    preview: &Preview,
) -> Option<Loss> {
    let existing = match open(path, place) {
        Ok(existing) => existing,
        Err(why) => return Some(Loss::Unreadable(format!("{why:#}"))),
    };
    let new = || rewrite.tensors().filter(|(name, _)| preview.writes(name));
    let named: HashMap<_, _> = new().collect();
    let taken: HashMap<_, _> = new().map(|(_, tensor)| (tensor.source_name(), tensor)).collect();
    let (mut lost, mut count) = (Vec::new(), 0);
    for checkpoint in &existing {
        let tensors = tensors(checkpoint);
        let files: HashSet<_> = checkpoint.files().iter().map(|it| identity(it.path())).collect();
        let inputs = sources.iter().filter(|it| it.files().any(|it| files.contains(&identity(it))));
        let inputs: Vec<_> = inputs.collect();
        let from_there: HashSet<_> = inputs.iter().flat_map(|source| source.names()).collect();
        let taken = |name: &str| taken.get(name).filter(|_| from_there.contains(name));
        let applied: HashSet<_> = tensors
            .iter()
            .filter(|old| {
                let mut new = named.get(&*old.name).into_iter().chain(taken(&old.name));
                new.any(|new| *new.shape() == *old.shape && new.dtype() != old.dtype)
            })
            .filter_map(|old| old.scales.clone())
            .collect();
        // What stores a weight is not lost where its numbers are taken.
        let weights = inputs.iter().flat_map(|source| source.numbers());
        let stored = weights.filter(|weight| taken(&weight.name).is_some());
        let stored: HashSet<_> = stored.flat_map(|weight| &weight.tensors).collect();
        count += tensors.len();
        for Existing { name, shape, .. } in tensors {
            let has_new = match place {
                OutputPlace::Array => named.values().any(|new| *new.shape() == *shape),
                _ => named.get(&*name).is_some_and(|new| *new.shape() == *shape),
            };
            if !has_new
                && taken(&name).is_none()
                && !applied.contains(&name)
                && !stored.contains(&name)
            {
                lost.push(name);
            }
        }
    }
    match (existing.as_slice(), sources) {
        _ if !lost.is_empty() => Some(Loss::Tensors(lost, count)),
        ([old], [source])
            if place == OutputPlace::File && source.is_one_file() && source.merged().is_empty() =>
        {
            let is_same = source.files().any(|it| identity(it) == identity(path));
            if is_same { None } else { loss_of_values(old, new()) }
        }
        _ => loss_of_config(path, &existing, preview.config()?),
    }
}

/// Refuses a directory with what a trainer has saved, whatever the options say. A checkpoint beside
/// it is what every program would open from then on. Core refuses parts in safetensors files.
pub(super) fn check_not_hidden(path: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
    // What was saved beside a checkpoint is hidden already.
    if CheckpointPath::find(path).is_ok() {
        return Ok(());
    }
    let names: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let format = Format::of_directory(names.iter().map(String::as_str));
    let says_newest = NEWEST.iter().any(|name| says_newest(path, name));
    if format.is_some_and(Format::is_of_directories) || says_newest {
        anyhow::bail!(
            "{}: OUT, the last argument, has files that the ranks of a training have saved, which \
             the output would hide, also with --force; choose another directory, or move them away",
            input::shown(path)
        );
    }
    Ok(())
}

/// Whether a file names a directory beside it, or has its number, as Megatron does.
fn says_newest(path: &Path, name: &str) -> bool {
    let file = path.join(name);
    let is_short = |it: fs::Metadata| it.is_file() && it.len() <= LONGEST_NAME;
    if !fs::metadata(&file).is_ok_and(is_short) {
        return false;
    }
    let Ok(said) = fs::read_to_string(file) else { return false };
    let said = Path::new(said.trim());
    let is_number = name != NEWEST[0] && said.to_str().is_some_and(|it| it.parse::<u64>().is_ok());
    is_number || said.file_name() == Some(said.as_os_str()) && path.join(said).is_dir()
}

/// What would be lost if this text took the place of the `config.json` that is there.
fn loss_of_config(path: &Path, existing: &[Checkpoint], new: &str) -> Option<Loss> {
    let old = match address::of(path) {
        Some(_) => match existing.first()?.read_beside(CONFIG, MOST) {
            Ok(old) => old?.1,
            Err(why) => return Some(Loss::Unreadable(why.to_string())),
        },
        // What cannot be read, such as a directory, cannot be replaced either.
        None => fs::read(path.join(CONFIG)).ok()?,
    };
    (!is_of_same_model(&old, new.as_bytes())).then_some(Loss::Config)
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
fn open(path: &Path, place: OutputPlace) -> anyhow::Result<Vec<Checkpoint>> {
    if let Some(address) = address::of(path) {
        return Ok(address::find(address)?.into_iter().collect());
    }
    if place != OutputPlace::Directory {
        return Ok(open_file(path)?.into_iter().collect());
    }
    let Ok(entries) = fs::read_dir(path) else { return Ok(Vec::new()) };
    let pattern = FilePattern::default();
    let mut all = Vec::new();
    // What ranks have saved is whole tensors only together.
    let index = path.join(pattern.index_name());
    let mut together = HashSet::new();
    if let Ok(checkpoint) = input::open_file(&index, Opening::default())
        && input::is_in_parts(&checkpoint)
    {
        let files = CheckpointPath::Index(index).files()?;
        together.extend(files.iter().map(|file| identity(file)));
        all.push(checkpoint);
    }
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
pub(super) fn open_file(path: &Path) -> anyhow::Result<Option<Checkpoint>> {
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

/// A tensor that would be replaced.
struct Existing {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    /// The name of its scales, if it is a quantised weight.
    scales: Option<String>,
}

/// All tensors, also by their other names.
fn tensors(checkpoint: &Checkpoint) -> Vec<Existing> {
    let tensors = checkpoint.tensors().map(|tensor| (tensor.name(), tensor));
    let existing = |(name, tensor): (&str, LazyTensor<'_, input::Source>)| Existing {
        name: name.into(),
        shape: tensor.shape().into(),
        dtype: tensor.dtype(),
        scales: tensor.scales().map(|scales| scales.name().into()),
    };
    tensors.chain(checkpoint.aliases()).map(existing).collect()
}

/// What would be lost if the tensors are those of `old` but for their values and dtypes, and
/// nothing of them is converted.
fn loss_of_values<'a>(
    old: &Checkpoint,
    new: impl Iterator<Item = (&'a str, &'a PlannedTensor<'a, input::Source>)>,
) -> Option<Loss> {
    let mut pairs = Vec::new();
    for (name, tensor) in new {
        let is_kept = tensor.source_name() == name && tensor.source_dtype() == tensor.dtype();
        match (tensor.tensor(), old.get(name)) {
            (Some(new), Some(old)) if is_kept => pairs.push((old, new)),
            _ if is_kept && tensor.is_alias() => {}
            _ => return None,
        }
    }
    let mut differs = pairs.iter().map(|(old, new)| {
        if old.dtype() == new.dtype() { has_other_values(old, new) } else { Ok(true) }
    });
    match differs.find(|differs| !matches!(differs, Ok(false)))? {
        Ok(_) => Some(Loss::Values),
        Err(why) => Some(Loss::Unreadable(why.to_string())),
    }
}

/// Whether the values differ. Fails if the old ones cannot be read. An input that cannot be read is
/// an error later.
fn has_other_values(
    old: &LazyTensor<'_, input::Source>,
    new: &LazyTensor<'_, input::Source>,
) -> safetensors_core::Result<bool> {
    let mut buffers = [Vec::new(), Vec::new()];
    for (old, new) in old.pieces().zip(new.pieces()) {
        let [left, right] = &mut buffers;
        let old = values::read(&old, left)?;
        if values::read(&new, right).is_ok_and(|new| new != old) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is the same for all paths to a file.
fn identity(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

#[cfg(test)]
mod tests {
    use safetensors_core::{SaveOptions, TensorView, save};

    use super::*;

    #[test]
    fn values_that_cannot_be_read_are_lost() {
        let dir = tempfile::tempdir().unwrap();
        let tensor = TensorView::from_slice(&[1 << 20], &[0_u8; 1 << 20]).unwrap();
        let open = |name: &str| {
            let path = dir.path().join(name);
            save(&path, [("x", tensor)], &SaveOptions::new().durable(false)).unwrap();
            input::open(&path).unwrap()
        };
        let (old, new) = (open("old"), open("new"));
        let loss = || loss_of_values(&old, Rewrite::of(&new).tensors());
        assert!(loss().is_none());
        let file = fs::File::options().write(true).open(dir.path().join("old")).unwrap();
        file.set_len(1 << 10).unwrap();
        assert!(matches!(loss(), Some(Loss::Unreadable(_))), "{:?}", loss());
    }
}
