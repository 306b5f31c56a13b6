//! [`Source`]: an open input.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use safetensors_core::framework::Quoted;
use safetensors_core::quantized::{LinearLayers, QuantizedWeight};
use safetensors_core::{Dtype, Error};
use safetensors_formats::{Format, Stored, npy, npz};

use super::changes::Change;
use super::lora::Adapters;
use crate::input;
use crate::input::find;
use crate::input::kind::Kind;
use crate::input::{Checkpoint, Opening, Rewrite};
use crate::input::{address, other};
pub(super) use crate::model::config::{CONFIG, MOST, config_of};
use crate::output::existing::{files_of, identity};
use crate::output::numpy;
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::text;

/// Ends the warning that codes are copied with scales that cannot be recognised.
pub(super) const FLOATS_STAY: &str = "all floats stay as they are: scales may be among them";

/// An open input, from which tensors are taken.
pub(super) struct Source {
    path: PathBuf,
    content: Content,
    /// The quantised weights that are read as numbers.
    pub(super) numbers: Vec<QuantizedWeight>,
    /// The names of the others, and of the tensors that store them.
    pub(super) kept: Vec<String>,
    /// The dtypes that merged tensors have without adapters, by their names.
    pub(super) merged: HashMap<String, Dtype>,
}

enum Content {
    /// A safetensors file, or a checkpoint of several.
    Checkpoint(Box<Checkpoint>),
    /// One array of NumPy.
    Npy(npy::Array),
    /// An archive of such arrays.
    Npz(npz::Archive),
}

impl Source {
    /// Opens an input. Its name determines its kind. For an archive, only the names are read.
    ///
    /// With `change`, quantised tensors become numbers. Then adapters are merged.
    pub(super) fn open(
        path: &Path,
        change: &Change<'_>,
        adapters: &Adapters,
    ) -> anyhow::Result<Self> {
        let content = match Kind::of(path) {
            Kind::Other(Format::Npy | Format::Npz) if address::of(path).is_some() => anyhow::bail!(
                "{}: NumPy's files are read from the disk only; download it first",
                input::name(path)
            ),
            Kind::Other(Format::Npy) => {
                Content::Npy(npy::Array::open(path).map_err(numpy::unread)?)
            }
            Kind::Other(Format::Npz) => {
                Content::Npz(npz::Archive::open(path).map_err(numpy::unread)?)
            }
            Kind::Safetensors | Kind::Index | Kind::Checkpoint | Kind::Other(_) => {
                return Self::of_checkpoint(path, change, adapters);
            }
            Kind::Foreign(format) => {
                return Err(wrong_usage(format!(
                    "{}: {format} files cannot be read; convert it to .safetensors or .npz first, \
                     with a tool that knows {format}",
                    text::path(path)
                )));
            }
        };
        if !adapters.is_empty() {
            return Err(wrong_usage("--lora is for a checkpoint, not for NumPy's files"));
        }
        let (numbers, kept, merged) = Default::default();
        Ok(Self { path: path.into(), content, numbers, kept, merged })
    }

    fn of_checkpoint(
        path: &Path,
        change: &Change<'_>,
        adapters: &Adapters,
    ) -> anyhow::Result<Self> {
        let optimizer_state = change.changes.optimizer_state;
        let dequantize = change.may_make_numbers();
        let transformers = change.changes.names.is_some();
        let opening = Opening { optimizer_state, dequantize, transformers, ..Opening::default() };
        let mut checkpoint = input::open_with(path, opening)?;
        let mut numbers = Vec::new();
        let mut kept = Vec::new();
        if change.may_make_numbers() {
            let layers = layers_of(change, Some(&checkpoint), LinearLayers::new())?;
            let makes = |weight: &QuantizedWeight| change.makes_numbers_of(weight, &layers);
            let mut left = BTreeSet::new();
            let mut leaves = |error: &Error| {
                let start = change.left_by(error);
                if start.is_some_and(|it| left.insert(it.to_owned()) && it.is_empty()) {
                    warn(format!("{error}; {FLOATS_STAY}"));
                }
                start.is_some()
            };
            let weights = checkpoint.quantized_weights_but(&mut leaves)?;
            let others: Vec<_>;
            (numbers, others) = weights.into_iter().partition(makes);
            refuse_two_schemes(path, change, &others)?;
            if !numbers.is_empty() {
                checkpoint = checkpoint.dequantized_but(&mut leaves, makes)?.into_boxed();
            }
            kept.extend(others.into_iter().flat_map(|it| [it.tensors, vec![it.name]].concat()));
            let is_left = |name: &&str| left.iter().any(|start| name.starts_with(start));
            let names = checkpoint.tensors().map(|tensor| tensor.name()).filter(is_left);
            kept.extend(names.map(str::to_owned));
            kept.retain(|name| change.takes(name));
        }
        let (checkpoint, merged) = adapters.merged(checkpoint)?;
        let content = Content::Checkpoint(Box::new(checkpoint));
        Ok(Self { path: path.into(), content, numbers, kept, merged })
    }

    /// Returns the name to show in messages.
    pub(super) fn name(&self) -> String {
        input::name(&self.path)
    }

    /// Warns of parts of a trainer's directory that are not read, such as files, as `inspect` shows
    /// it.
    pub(super) fn warn_of_notes(&self) {
        for file in self.checkpoint().map_or(&[][..], |it| it.files()) {
            let other = other::of(file.safetensors().source());
            let other = other.filter(|other| other.format().is_of_directories());
            for note in other.map_or(&[][..], |other| other.notes()) {
                warn(format!("{}: {}", text::path(file.path()), text::printable(note)));
            }
        }
    }

    pub(super) fn is_of_gguf(&self) -> bool {
        let files = self.checkpoint().map_or(&[][..], |it| it.files()).iter();
        let mut others = files.filter_map(|file| other::of(file.safetensors().source()));
        others.any(|other| other.format() == Format::Gguf)
    }

    /// Returns `true` if codes of it are read as numbers, also by the format of its file.
    pub(super) fn makes_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.stored().any(|(_, stored)| stored.is_quantised)
    }

    /// Returns the paths of its files.
    pub(super) fn files(&self) -> HashSet<PathBuf> {
        match self.checkpoint() {
            Some(checkpoint) => files_of(checkpoint),
            None => HashSet::from([identity(&self.path)]),
        }
    }

    /// The checkpoint, unless it is one of NumPy's files.
    pub(super) fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.content {
            Content::Checkpoint(checkpoint) => Some(checkpoint),
            Content::Npy(_) | Content::Npz(_) => None,
        }
    }

    pub(super) fn is_of_directory(&self) -> bool {
        self.checkpoint().is_some_and(Checkpoint::is_of_directory)
    }

    /// Returns `true` if this is the `config.json` next to its files.
    pub(super) fn has_config(&self, path: Option<&Path>) -> bool {
        let Some(checkpoint) = self.checkpoint() else { return false };
        let file = checkpoint.files().first().map(|file| file.path());
        let file = checkpoint.index_path().or(file);
        let own = file.map(|file| identity(&file.with_file_name(CONFIG)));
        path.is_some() && own.as_deref() == path
    }

    /// Returns the names of all tensors, including aliases.
    pub(super) fn names(&self) -> Vec<&str> {
        match &self.content {
            Content::Checkpoint(checkpoint) => find::names(checkpoint),
            Content::Npy(array) => vec![array.name()],
            Content::Npz(archive) => archive.names().collect(),
        }
    }

    /// Warns of quantised weights that lose some of their tensors, but not the codes: the options
    /// drop others, or rename them in another way.
    pub(super) fn warn_of_lone_codes(&self, rewrite: &Rewrite<'_>) {
        let written = rewrite.tensors().map(|(name, tensor)| (tensor.source_name(), name));
        let written: HashMap<_, _> = written.collect();
        if written.iter().all(|(old, new)| old == new)
            && self.names().iter().all(|name| written.contains_key(name))
        {
            return;
        }
        let weights = self.checkpoint().map(|it| it.quantized_weights_but(&mut |_| true));
        let mut lost = Vec::new();
        for weight in weights.into_iter().flatten().flatten() {
            let old: Vec<_> = weight.tensors.iter().map(String::as_str).collect();
            let new: Vec<_> = old.iter().filter_map(|name| written.get(name).copied()).collect();
            if new.len() < old.len() && written.contains_key(old[0]) {
                let missing = old.into_iter().filter(|name| !written.contains_key(name));
                lost.extend(missing.map(str::to_owned));
            } else if new.len() == old.len() && ends(&old) != ends(&new) {
                lost.extend(old[1..].iter().copied().map(str::to_owned));
            }
        }
        if !lost.is_empty() {
            warn(format!(
                "{}: dropped or renamed, and needed to read quantised weights: {}; \
                 --dequantize f32 makes numbers of the weights",
                self.name(),
                text::some(&lost)
            ));
        }
    }

    /// Adds the tensors to the rewrite. Skips arrays that are not taken: an array that cannot be
    /// read would be an error.
    pub(super) fn add_to<'a>(
        &'a self,
        rewrite: Rewrite<'a>,
        change: &Change<'_>,
        layers: &LinearLayers,
    ) -> anyhow::Result<Rewrite<'a>> {
        match &self.content {
            Content::Checkpoint(checkpoint) => {
                self.refuse_unreadable(change, layers)?;
                Ok(rewrite.merge(checkpoint))
            }
            Content::Npy(array) if !change.takes(array.name()) => Ok(rewrite),
            Content::Npy(array) => Ok(rewrite.add(array.name(), array)?),
            Content::Npz(archive) => {
                let mut taken = archive.names().enumerate().filter(|(_, name)| change.takes(name));
                taken.try_fold(rewrite, |rewrite, (i, name)| {
                    Ok(rewrite.add(name, archive.array_at(i).map_err(numpy::unread)?)?)
                })
            }
        }
    }

    /// Returns the tensors that are stored in another way than their dtypes say, by name.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&str, &Stored)> {
        let files = self.checkpoint().map_or(&[][..], |it| it.files()).iter();
        let files = files.filter_map(|file| other::of(file.safetensors().source()));
        files.flat_map(|file| file.all_stored())
    }

    /// Refuses a tensor that is taken and cannot be read, before anything is written.
    fn refuse_unreadable(&self, change: &Change<'_>, layers: &LinearLayers) -> anyhow::Result<()> {
        let mut unreadable = self.stored().filter(|(name, it)| {
            let is_number = it.is_readable
                && (!it.is_quantised || change.makes_numbers(name, &it.shape, layers));
            !is_number && change.takes(name)
        });
        let Some((name, stored)) = unreadable.next() else { return Ok(()) };
        let tensor = self.checkpoint().and_then(|checkpoint| checkpoint.tensor(name).ok());
        if let Some(why) = tensor.and_then(|tensor| other::why_unread(&tensor)) {
            anyhow::bail!("{}; --drop leaves it out", text::printable(&why))
        }
        let (path, name, kind) = (self.name(), Quoted(name), &stored.type_name);
        anyhow::bail!(
            "{path}: tensor {name} is quantised as {kind}; --dtype bf16 makes numbers of it, --drop \
             leaves it out"
        )
    }

    /// Checks the size that an archive claims to unpack to, before disk space is reserved for it.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.content {
            Content::Npz(archive) => archive.check().map_err(numpy::unread),
            Content::Checkpoint(_) | Content::Npy(_) => Ok(()),
        }
    }
}

/// Returns the ends of names, after their longest common start.
fn ends<'n>(names: &[&'n str]) -> Vec<&'n [u8]> {
    let first = names.first().map_or(&[][..], |name| name.as_bytes());
    let is_common = |&at: &usize| names.iter().all(|name| name.as_bytes().get(at) == first.get(at));
    let common = (0..first.len()).take_while(is_common).count();
    names.iter().map(|name| &name.as_bytes()[common..]).collect()
}

/// Adds the description of the model's layers in `config.json` next to a checkpoint, if weights are
/// quantised.
pub(super) fn layers_of(
    change: &Change<'_>,
    checkpoint: Option<&Checkpoint>,
    layers: LinearLayers,
) -> anyhow::Result<LinearLayers> {
    let checkpoint = checkpoint.filter(|_| change.quantization().is_some());
    let Some((path, text)) = config_of(checkpoint)? else { return Ok(layers) };
    Ok(layers.config(&text).map_err(|error| error.in_path(&path))?)
}

/// Refuses to quantise some weights of an input, and to keep others that are quantised already: no
/// `config.json` describes both.
fn refuse_two_schemes(
    path: &Path,
    change: &Change<'_>,
    kept: &[QuantizedWeight],
) -> anyhow::Result<()> {
    let Some(how) = change.quantization() else { return Ok(()) };
    let Some(weight) = kept.iter().find(|weight| change.takes(&weight.name)) else { return Ok(()) };
    let (path, name) = (input::name(path), Quoted(&weight.name));
    anyhow::bail!(
        "{path}: tensor {name} is stored as {} and would not be quantised as {how}; --dtype makes \
         numbers of it, --cast 'NAME=quantize' quantises it, --drop leaves it out",
        weight.scheme
    )
}
