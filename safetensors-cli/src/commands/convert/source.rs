//! [`Source`]: an open input.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use safetensors_core::framework::Quoted;
use safetensors_core::lora::Adapter;
use safetensors_core::quantized::{LinearLayers, QuantizedWeight};
use safetensors_core::{Dtype, Error};
use safetensors_formats::{Format, Stored, TensorFile};

use super::changes::Change;
use super::lora;
use crate::input;
use crate::input::find;
use crate::input::kind::Kind;
use crate::input::other;
use crate::input::{Checkpoint, Opening, Rewrite, path_of};
pub(super) use crate::model::config::{CONFIG, MOST, config_of};
use crate::output::existing::{files_of, identity};
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::text;

/// Ends the warning that codes are copied with unrecognised scales.
pub(super) const FLOATS_STAY: &str = "all floats stay unchanged: scales may be among them";

pub(super) struct Source {
    path: PathBuf,
    pub(super) checkpoint: Checkpoint,
    /// The quantised weights that are read as numbers.
    pub(super) numbers: Vec<QuantizedWeight>,
    /// The names of the other weights and of the tensors that store them.
    pub(super) kept: Vec<String>,
    /// The dtypes of merged tensors before the merge.
    pub(super) merged: HashMap<String, Dtype>,
    /// The files with settings for experts in another layout.
    pub(super) settings: BTreeMap<&'static str, String>,
}

impl Source {
    /// The name determines the kind. `change` makes numbers of quantised tensors, then merges
    /// adapters.
    pub(super) fn open(
        path: &Path,
        change: &Change<'_>,
        adapters: &[Adapter],
    ) -> anyhow::Result<Self> {
        if let Kind::Foreign(format) = Kind::from_path(path) {
            return Err(wrong_usage(format!(
                "{}: {format} files cannot be read; convert it to .safetensors or .npz first, \
                 with a tool that knows {format}",
                text::path(path)
            )));
        }
        let optimizer_state = change.changes.optimizer_state;
        let dequantize = change.may_make_numbers();
        let transformers = change.changes.names.is_some();
        let opening = Opening { optimizer_state, dequantize, transformers, ..Opening::default() };
        let checkpoint = input::open_with(path, opening)?;
        let layers = layers_of(change, &checkpoint, LinearLayers::new())?;
        let makes = |weight: &QuantizedWeight| change.makes_numbers_of(weight, &layers);
        let mut settings = BTreeMap::new();
        let experts = &change.changes.experts;
        let (mut checkpoint, mut numbers) = experts.arrange(checkpoint, &mut settings, makes)?;
        let mut kept = Vec::new();
        if change.may_make_numbers() {
            let mut left = BTreeSet::new();
            let mut leaves = |error: &Error| {
                let start = change.left_by(error);
                if start.is_some_and(|it| left.insert(it.to_owned()) && it.is_empty()) {
                    warn(format!("{error}; {FLOATS_STAY}"));
                }
                start.is_some()
            };
            let weights = checkpoint.quantized_weights_but(&mut leaves)?;
            let (wanted, others): (Vec<_>, Vec<_>) = weights.into_iter().partition(makes);
            refuse_two_schemes(path, change, &others)?;
            if !wanted.is_empty() {
                checkpoint = checkpoint.dequantized_but(&mut leaves, makes)?.into_boxed();
            }
            numbers.extend(wanted);
            kept.extend(others.into_iter().flat_map(|it| [it.tensors, vec![it.name]].concat()));
            let is_left = |name: &&str| left.iter().any(|start| name.starts_with(start));
            let names = checkpoint.tensors().map(|tensor| tensor.name()).filter(is_left);
            kept.extend(names.map(str::to_owned));
            kept.retain(|name| change.takes(name));
        }
        let (checkpoint, merged) = lora::merged(adapters, checkpoint)?;
        Ok(Self { path: path.into(), checkpoint, numbers, kept, merged, settings })
    }

    pub(super) fn name(&self) -> String {
        input::name(&self.path)
    }

    /// Warns of unread parts of a trainer's directory.
    pub(super) fn warn_of_notes(&self) {
        for (path, file) in self.others().filter(|(_, it)| it.format().is_of_directories()) {
            for note in file.notes() {
                warn(format!("{}: {}", text::path(path), text::printable(note)));
            }
        }
    }

    /// Returns the files of other formats.
    fn others(&self) -> impl Iterator<Item = (&Path, &TensorFile)> {
        let files = self.checkpoint.files().iter();
        files.filter_map(|it| Some((it.path(), other::tensor_file(it.safetensors().source())?)))
    }

    pub(super) fn is_of_gguf(&self) -> bool {
        self.others().any(|(_, file)| file.format() == Format::Gguf)
    }

    /// Returns `true` if codes are read as numbers, also by the format of the file.
    pub(super) fn makes_numbers(&self) -> bool {
        !self.numbers.is_empty() || self.stored().any(|(_, stored)| stored.is_quantised)
    }

    pub(super) fn files(&self) -> HashSet<PathBuf> {
        files_of(&self.checkpoint)
    }

    /// Returns the names of all tensors, including aliases.
    pub(super) fn names(&self) -> Vec<&str> {
        find::names(&self.checkpoint)
    }

    /// Returns `true` if this is the one next to its files.
    pub(super) fn has_config(&self, path: Option<&Path>) -> bool {
        let own = path_of(&self.checkpoint).map(|file| identity(&file.with_file_name(CONFIG)));
        path.is_some() && own.as_deref() == path
    }

    /// Warns of codes that options separate from other parts of their weight.
    pub(super) fn warn_of_lone_codes(&self, rewrite: &Rewrite<'_>) {
        let written = rewrite.tensors().map(|(name, tensor)| (tensor.source_name(), name));
        let written: HashMap<_, _> = written.collect();
        if written.iter().all(|(old, new)| old == new)
            && self.names().iter().all(|name| written.contains_key(name))
        {
            return;
        }
        let weights = self.checkpoint.quantized_weights_but(&mut |_| true);
        let mut lost = Vec::new();
        for weight in weights.into_iter().flatten() {
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

    /// Returns tensors stored otherwise than their dtypes say.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.others().flat_map(|(_, file)| file.all_stored())
    }

    /// Refuses selected tensors that cannot be read, before anything is written.
    pub(super) fn refuse_unreadable(
        &self,
        change: &Change<'_>,
        layers: &LinearLayers,
    ) -> anyhow::Result<()> {
        let mut unreadable = self.stored().filter(|(name, it)| {
            let is_number = it.is_readable
                && (!it.is_quantised || change.makes_numbers(name, &it.shape, layers));
            !is_number && change.takes(name)
        });
        let Some((name, stored)) = unreadable.next() else { return Ok(()) };
        let tensor = self.checkpoint.tensor(name).ok();
        if let Some(why) = tensor.and_then(|tensor| other::why_unread(&tensor)) {
            anyhow::bail!("{}; --drop skips it", text::printable(&why))
        }
        let (path, name, kind) = (self.name(), Quoted(name), &stored.type_name);
        anyhow::bail!(
            "{path}: tensor {name} is quantised as {kind}; --dtype bf16 makes numbers of it, \
             --drop skips it"
        )
    }
}

/// Returns the ends after a common start.
fn ends<'n>(one: &'n str, other: &'n str) -> [&'n [u8]; 2] {
    let common = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    [one, other].map(|name| &name.as_bytes()[common..])
}

/// Adds `config.json`'s layers, if weights are quantised.
pub(super) fn layers_of(
    change: &Change<'_>,
    checkpoint: &Checkpoint,
    layers: LinearLayers,
) -> anyhow::Result<LinearLayers> {
    if change.quantization().is_none() {
        return Ok(layers);
    }
    let Some((path, text)) = config_of(checkpoint)? else { return Ok(layers) };
    Ok(layers.config(&text).map_err(|error| error.in_path(&path))?)
}

// No `config.json` describes both.
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
         numbers of it, --cast 'NAME=quantize' quantises it, --drop skips it",
        weight.scheme
    )
}
