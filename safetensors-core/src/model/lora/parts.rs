//! [`Parts`]: the purposes of an adapter's tensors.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::config::{Config, Fields, wrong};
use super::experts;
use super::fit::{Found, Names, Wanted};
use super::kinds::{ENDS, End, Family, Kind, Role, unknown};
use super::matrix::Matrix;
use super::source::{Source, located, mismatch};
use crate::file::load::LoadOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{AdapterProblem, Error, Result, Shape};
use crate::format::patterns::Expressions;
use crate::format::python_json;

/// The changes of an adapter.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) modules: Vec<Module>,
    /// Tensors that replace the checkpoint's.
    pub(super) whole: Vec<Wanted>,
    /// Whether the adapter is of a version of PEFT before 0.19.
    pub(super) is_before_0_19: bool,
}

/// A module that changes its weight or its bias. Tensors are positions in the adapter.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    /// The group of the modules in one part of the model.
    pub(super) group: String,
    /// Whether the name has `_` instead of `.`, as in kohya's files.
    pub(super) is_flattened: bool,
    pub(super) kind: Kind,
    pub(super) family: Family,
    pub(super) changes: Vec<Change>,
    pub(super) tensors: BTreeMap<Role, usize>,
    pub(super) magnitude: Option<usize>,
    /// The setting `fan_in_fan_out`; `None` if no weight is stored transposed.
    pub(super) is_transposed: Option<bool>,
    /// The number of experts, if it changes a parameter of `target_parameters`.
    pub(super) experts: Option<usize>,
}

/// How a module changes a tensor.
#[derive(Debug)]
pub(super) struct Change {
    /// The end of the tensor's name, such as `weight`.
    pub(super) end: String,
    /// The position of a tensor for errors.
    pub(super) position: usize,
    pub(super) matrix: Matrix,
    /// The factor of the matrix.
    pub(super) scaling: f64,
}

impl Change {
    pub(super) fn is_bias(&self) -> bool {
        self.end == "bias"
    }
}

impl Module {
    pub(super) fn is_embedding(&self) -> bool {
        self.family == Family::Embedding
    }

    /// Returns its changes, with itself.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&Self, &Change)> {
        self.changes.iter().map(move |change| (self, change))
    }

    /// Returns the tensors that it changes.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let dot = if self.is_flattened { '_' } else { '.' };
        self.changes.iter().map(move |change| Wanted {
            position: change.position,
            name: format!("{}{dot}{}", self.name, change.end),
            is_flattened: self.is_flattened,
            may_be_new: false,
            kind: Some(self.kind),
            group: self.group.clone(),
        })
    }
}

/// PEFT's prefix of all names.
pub(super) const PEFT: &str = "base_model.model.";

/// The prefixes of module names by kohya's scripts.
const KOHYA: &[&str] = &[
    "lora_unet_",
    "lora_te1_",
    "lora_te2_",
    "lora_te3_",
    "lora_te_",
    "lora_transformer_",
    "lycoris_",
];

/// The parts of names by `torch.compile` and FSDP.
const WRAPPERS: &[&str] = &["_orig_mod", "_fsdp_wrapped_module"];

/// The starts of the parts of names that the name of an adapter follows.
const NAMED: &[&str] = &["lora_", "hada_", "lokr_", "modules_to_save"];

/// The settings in the metadata of a file that diffusers saved: several models, by their names.
pub(super) const DIFFUSERS: &str = "lora_adapter_metadata";

/// The tensors of a module that were found so far.
#[derive(Debug, Default)]
struct Tensors {
    kind: Option<(Kind, Family)>,
    tensors: BTreeMap<Role, usize>,
}

impl Parts {
    /// Finds the purpose of each tensor. `config` belongs to a directory of PEFT or mlx-lm.
    pub(super) fn read(source: &Source, config: Option<&Config>) -> Result<Self> {
        let is_before_0_19 = config.is_some_and(Config::is_before_0_19);
        let mut parts = Self { modules: Vec::new(), whole: Vec::new(), is_before_0_19 };
        let mut found = BTreeMap::<String, Tensors>::new();
        for (position, tensor) in source.tensors().enumerate() {
            let name = plain(tensor.name());
            if config.is_none() && name.starts_with(PEFT) {
                return Err(wrong("adapter_config.json is missing beside the file"));
            }
            let name = name.strip_prefix(PEFT).unwrap_or(&name);
            if let Some(&end) = ENDS.iter().find(|end| is_end(end, name, config)) {
                if config.is_some() && end.3 == Role::W2 && tensor.shape().len() == 3 {
                    // PEFT's product has its numbers in another order.
                    let found = "lokr_w2 of a convolution with one dimension".to_owned();
                    return Err(located(&tensor, AdapterProblem::Unsupported { found }));
                }
                let module = &name[..name.len() - end.0.len()];
                let found = found.entry(module.to_owned()).or_default();
                found.add(end, position).map_err(|found| {
                    let found = format!("two {found} module {module:?}");
                    located(&tensor, AdapterProblem::Unsupported { found })
                })?;
                continue;
            }
            let Some(config) = config else {
                let found = unknown(tensor.name());
                return Err(located(&tensor, AdapterProblem::Unsupported { found }));
            };
            parts.whole.extend(whole(source, name).map(|name| Wanted {
                position,
                may_be_new: config.is_whole(&name),
                name,
                is_flattened: false,
                kind: None,
                group: String::new(),
            }));
        }
        let configs = if config.is_some() { BTreeMap::new() } else { of_diffusers(source)? };
        let all = All { source, config, configs, found };
        for (key, found) in &all.found {
            parts.modules.push(all.module(key, found)?);
        }
        Ok(parts)
    }

    /// Finds the tensors of a checkpoint that it changes: for the whole tensors, then for each
    /// change of each module.
    pub(super) fn find<'a>(&self, source: &Source, names: &Names<'a>) -> Result<Vec<Found<'a>>> {
        let of_modules = self.modules.iter().flat_map(Module::wanted);
        let wanted: Vec<_> = self.whole.iter().cloned().chain(of_modules).collect();
        names.find(&wanted).map_err(|(number, error)| {
            match source.tensor_at(wanted[number].position) {
                Some(tensor) => tensor.locate(error),
                None => error,
            }
        })
    }
}

impl Tensors {
    /// Adds a tensor, or returns its conflict with another.
    fn add(&mut self, (_, family, kind, role): End, position: usize) -> Result<(), &'static str> {
        if !role.is_of_any_kind() {
            let known = self.kind.get_or_insert((kind, family));
            if known.0 != kind {
                return Err("kinds of change for");
            }
            if known.1 != family {
                return Err("kinds of names for");
            }
        }
        match self.tensors.insert(role, position) {
            Some(_) => Err("tensors for one end of"),
            None => Ok(()),
        }
    }

    /// Returns the error of a module without a tensor that it needs. It is located at another of
    /// its tensors.
    fn missing(&self, source: &Source, name: &str, role: Role) -> Error {
        let of_kind = self.kind.unwrap_or((Kind::Lora, Family::Peft));
        let is_it = |(_, family, kind, it): &&End| *it == role && (*kind, *family) == of_kind;
        let end = ENDS.iter().find(is_it).or(ENDS.iter().find(|end| end.3 == role));
        let expected = format!("{name}{}", end.map_or("", |end| end.0));
        let problem = AdapterProblem::Missing { expected };
        match self.tensors.values().find_map(|&position| source.tensor_at(position)) {
            Some(tensor) => located(&tensor, problem),
            None => problem.into(),
        }
    }
}

/// Returns `true` for the end of a name of a module's tensor. Some ends are plain words, which mean
/// something only in files of some libraries.
fn is_end((end, family, ..): &End, name: &str, config: Option<&Config>) -> bool {
    let is_possible = match family {
        Family::Kohya => config.is_none(),
        Family::Mlx => config.is_some_and(|config| config.is_mlx),
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
    let fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(&python_json::plain(json.as_bytes()))
            .map_err(|error| wrong(format!("{DIFFUSERS}: {error}")))?;
    let mut models = BTreeMap::<String, Fields>::new();
    for (key, value) in fields {
        let Some((model, field)) = key.split_once('.') else { continue };
        models.entry(model.to_owned()).or_default().insert(field.to_owned(), value);
    }
    let mut configs = BTreeMap::new();
    let mut expressions = Expressions::default();
    for (model, mut fields) in models {
        fields.remove("peft_type");
        configs.insert(model, Config::read(fields, &mut expressions)?);
    }
    Ok(configs)
}

/// The tensors of all modules, and the settings.
struct All<'a> {
    source: &'a Source,
    config: Option<&'a Config>,
    /// The settings of models, in a file of diffusers.
    configs: BTreeMap<String, Config>,
    found: BTreeMap<String, Tensors>,
}

impl All<'_> {
    /// Checks the tensors of a module.
    fn module(&self, key: &str, found: &Tensors) -> Result<Module> {
        let (name, parameter) = match self.config {
            Some(config) => {
                experts::parameter(key, config, |other| self.found.contains_key(other))?
            }
            None => (key, None),
        };
        let (group, name, is_flattened) = self.split(name);
        let config = self.config.or_else(|| self.configs.get(group));
        let (kind, family) = match found.kind {
            Some(kind) => kind,
            None if found.tensors.contains_key(&Role::DiffBias) => (Kind::Full, Family::Kohya),
            None => return Err(found.missing(self.source, key, Role::Down)),
        };
        let mut module = Module {
            name: name.to_owned(),
            group: group.to_owned(),
            is_flattened: is_flattened && config.is_none(),
            kind,
            family,
            changes: Vec::new(),
            tensors: found.tensors.clone(),
            magnitude: found.tensors.get(&Role::Magnitude).copied(),
            is_transposed: config.filter(|_| kind == Kind::Lora).map(|it| it.is_transposed),
            experts: None,
        };
        self.add_changes(&mut module, key, parameter, found)?;
        if config.is_some_and(|config| config.is_dora) && module.magnitude.is_none() {
            return Err(found.missing(self.source, key, Role::Magnitude));
        }
        Ok(module)
    }

    /// Adds the changes of the weight, or of a parameter, and of the bias.
    fn add_changes(
        &self,
        module: &mut Module,
        key: &str,
        parameter: Option<&str>,
        found: &Tensors,
    ) -> Result<()> {
        let need = |role| match found.tensors.get(&role) {
            Some(&position) => Ok(position),
            None => Err(found.missing(self.source, key, role)),
        };
        let kind = (module.kind, module.family);
        let mut scaling = 1.0;
        if let Some(matrix) = Matrix::new(kind, self.source, &found.tensors, need)? {
            let name = &module.name;
            let path = parameter.map_or(name.clone(), |it| format!("{name}.{it}"));
            let shape = matrix.shape(self.source)?;
            if let (Some(_), Some(config), Some(rank)) = (parameter, self.config, shape.rank) {
                module.experts = Some(rank / config.rank(&path).max(1.0) as usize);
            }
            scaling = self.scaling(module, &path, &matrix, found)?;
            let end = parameter.unwrap_or("weight").to_owned();
            let [position, _] = matrix.ends();
            module.changes.push(Change { end, position, matrix, scaling });
        }
        for (role, scaling) in [(Role::UpBias, scaling), (Role::DiffBias, 1.0)] {
            if let Some(&position) = found.tensors.get(&role) {
                let matrix = Matrix::Stored(position);
                matrix.shape(self.source)?;
                module.changes.push(Change { end: "bias".to_owned(), position, matrix, scaling });
            }
        }
        Ok(())
    }

    /// Divides the name of a module into its group and its name there. Returns `true` for a name
    /// of kohya.
    fn split<'n>(&self, name: &'n str) -> (&'n str, &'n str, bool) {
        if self.config.is_some() {
            return ("", name, false);
        }
        let is_flattened = |prefix: &&&str| name.starts_with(**prefix) && !name.contains('.');
        if let Some(prefix) = KOHYA.iter().find(is_flattened) {
            let (group, name) = name.split_at(prefix.len());
            return (group, name, true);
        }
        match name.split_once('.') {
            Some((model, rest)) if self.configs.contains_key(model) => (model, rest, false),
            Some((model, _)) => (model, name, false),
            None => ("", name, false),
        }
    }

    /// Returns the factor of a module's matrix, which has this path.
    fn scaling(
        &self,
        module: &Module,
        path: &str,
        matrix: &Matrix,
        found: &Tensors,
    ) -> Result<f64> {
        let rank = matrix.shape(self.source)?.rank.map(|rank| rank as f64);
        if module.kind == Kind::Full {
            return Ok(1.0);
        }
        let Some(config) = self.config.or_else(|| self.configs.get(&module.group)) else {
            return match (rank, found.tensors.get(&Role::Alpha)) {
                (Some(rank), Some(&alpha)) => Ok(number(self.source, alpha)? / rank),
                _ => Ok(1.0),
            };
        };
        let expected = config.rank(path);
        let expected = expected * module.experts.unwrap_or(1) as f64;
        if let Some(rank) = rank.filter(|rank| *rank != expected) {
            let problem = mismatch(format!("a rank of {expected}"), format!("a rank of {rank}"));
            let [_, position] = matrix.ends();
            return Err(match self.source.tensor_at(position) {
                Some(tensor) => located(&tensor, problem),
                None => problem.into(),
            });
        }
        Ok(config.scaling(path))
    }
}

/// Reads the number in a tensor with one element.
fn number(source: &Source, position: usize) -> Result<f64> {
    let Some(tensor) = source.tensor_at(position) else { return Ok(1.0) };
    if tensor.element_count() != 1 {
        let found = format!("shape {}", Shape(tensor.shape()));
        return Err(located(&tensor, mismatch("one number", found)));
    }
    let number = tensor.read_with(&LoadOptions::new().all_as(Dtype::F64))?.into_vec::<f64>()?;
    Ok(number.first().copied().unwrap_or(1.0))
}
