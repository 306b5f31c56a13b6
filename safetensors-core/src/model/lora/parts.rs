//! [`Parts`]: the purposes of an adapter's tensors.

use std::collections::BTreeMap;

use super::config::{Config, Fields, wrong};
use super::experts;
use super::kinds::{ENDS, End, Kind, MODELS, Role, Tensors, unknown};
use super::matrix::{Matrix, ProductShape};
use super::names::{LoraName, LoraTarget, Names};
use super::source::{Source, at, located, mismatch, misshapen};
use crate::file::load::LoadOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{AdapterProblem, Result};
use crate::format::patterns::Expressions;
use crate::format::python_json;

/// The changes of an adapter.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) modules: Vec<Module>,
    /// Tensors that replace the checkpoint's.
    pub(super) whole: Vec<LoraName>,
    /// Whether the adapter is of a version of PEFT before 0.19.
    pub(super) is_before_0_19: bool,
}

/// A module that changes its weight or its bias. Tensors are positions in the adapter.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    /// The part of the pipeline that the module belongs to.
    pub(super) group: String,
    /// Whether the name has `_` instead of `.`, as in kohya's files.
    pub(super) is_flattened: bool,
    pub(super) kind: Kind,
    pub(super) changes: Vec<Change>,
    pub(super) tensors: BTreeMap<Role, usize>,
    /// The setting `fan_in_fan_out`; `None` if no weight is stored transposed.
    pub(super) is_transposed: Option<bool>,
    /// Whether it changes a parameter of `target_parameters`, a stack of experts.
    pub(super) has_experts: bool,
}

/// How a module changes a tensor.
#[derive(Debug)]
pub(super) struct Change {
    /// The end of the tensor's name, such as `weight`.
    pub(super) end: String,
    pub(super) matrix: Matrix,
    pub(super) shape: ProductShape,
    /// The factor of the matrix.
    pub(super) scaling: f64,
}

/// A change, with its module.
pub(super) type Changed<'a> = (&'a Module, &'a Change);

impl Change {
    pub(super) fn is_bias(&self) -> bool {
        self.end == "bias"
    }

    /// Returns the position of a tensor for errors.
    pub(super) fn position(&self) -> usize {
        self.matrix.ends()[0]
    }
}

impl Module {
    pub(super) fn magnitude(&self) -> Option<usize> {
        self.tensors.get(&Role::Magnitude).copied()
    }

    /// Returns its changes, with itself.
    pub(super) fn changes(&self) -> impl Iterator<Item = Changed<'_>> {
        self.changes.iter().map(move |change| (self, change))
    }

    /// Returns `true` if its group may belong to another model than the checkpoint.
    pub(super) fn may_be_left(&self) -> bool {
        self.is_flattened || MODELS.iter().any(|(name, ..)| *name == self.group)
    }
}

/// PEFT's prefix of all names.
pub(super) const PEFT: &str = "base_model.model.";

/// The parts of names by `torch.compile` and FSDP.
const WRAPPERS: &[&str] = &["_orig_mod", "_fsdp_wrapped_module"];

/// The starts of the parts of names that the name of an adapter follows.
const NAMED: &[&str] = &["lora_", "hada_", "lokr_", "modules_to_save"];

/// The settings in the metadata of a file that diffusers saved: several models, by their names.
pub(super) const DIFFUSERS: &str = "lora_adapter_metadata";

impl Parts {
    /// Finds the purpose of each tensor. `config` belongs to a directory of PEFT or mlx-lm.
    pub(super) fn read(source: &Source, config: Option<&Config>) -> Result<Self> {
        let is_before_0_19 = config.is_some_and(Config::is_before_0_19);
        let mut parts = Self { modules: Vec::new(), whole: Vec::new(), is_before_0_19 };
        let mut found = BTreeMap::<String, Tensors<'_>>::new();
        for (position, tensor) in source.tensors().enumerate() {
            let name = plain(tensor.name());
            if config.is_none() && name.starts_with(PEFT) {
                return Err(wrong("adapter_config.json is missing next to the file"));
            }
            let name = name.strip_prefix(PEFT).unwrap_or(&name);
            if let Some(&end) = ENDS.iter().find(|end| is_end(end, name, config)) {
                if config.is_some() && end.2 == Role::W2 && tensor.shape().len() == 3 {
                    // PEFT's product has its numbers in another order.
                    let found = "lokr_w2 of a convolution with one dimension".to_owned();
                    return Err(located(&tensor, AdapterProblem::Unsupported { found }));
                }
                let module = &name[..name.len() - end.0.len()];
                let of_module = found.entry(module.to_owned());
                of_module.or_insert_with(|| Tensors::new(source, module)).add(end, position)?;
                continue;
            }
            let Some(config) = config else {
                let found = unknown(tensor.name());
                return Err(located(&tensor, AdapterProblem::Unsupported { found }));
            };
            parts.whole.extend(whole(source, name).map(|name| LoraName {
                position,
                may_be_new: config.is_whole(&name),
                name,
                is_flattened: false,
                kind: None,
            }));
        }
        let models = if config.is_some() { BTreeMap::new() } else { of_diffusers(source)? };
        let settings = Settings { config, models };
        for tensors in found.values() {
            let is_known = |other: &str| found.contains_key(other);
            parts.modules.push(settings.module(tensors, is_known)?);
        }
        Ok(parts)
    }

    /// Returns the changes of each part of the pipeline. Tensors that replace others are in files
    /// with one part.
    pub(super) fn groups(&self) -> BTreeMap<&str, Vec<Changed<'_>>> {
        let mut groups = BTreeMap::<_, Vec<_>>::new();
        for module in &self.modules {
            groups.entry(&*module.group).or_default().extend(module.changes());
        }
        if groups.is_empty() {
            groups.insert("", Vec::new());
        }
        groups
    }

    /// Finds the tensors of a checkpoint for all that are replaced, then for the changes of a
    /// group. Returns also whether names have a longer prefix there.
    pub(super) fn find<'a>(
        &self,
        source: &Source,
        names: &Names<'a>,
        group: &[Changed<'_>],
    ) -> Result<(Vec<Option<LoraTarget<'a>>>, bool)> {
        let changes = group.iter().map(wanted);
        let wanted: Vec<_> = self.whole.iter().cloned().chain(changes).collect();
        let found = names.find(&wanted);
        found.map_err(|(number, error)| at(source, wanted[number].position, error))
    }
}

/// Returns the tensor of the checkpoint that a change means.
fn wanted((module, change): &Changed<'_>) -> LoraName {
    let dot = if module.is_flattened { '_' } else { '.' };
    LoraName {
        position: change.position(),
        name: format!("{}{dot}{}", module.name, change.end),
        is_flattened: module.is_flattened,
        may_be_new: false,
        kind: Some(module.kind),
    }
}

/// Returns `true` for the end of a name of a module's tensor. Some ends are plain words, which mean
/// something only in files of some libraries.
fn is_end((end, kind, _): &End, name: &str, config: Option<&Config>) -> bool {
    let is_possible = match kind {
        Kind::Kohya | Kind::Full => config.is_none(),
        Kind::Mlx => config.is_some_and(|config| config.is_mlx),
        _ => true,
    };
    is_possible && name.ends_with(end)
}

/// Returns a name without the parts that PyTorch's wrappers and the name of PEFT's adapter add.
fn plain(name: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for part in name.split('.') {
        let is_before = |start| kept.last().is_some_and(|last| last.starts_with(start));
        let is_adapter = part == "default" && NAMED.iter().any(|start| is_before(*start));
        if !is_adapter && !WRAPPERS.contains(&part) {
            kept.push(part);
        }
    }
    kept.join(".")
}

/// Returns the name of the checkpoint's tensor that a tensor of PEFT replaces. `None` for a copy:
/// with `bias: "all"`, PEFT also saves the original of a module of `modules_to_save`, and its
/// biases twice.
fn whole(source: &Source, name: &str) -> Option<String> {
    if name.contains(".original_module.") {
        return None;
    }
    let plain = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".");
    let twice = source.get(&plain).or(source.get(&format!("{PEFT}{plain}")));
    (plain == name || twice.is_none()).then_some(plain)
}

/// Returns the settings that diffusers recorded, by the names of models such as `transformer`.
fn of_diffusers(source: &Source) -> Result<BTreeMap<String, Config>> {
    let Some(json) = source.metadata().get(DIFFUSERS) else { return Ok(BTreeMap::new()) };
    let fields: Fields = serde_json::from_slice(&python_json::plain(json.as_bytes()))
        .map_err(|error| wrong(format!("{DIFFUSERS}: {error}")))?;
    let mut models = BTreeMap::<String, Fields>::new();
    for (key, value) in fields {
        if let Some((model, field)) = key.split_once('.')
            && field != "peft_type"
        {
            models.entry(model.to_owned()).or_default().insert(field.to_owned(), value);
        }
    }
    let mut expressions = Expressions::default();
    let config = |(model, fields)| Ok((model, Config::read(fields, &mut expressions)?));
    models.into_iter().map(config).collect()
}

/// The settings of all modules.
struct Settings<'a> {
    config: Option<&'a Config>,
    /// The settings of models, in a file of diffusers.
    models: BTreeMap<String, Config>,
}

impl Settings<'_> {
    /// Checks the tensors of a module. `is_known` finds other modules by their names.
    fn module(&self, tensors: &Tensors<'_>, is_known: impl Fn(&str) -> bool) -> Result<Module> {
        let (name, parameter) = match self.config {
            Some(config) => experts::parameter(&tensors.module, config, is_known)?,
            None => (&*tensors.module, None),
        };
        let (group, name, is_flattened) = self.split(name);
        let config = self.of_group(group);
        let has_diff = tensors.get(Role::DiffBias).is_some();
        let kind = tensors.kind.unwrap_or(if has_diff { Kind::Full } else { Kind::Peft });
        let is_layer = kind.is_lora() && kind != Kind::Embedding;
        let mut module = Module {
            name: name.to_owned(),
            group: group.to_owned(),
            is_flattened: is_flattened && config.is_none(),
            kind,
            changes: Vec::new(),
            tensors: tensors.positions.clone(),
            is_transposed: config.filter(|_| is_layer).map(|it| it.is_transposed),
            has_experts: parameter.is_some(),
        };
        let weight = self.weight(tensors, &module, parameter)?;
        let factor = weight.as_ref().map_or(1.0, |weight| weight.scaling);
        module.changes.extend(weight);
        for (role, scaling) in [(Role::UpBias, factor), (Role::DiffBias, 1.0)] {
            if let Some(matrix) = tensors.get(role).map(Matrix::Stored) {
                let shape = matrix.shape(tensors.source)?;
                module.changes.push(Change { end: "bias".to_owned(), matrix, shape, scaling });
            }
        }
        if config.is_some_and(|config| config.is_dora) {
            tensors.need(Role::Magnitude)?;
        }
        Ok(module)
    }

    fn of_group(&self, group: &str) -> Option<&Config> {
        self.config.or_else(|| self.models.get(group))
    }

    /// Returns the change of the weight, or of a parameter.
    fn weight(
        &self,
        tensors: &Tensors<'_>,
        module: &Module,
        parameter: Option<&str>,
    ) -> Result<Option<Change>> {
        let source = tensors.source;
        let Some(mut matrix) = Matrix::new(tensors, module.kind)? else {
            return Ok(None);
        };
        let path = parameter.map_or(module.name.clone(), |it| format!("{}.{it}", module.name));
        let config = self.of_group(&module.group).filter(|_| module.kind != Kind::Full);
        let rank = config.map(|config| config.rank(&path));
        let mut shape = matrix.shape(source)?;
        if let (Some(expected), Some(all)) = (rank, shape.rank.filter(|_| module.has_experts)) {
            matrix.for_experts((all / expected.max(1.0) as usize).max(1));
            shape = matrix.shape(source)?;
        }
        let found = shape.rank.map(|rank| rank as f64);
        let scaling = match (config, rank, found, tensors.get(Role::Alpha)) {
            (_, Some(rank), Some(found), _) if rank != found => {
                let [expected, found] = [rank, found].map(|it| format!("a rank of {it}"));
                return Err(at(source, matrix.ends()[1], mismatch(expected, found)));
            }
            (Some(config), ..) => config.scaling(&path),
            (None, _, Some(rank), Some(alpha)) => number(source, alpha)? / rank,
            _ => 1.0,
        };
        let end = parameter.unwrap_or("weight").to_owned();
        Ok(Some(Change { end, matrix, shape, scaling }))
    }

    /// Divides the name of a module into its group and its name there. Returns `true` for a name
    /// of kohya.
    fn split<'n>(&self, name: &'n str) -> (&'n str, &'n str, bool) {
        if self.config.is_some() {
            return ("", name, false);
        }
        let Some((model, rest)) = name.split_once('.') else {
            let model = MODELS.iter().find(|(_, prefix, _)| name.starts_with(prefix));
            let (group, rest) = name.split_at(model.map_or(0, |(_, prefix, _)| prefix.len()));
            return (group, rest, model.is_some());
        };
        (model, if self.models.contains_key(model) { rest } else { name }, false)
    }
}

/// Reads the number in a tensor with one element.
fn number(source: &Source, position: usize) -> Result<f64> {
    let Some(tensor) = source.tensor_at(position) else { return Ok(1.0) };
    if tensor.element_count() != 1 {
        return Err(misshapen(&tensor, "one number"));
    }
    let number = tensor.read_with(&LoadOptions::new().all_as(Dtype::F64))?.into_vec::<f64>()?;
    Ok(number.first().copied().unwrap_or(1.0))
}
