//! [`explained`]: every companion of a weight is used, or not needed.
//! [`unexplained`]: codes that no scheme explains.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::super::facts::Companions;
use super::super::matrix::Stored;
use super::super::model::{Model, Weight, not_explained, unsupported};
use super::super::tensors::may_be_codes;
use crate::format::dtype::Dtype;
use crate::format::error::{Quoted, Result, Shape};

/// In names of companions, once after the last dot.
const WORDS: &[&str] = &[
    "scale", "zero", "offset", "absmax", "amax", "g_idx", "codebook", "global", "shift", "biases",
    "quant", "smooth", "centroid", "hadamard", "SCB", "_lut", "perm",
];

/// Companions that do not affect the weight: scales of inputs and outputs, and marks.
const NOT_NEEDED: &[&str] = &[
    "input_scale",
    "input_scale_inv",
    "input_scale_ub",
    "input_global_scale",
    "input_zero_point",
    "input_activation_scale",
    "activation_scale",
    "scale_input",
    "qscale_act",
    "_weight_act_quant_scale",
    "_weight_act_quant_zero_point",
    "output_scale",
    "output_zero_point",
    "output_activation_scale",
    "comfy_quant",
    "scaled_fp8",
];

/// Scales of keys and values, in an attention or one of its modules.
const OF_CACHES: &[&str] = &[
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "prob_scale",
    "k_zero_point",
    "v_zero_point",
    "kv_cache_scaling_factor",
];

const IN_ATTENTION: &[&str] = &[
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "attn",
    "q_fake_quantizer",
    "k_fake_quantizer",
    "v_fake_quantizer",
    "kv_fake_quantizer",
];

/// The last parts of names of codes of a module.
const OF_MODULES: &[&str] = &[
    "weight",
    "weight_packed",
    "qweight",
    "q_weight",
    "W_q",
    "_weight_qdata",
    "weight._data",
    "weight._data._data",
    "embedding_quantized",
];

/// The ends of names of codes, after the weight's.
const ENDS: &[&str] = &["_packed", "_blocks", ".blocks", "_qdata", "._data._data", "._data"];

/// Only tensors of codes have these ends.
const ONLY_CODES: &[&str] =
    &[".qweight", ".weight_packed", "_weight_qdata", ".embedding_quantized"];

/// In ComfyUI's diffusion models.
const PREFIXES: &[&str] = &["model.diffusion_model.", "model.model.", "net.", "model."];

const UNKNOWN: &str = "a scheme that is not known";

/// How many underscores, from the right, a weight's name may end before.
const MOST_CUTS: usize = 8;

pub(crate) const LAYERS: &str = "_quantization_metadata";

pub(crate) const TENSOR_NAMES: &str = "tensor_names";

fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

fn is_companion(name: &str) -> bool {
    let last = split(name).1;
    // LoRA has its own scales.
    let is_of_lora = last.contains("lora") && !last.contains("quant");
    !is_of_lora && WORDS.iter().any(|word| last.contains(word))
}

pub(crate) fn bare(module: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| module.strip_prefix(prefix)).unwrap_or(module)
}

fn all_companions<'m>(model: &'m Model<'_>) -> &'m Companions {
    model.companions(|| {
        let alias = |key: &&String| model.get(key).is_some_and(|tensor| tensor.name != **key);
        let aliases = model.metadata.keys().filter(alias).cloned();
        let names = model.tensors().map(|tensor| tensor.name).chain(aliases);
        let mut names: Vec<_> = names.filter(|name| is_companion(name)).collect();
        names.sort_unstable();
        let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in &names {
            let layer = match split(name) {
                (start, "scaled_fp8") => Some(start),
                _ => layer_of_cache(model, name),
            };
            if let Some(layer) = layer {
                shared.entry(layer.to_owned()).or_default().push(name.clone());
            }
        }
        // Every weight of the layer has them, so no file may have very many.
        shared.retain(|_, names| names.len() <= 64);
        let json = model.metadata.get(LAYERS);
        let is_of_comfy = json.is_some()
            || names.iter().any(|name| matches!(split(name).1, "comfy_quant" | "scaled_fp8"));
        let json = json.and_then(|json| serde_json::from_str::<Value>(json).ok());
        let marks = json.iter().filter_map(|json| json["layers"].as_object()).flatten();
        let marks = marks.map(|(name, mark)| (bare(name).to_owned(), (name.clone(), mark.clone())));
        Companions { marks: marks.collect(), names, shared, is_of_comfy }
    })
}

fn layer_of_cache<'n>(model: &Model<'_>, name: &'n str) -> Option<&'n str> {
    let (mut module, last) = split(name);
    let is_of_cache =
        OF_CACHES.contains(&last) || last == "qscale_act" && module.ends_with("_fake_quantizer");
    // A norm may have parameters of these names, with many elements.
    if !is_of_cache || model.get(name).is_none_or(|tensor| tensor.len() != 1) {
        return None;
    }
    let (above, inner) = split(module);
    if IN_ATTENTION.contains(&inner) && (inner != "attn" || above.ends_with("attn")) {
        module = above;
    }
    Some(split(module).0)
}

/// Returns `X.comfy_quant`, or an entry of `_quantization_metadata`.
pub(super) fn comfy_mark(model: &Model<'_>, module: &str) -> Option<Value> {
    let note = format!("{module}.comfy_quant");
    if model.get(&note).is_some() {
        return Some(model.json(&note).unwrap_or_default());
    }
    all_companions(model).marks.get(bare(module)).map(|(_, mark)| mark.clone())
}

pub(super) fn is_of_comfy(model: &Model<'_>) -> bool {
    all_companions(model).is_of_comfy
}

pub(super) fn name_of_weight(codes: &str) -> String {
    for end in OF_MODULES {
        match codes.strip_suffix(end) {
            Some("") => return "weight".into(),
            Some(module) if module.ends_with('.') => return format!("{module}weight"),
            _ => {}
        }
    }
    stem(codes).to_owned()
}

fn stem(codes: &str) -> &str {
    ENDS.iter().find_map(|end| codes.strip_suffix(end)).unwrap_or(codes)
}

/// Finds tensors of the module if the weight is called `X.weight`, otherwise by the weight's name.
fn companions<'m>(model: &'m Model<'_>, weight: &str, codes: &str) -> Vec<&'m str> {
    let names = &all_companions(model).names;
    let starting = |start: String| {
        let from = names.partition_point(|name| **name < *start);
        let found = names[from..].iter().map(String::as_str);
        let len = start.len();
        found.take_while(move |name| name.starts_with(&start)).map(move |name| (name, &name[len..]))
    };
    let (module, last) = split(weight);
    if last == "weight" {
        let start = if module.is_empty() { String::new() } else { format!("{module}.") };
        let found = starting(start).filter(|(_, rest)| {
            let Some((child, _)) = rest.split_once('.') else { return true };
            child.starts_with("weight") || child.contains("quant")
        });
        return found.map(|(name, _)| name).collect();
    }
    // Experts have `w13_weight` and `w13_input_scale`.
    let before = weight.strip_suffix("_weight");
    let starts: HashSet<_> = [weight, stem(codes)].into_iter().chain(before).collect();
    let found = starts.into_iter().flat_map(|start| {
        let starts = ['_', '.'].map(|separator| format!("{start}{separator}"));
        starts.into_iter().flat_map(starting)
    });
    found.map(|(name, _)| name).collect()
}

/// Returns `true` if another weight's name begins the companion's.
fn is_of_another(model: &Model<'_>, companion: &str, codes: &str) -> bool {
    owners(companion, &["", "_packed", "_blocks"]).any(|name| {
        let found = model.get(&name).filter(|tensor| tensor.name != codes);
        found.is_some_and(|tensor| may_be_codes(tensor.dtype)) && !is_companion(&name)
    })
}

/// Returns names that begin as a companion's does, up to an underscore, and have these ends.
fn owners(companion: &str, ends: &'static [&str]) -> impl Iterator<Item = String> {
    let start = companion.len() - split(companion).1.len();
    let cuts = companion[start..].rmatch_indices('_').take(MOST_CUTS);
    let bases = cuts.map(move |(at, _)| &companion[..start + at]);
    bases.flat_map(|base| ends.iter().map(move |end| format!("{base}{end}")))
}

/// Compares the end of a name that begins with a module, or a weight outside a module.
fn is_not_needed(name: &str) -> bool {
    let begins = |end: &&str, of_weights: bool| {
        name.strip_suffix(end).is_some_and(|start| match start.strip_suffix('_') {
            Some(weight) => of_weights && !split(weight).1.starts_with("weight"),
            None => start.is_empty() || start.ends_with('.'),
        })
    };
    NOT_NEEDED.iter().any(|end| begins(end, true)) || OF_CACHES.iter().any(|end| begins(end, false))
}

/// Fails for an unused companion that affects the numbers. Others become tensors of the weight.
pub(super) fn explained(
    model: &Model<'_>,
    mut weight: Weight,
    codes_of: &[Stored],
) -> Result<Weight> {
    let used: HashSet<_> = weight.tensors.iter().map(|tensor| &*tensor.name).collect();
    let codes = weight.tensors.first().map_or("", |codes| &*codes.name);
    let refused = |companion| Err(not_explained(weight.scheme, companion).in_tensor(codes));
    if model.get(&weight.name).is_some_and(|other| !used.contains(&*other.name)) {
        return refused(&weight.name);
    }
    let mut others = Vec::new();
    let named = codes_of.iter().flat_map(|named| match named.name == codes {
        true => companions(model, &weight.name, codes),
        false => companions(model, &name_of_weight(&named.name), &named.name),
    });
    for name in named {
        let Some(tensor) = model.get(name).filter(|tensor| !used.contains(&*tensor.name)) else {
            continue;
        };
        if is_not_needed(name) {
            others.push(tensor);
        } else if !is_of_another(model, name, codes) {
            return refused(name);
        }
    }
    let shared = &all_companions(model).shared;
    if !shared.is_empty() {
        let layers = weight.name.match_indices('.').map(|(at, _)| &weight.name[..at]).take(64);
        let names = [""].into_iter().chain(layers).filter_map(|layer| shared.get(layer)).flatten();
        others.extend(names.filter_map(|name| model.get(name)));
    }
    let mut seen: HashSet<_> = used.into_iter().map(str::to_owned).collect();
    let others = others.into_iter().filter(|tensor| seen.insert(tensor.name.clone())).cloned();
    let others: Vec<_> = others.collect();
    weight.tensors.extend(others);
    Ok(weight)
}

pub(super) fn unexplained(model: &Model<'_>, tensor: &Stored, is_known: bool) -> Result<()> {
    let name = &*tensor.name;
    let (module, last) = split(name);
    if last == "comfy_quant" {
        let marked = model.get(&format!("{}weight", &name[..name.len() - last.len()]));
        return match marked {
            Some(marked) if may_be_codes(marked.dtype) => Ok(()),
            _ => Err(unsupported("ComfyUI", "its module has no quantised weight").in_tensor(name)),
        };
    }
    // The masks of attentions are called a bias, too.
    let is_mask = last == "bias" || last.contains("mask");
    if tensor.shape.len() < 2 || is_mask || belongs_to_a_weight(model, module, name) {
        return Ok(());
    }
    let is_weight = last.ends_with("weight")
        || ["_packed", "blocks"].iter().any(|end| last.ends_with(end))
        || ["w13", "w2"].iter().any(|start| last.starts_with(start));
    let method = model.config.method.as_deref();
    let reason = if let Some(companion) = scale_of(model, tensor, is_known) {
        format!(
            "this tensor of codes, {} of shape {} with tensor {}, fits none of its forms",
            tensor.dtype,
            Shape(&tensor.shape),
            Quoted(companion)
        )
    } else if method.is_some() && (is_weight || !is_integer(tensor.dtype))
        || ONLY_CODES.iter().any(|end| name.ends_with(end))
    {
        format!("no known tensor has the scales of this tensor of {}", tensor.dtype)
    } else if is_weight && model.tensors.is_part() {
        let reason = "this file is one of several, and another may have its scales; open the \
                      directory, or the index";
        return Err(unsupported(UNKNOWN, reason).in_tensor(name));
    } else {
        return Ok(());
    };
    let reason = if is_known { reason } else { "the quant_method is not known".into() };
    Err(unsupported(method.unwrap_or(UNKNOWN), reason).in_tensor(name))
}

fn scale_of<'m>(model: &'m Model<'_>, tensor: &Stored, is_known: bool) -> Option<&'m str> {
    let (module, _) = split(&tensor.name);
    // A method that is not known may call its codes anything.
    let weight = match is_known || module.is_empty() {
        true => name_of_weight(&tensor.name),
        false => format!("{module}.weight"),
    };
    let companions = companions(model, &weight, &tensor.name).into_iter();
    let mut scales = companions.filter(|companion| !OF_CACHES.contains(&split(companion).1));
    scales.find(|companion| {
        // Scales of activations show that the weight had some, too. Plain data has its own offsets,
        // which are integers.
        let has_method = model.config.method.is_some();
        let may_be_scales =
            |found: &Stored| !is_integer(found.dtype) || has_method && found.dtype != Dtype::I64;
        model.get(companion).is_some_and(may_be_scales)
            && !is_of_another(model, companion, &tensor.name)
    })
}

fn is_integer(dtype: Dtype) -> bool {
    use Dtype::{BOOL, I16, I32, I64, U16, U32, U64};
    matches!(dtype, BOOL | I16 | U16 | I32 | U32 | I64 | U64)
}

fn belongs_to_a_weight(model: &Model<'_>, module: &str, name: &str) -> bool {
    if !is_companion(name) {
        return false;
    }
    let start = if module.is_empty() { String::new() } else { format!("{module}.") };
    let of_module = OF_MODULES.iter().chain(&["codes", "B"]).map(|end| format!("{start}{end}"));
    let of_weight = ["", ".blocks", "._data", "._data._data"].map(|end| format!("{module}{end}"));
    let before = owners(name, &["", "_packed", "_blocks", "_qdata"]);
    let mut names = of_module.chain(of_weight).chain(before);
    names.any(|owner| owner != name && !owner.is_empty() && model.get(&owner).is_some())
}

/// Each mark must mean a weight, and each module of the settings must exist.
pub(super) fn check_marks(model: &Model<'_>, weights: &[Weight]) -> Result<()> {
    let names: HashSet<_> = weights.iter().map(|weight| &*weight.name).collect();
    let missing = |scheme: &str, mark: &str, name: &str| {
        let reason = format!("{mark} names {}, which is no quantised weight here", Quoted(name));
        Err(unsupported(scheme, reason))
    };
    if model.metadata.contains_key(LAYERS) {
        let bare_names: HashSet<_> = names.iter().map(|name| bare(name)).collect();
        for (bare, (module, _)) in &all_companions(model).marks {
            if !bare_names.contains(&*format!("{bare}.weight")) {
                return missing("ComfyUI", LAYERS, module);
            }
        }
    }
    // A shard of several has the names of all of them.
    if weights.is_empty() || model.tensors.is_part() {
        return Ok(());
    }
    let listed = model.metadata.get(TENSOR_NAMES);
    let listed = listed.and_then(|json| serde_json::from_str::<Vec<String>>(json).ok());
    for name in listed.iter().flatten() {
        if !names.contains(&**name) && model.get(name).is_none() {
            return missing("torchao", TENSOR_NAMES, name);
        }
    }
    // MLX names modules, and its loader makes each of them a quantised one. The loaders of GPTQ,
    // compressed-tensors, AutoRound and Gemma try patterns on the modules that there are, and
    // pass over a pattern that finds none.
    for module in model.config.modules_of_mlx() {
        if model.get(&format!("{module}.weight")).is_none() {
            return missing("MLX", "\"quantization\" of config.json", module);
        }
    }
    Ok(())
}
