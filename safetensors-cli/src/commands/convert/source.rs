//! [`Source`]: an open input.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use safetensors_core::framework::Quoted;
use safetensors_core::lora::Adapter;
use safetensors_core::quantized::{LinearLayers, QuantizedWeight};
use safetensors_core::{Dtype, Error};
use safetensors_formats::{Format, Stored, npz};

use super::changes::Change;
use super::lora;
use crate::input;
use crate::input::find;
use crate::input::kind::Kind;
use crate::input::other::TensorFile;
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
    /// The `config.json` of its experts in another layout.
    pub(super) config: Option<String>,
}

enum Content {
    Checkpoint(Box<Checkpoint>),
    /// An archive of NumPy's arrays, of which not all need be readable.
    Npz(npz::Archive),
}

impl Source {
    /// Opens an input. Its name determines its kind. For an archive, only the names are read.
    ///
    /// With `change`, quantised tensors become numbers. Then adapters are merged.
    pub(super) fn open(
        path: &Path,
        change: &Change<'_>,
        adapters: &[Adapter],
    ) -> anyhow::Result<Self> {
        let content = match Kind::of(path) {
            Kind::Other(Format::Npz) if address::of(path).is_some() => anyhow::bail!(
                "{}: NumPy's archives are read from the disk only; download it first",
                input::name(path)
            ),
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
        let option = if adapters.is_empty() { "--experts" } else { "--lora" };
        if !adapters.is_empty() || change.changes.experts.is_given() {
            let problem = format!("{option} is for a checkpoint, not for NumPy's archives");
            return Err(wrong_usage(problem));
        }
        let (numbers, kept, merged, config) = Default::default();
        Ok(Self { path: path.into(), content, numbers, kept, merged, config })
    }

    fn of_checkpoint(
        path: &Path,
        change: &Change<'_>,
        adapters: &[Adapter],
    ) -> anyhow::Result<Self> {
        let optimizer_state = change.changes.optimizer_state;
        let dequantize = change.may_make_numbers();
        let transformers = change.changes.names.is_some();
        let opening = Opening { optimizer_state, dequantize, transformers, ..Opening::default() };
        let checkpoint = input::open_with(path, opening)?;
        let (mut checkpoint, config) = change.changes.experts.arrange(checkpoint)?;
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
        let (checkpoint, merged) = lora::merged(adapters, checkpoint)?;
        let content = Content::Checkpoint(Box::new(checkpoint));
        Ok(Self { path: path.into(), content, numbers, kept, merged, config })
    }

    /// Returns the name to show in messages.
    pub(super) fn name(&self) -> String {
        input::name(&self.path)
    }

    /// Warns of parts of a trainer's directory that are not read, such as files, as `inspect` shows
    /// it.
    pub(super) fn warn_of_notes(&self) {
        for (path, file) in self.others().filter(|(_, it)| it.format().is_of_directories()) {
            for note in file.notes() {
                warn(format!("{}: {}", text::path(path), text::printable(note)));
            }
        }
    }

    /// Returns the files of other formats.
    fn others(&self) -> impl Iterator<Item = (&Path, &TensorFile)> {
        let files = self.checkpoint().map_or(&[][..], |it| it.files()).iter();
        files.filter_map(|it| Some((it.path(), other::of(it.safetensors().source())?)))
    }

    pub(super) fn is_of_gguf(&self) -> bool {
        self.others().any(|(_, file)| file.format() == Format::Gguf)
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

    /// The checkpoint, unless it is an archive of NumPy.
    pub(super) fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.content {
            Content::Checkpoint(checkpoint) => Some(checkpoint),
            Content::Npz(_) => None,
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
            let [old_codes, companions @ ..] = &weight.tensors[..] else { continue };
            let Some(codes) = written.get(old_codes.as_str()) else { continue };
            for old in companions {
                let new = written.get(old.as_str());
                if new.is_none_or(|new| ends(codes, new) != ends(old_codes, old)) {
                    lost.push(old.clone());
                }
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
        self.others().flat_map(|(_, file)| file.all_stored())
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
            Content::Checkpoint(_) => Ok(()),
        }
    }
}

/// Returns the ends of two names, after their longest common start.
fn ends<'n>(one: &'n str, other: &'n str) -> [&'n [u8]; 2] {
    let common = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    [one, other].map(|name| &name.as_bytes()[common..])
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
