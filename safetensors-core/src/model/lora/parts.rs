//! [`Parts`]: the purposes of an adapter's tensors.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::config::{Config, Fields, wrong};
use super::fit::Wanted;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::{LazyTensor, LoadOptions};
use crate::format::dtype::Dtype;
use crate::format::error::{AdapterProblem, Error, Result, Shape};
use crate::format::patterns::Expressions;
use crate::format::python_json;

/// The checkpoint of an adapter, wherever its file is.
pub(super) type Source = Checkpoint<Box<dyn ReadAt>>;

/// The changes of an adapter.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) modules: Vec<Module>,
    /// Tensors that replace the checkpoint's.
    pub(super) whole: Vec<Wanted>,
}

/// A module that changes its weight by a product of two small matrices. Tensors are positions in
/// the adapter.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    /// The group of the modules in one part of the model.
    pub(super) group: String,
    /// Whether the name has `_` instead of `.`, as in kohya's files.
    pub(super) is_flattened: bool,
    pub(super) is_embedding: bool,
    pub(super) down: usize,
    pub(super) up: usize,
    pub(super) up_bias: Option<usize>,
    pub(super) magnitude: Option<usize>,
    /// The factor of the product.
    pub(super) scaling: f64,
    /// The setting `fan_in_fan_out`; `None` if no weight is stored transposed.
    pub(super) is_transposed: Option<bool>,
}

impl Module {
    /// Returns the tensors that it changes: the weight, and the bias if there is one for it.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let dot = if self.is_flattened { '_' } else { '.' };
        let up = [("weight", Some(self.up)), ("bias", self.up_bias)].into_iter();
        up.filter_map(move |(end, position)| {
            Some(Wanted {
                position: position?,
                name: format!("{}{dot}{end}", self.name),
                is_flattened: self.is_flattened,
                may_be_new: false,
                group: self.group.clone(),
            })
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Down,
    Up,
    UpBias,
    Magnitude,
    Alpha,
}

/// The ends of the names of a module's tensors, and whether the module is an embedding.
const ENDS: &[(&str, Role, bool)] = &[
    (".lora_A.weight", Role::Down, false),
    (".lora_B.weight", Role::Up, false),
    (".lora_B.bias", Role::UpBias, false),
    (".lora_embedding_A", Role::Down, true),
    (".lora_embedding_B", Role::Up, true),
    (".lora_magnitude_vector", Role::Magnitude, false),
    (".lora_magnitude_vector.weight", Role::Magnitude, false),
    (".lora_down.weight", Role::Down, false),
    (".lora_up.weight", Role::Up, false),
    (".lora.down.weight", Role::Down, false),
    (".lora.up.weight", Role::Up, false),
    (".alpha", Role::Alpha, false),
];

/// PEFT's prefix of all names.
const PEFT: &str = "base_model.model.";

/// The prefixes of module names by kohya's scripts.
const KOHYA: &[&str] =
    &["lora_unet_", "lora_te1_", "lora_te2_", "lora_te3_", "lora_te_", "lora_transformer_"];

/// The settings in the metadata of a file that diffusers saved: several models, by their names.
const DIFFUSERS: &str = "lora_adapter_metadata";

/// The tensors of a module that were found so far.
#[derive(Debug, Default)]
struct Found {
    is_embedding: bool,
    tensors: BTreeMap<Role, usize>,
}

impl Parts {
    /// Finds the purpose of each tensor. `config` belongs to a directory of PEFT.
    pub(super) fn of(source: &Source, config: Option<&Config>) -> Result<Self> {
        let mut parts = Self { modules: Vec::new(), whole: Vec::new() };
        let mut found = BTreeMap::<&str, Found>::new();
        for (position, tensor) in source.tensors().enumerate() {
            let name = tensor.name();
            if config.is_none() && name.starts_with(PEFT) {
                return Err(wrong("adapter_config.json is missing beside the file"));
            }
            let name = name.strip_prefix(PEFT).unwrap_or(name);
            let is_of_module = |(end, role, _): &&(&str, Role, bool)| {
                name.ends_with(end) && (*role != Role::Alpha || config.is_none())
            };
            let Some((end, role, is_embedding)) = ENDS.iter().find(is_of_module) else {
                let Some(config) = config else {
                    let found = format!("tensor {name:?}");
                    return Err(located(&tensor, AdapterProblem::Unsupported { found }));
                };
                parts.whole.extend(whole(source, name).map(|name| Wanted {
                    position,
                    may_be_new: config.is_whole(&name),
                    name,
                    is_flattened: false,
                    group: String::new(),
                }));
                continue;
            };
            let module = &name[..name.len() - end.len()];
            let of_module = found.entry(module).or_default();
            of_module.is_embedding |= is_embedding;
            if of_module.tensors.insert(*role, position).is_some() {
                let found = format!("two tensors for one end of module {module:?}");
                return Err(located(&tensor, AdapterProblem::Unsupported { found }));
            }
        }
        let configs = if config.is_some() { BTreeMap::new() } else { of_diffusers(source)? };
        for (name, found) in &found {
            parts.modules.push(module(source, name, found, (config, &configs))?);
        }
        Ok(parts)
    }
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
        configs.insert(model, Config::of(fields, &mut expressions)?);
    }
    Ok(configs)
}

/// Checks the tensors of a module.
fn module(
    source: &Source,
    name: &str,
    found: &Found,
    (config, configs): (Option<&Config>, &BTreeMap<String, Config>),
) -> Result<Module> {
    let need = |role| {
        let position = found.tensors.get(&role).copied();
        match position.and_then(|at| Some((at, source.tensor_at(at)?))) {
            Some(found) => Ok(found),
            None => Err(missing(source, name, found, role)),
        }
    };
    let (down, down_tensor) = need(Role::Down)?;
    let (up, up_tensor) = need(Role::Up)?;
    let rank = check_shapes(&down_tensor, &up_tensor)?;
    let flattened = KOHYA.iter().find(|prefix| name.starts_with(*prefix) && !name.contains('.'));
    let (group, rest) = match (flattened, config, name.split_once('.')) {
        (Some(prefix), None, _) => (*prefix, &name[prefix.len()..]),
        (_, None, Some((model, rest))) if configs.contains_key(model) => (model, rest),
        (_, None, Some((model, _))) => (model, name),
        _ => ("", name),
    };
    let config = config.or_else(|| configs.get(group));
    if let Some(expected) = config.map(|config| config.rank(rest)).filter(|r| *r != rank as f64) {
        let problem = mismatch(format!("a rank of {expected}"), format!("a rank of {rank}"));
        return Err(located(&down_tensor, problem));
    }
    let magnitude = match (config, found.tensors.get(&Role::Magnitude)) {
        (_, Some(&magnitude)) => Some(magnitude),
        (Some(Config { is_dora: true, .. }), None) => Some(need(Role::Magnitude)?.0),
        _ => None,
    };
    let scaling = match (config, found.tensors.get(&Role::Alpha)) {
        (Some(config), _) => config.scaling(rest),
        (None, Some(&alpha)) => number(source, alpha)? / rank as f64,
        (None, None) => 1.0,
    };
    Ok(Module {
        name: rest.to_owned(),
        group: group.to_owned(),
        is_flattened: flattened.is_some() && config.is_none(),
        is_embedding: found.is_embedding,
        down,
        up,
        up_bias: found.tensors.get(&Role::UpBias).copied(),
        magnitude,
        scaling,
        is_transposed: config.map(|config| config.is_transposed),
    })
}

/// Returns the error of a module without a tensor that it needs. It is located at another of its
/// tensors.
fn missing(source: &Source, name: &str, found: &Found, role: Role) -> Error {
    let other = found.tensors.values().find_map(|&position| source.tensor_at(position));
    let is_kohya = other
        .is_some_and(|it| it.name().ends_with("down.weight") || it.name().ends_with("up.weight"));
    let end = match (role, found.is_embedding, is_kohya) {
        (Role::Down, true, _) => "lora_embedding_A",
        (Role::Down, _, false) => "lora_A.weight",
        (Role::Down, _, true) => "lora_down.weight",
        (Role::Up, true, _) => "lora_embedding_B",
        (Role::Up, _, false) => "lora_B.weight",
        (Role::Up, _, true) => "lora_up.weight",
        _ => "lora_magnitude_vector",
    };
    let problem = AdapterProblem::Missing { expected: format!("{name}.{end}") };
    match other {
        Some(tensor) => located(&tensor, problem),
        None => problem.into(),
    }
}

/// Checks that two matrices can be multiplied, and returns the rank.
fn check_shapes<S>(down: &LazyTensor<'_, S>, up: &LazyTensor<'_, S>) -> Result<usize> {
    for tensor in [down, up] {
        if !tensor.dtype().is_float() {
            let problem = mismatch("floating-point numbers", tensor.dtype().to_string());
            return Err(located(tensor, problem));
        }
        if tensor.shape().len() < 2 || tensor.shape().contains(&0) {
            let found = format!("shape {}", Shape(tensor.shape()));
            let problem = mismatch("at least 2 dimensions, none of them 0", found);
            return Err(located(tensor, problem));
        }
    }
    let rank = down.shape()[0];
    let mut expected = vec![1; down.shape().len()];
    (expected[0], expected[1]) = (up.shape()[0], rank);
    if up.shape() == expected {
        return Ok(rank);
    }
    let expected = format!("shape {}, without groups of channels", Shape(&expected));
    Err(located(up, mismatch(expected, format!("shape {}", Shape(up.shape())))))
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

pub(super) fn mismatch(expected: impl Into<String>, found: impl Into<String>) -> AdapterProblem {
    AdapterProblem::Mismatch { expected: expected.into(), found: found.into() }
}

/// Returns an error about a tensor of an adapter.
pub(super) fn located<S>(tensor: &LazyTensor<'_, S>, problem: AdapterProblem) -> Error {
    tensor.locate(problem.into())
}
