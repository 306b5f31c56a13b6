//! [`Config`]: the settings next to a checkpoint.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use regex_automata::meta::Regex;
use serde_json::Value;

use super::tensors::Tensors;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result};
use crate::format::patterns::Expressions;
use crate::format::python_json;

/// In the order of reading, each with the method of a file that names none.
const FILES: [(&str, &str); 4] = [
    ("hf_quant_config.json", "modelopt"),
    ("quantize_config.json", "gptq"),
    ("quanto_qmap.json", "quanto"),
    ("quant_model_description.json", "msmodelslim"),
];

/// Returns the names of files other than `config.json` that may describe quantised weights.
#[doc(hidden)]
pub fn settings_files() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().map(|(file, _)| file)
}

/// The largest file of settings that is read. Real ones have a few KiB, with lists of layers a few
/// hundred.
pub(crate) const MOST_SETTINGS: u64 = 16 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    /// In lower case.
    pub(super) method: Option<String>,
    value: Value,
    model: Value,
    file: PathBuf,
    bits_by_name: OnceLock<Vec<(Regex, Option<u64>)>>,
}

impl Config {
    /// Reads the first file that has settings, `config.json` or [another](settings_files).
    pub(super) fn next_to(tensors: &dyn Tensors) -> Result<Self> {
        let mut model = Value::Null;
        for (file, method) in [("config.json", "")].into_iter().chain(FILES) {
            let Some((path, bytes)) = tensors.read_beside(file, MOST_SETTINGS)? else { continue };
            let mut json = python_json::read(&bytes)
                .map_err(|error| bad_config(format!("not JSON: {error}")).in_path(&path))?;
            if file == "config.json" {
                model.clone_from(&json);
            }
            let found = match method {
                "" => of_model(json),
                "modelopt" => {
                    json.get_mut("quantization").map(|value| (value.take(), Some(method)))
                }
                "gptq" if json.get("bits").is_none() => None,
                _ => Some((json, Some(method))),
            };
            if let Some((value, method)) = found {
                return Ok(Self { model, file: path, ..Self::new(value, method) });
            }
        }
        Ok(Self::default())
    }

    fn new(value: Value, method: Option<&str>) -> Self {
        let found = value.get("quant_method").and_then(Value::as_str).or(method);
        let method = found.map(|it| it.to_lowercase().replace("intel/auto-round", "auto-round"));
        Self { method, value, ..Self::default() }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key)?.as_str()
    }

    /// Returns `None` for -1.
    pub(super) fn number(&self, key: &str) -> Option<usize> {
        usize::try_from(self.value.get(key)?.as_i64()?).ok()
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        self.value.get(key).and_then(Value::as_bool) == Some(true)
    }

    pub(super) fn has_exceptions(&self) -> bool {
        ["dynamic", "extra_config"].iter().any(|key| {
            self.value
                .get(key)
                .is_some_and(|value| value.as_object().is_some_and(|v| !v.is_empty()))
        })
    }

    fn of_weights(&self) -> impl Iterator<Item = &Value> {
        let groups = self.value.get("config_groups").and_then(Value::as_object);
        let groups = groups.into_iter().flat_map(|groups| groups.values());
        groups.filter_map(|group| group.get("weights")).filter(|weights| weights.is_object())
    }

    pub(super) fn bits_of_groups(&self) -> Vec<usize> {
        self.of_weights().filter_map(|weights| whole(weights.get("num_bits")?)).collect()
    }

    pub(super) fn has_zero_points(&self) -> bool {
        let mut groups = self.of_weights().peekable();
        let has =
            |weights: &Value| weights.get("symmetric").and_then(Value::as_bool) == Some(false);
        groups.peek().is_some() && groups.all(has)
    }

    /// A group of layers without a size has entire rows, of `columns`.
    pub(super) fn sizes_of_groups(&self, columns: usize) -> Vec<usize> {
        let sizes: Vec<_> =
            self.of_weights().map(|weights| whole(weights.get("group_size")?)).collect();
        let any_named = sizes.iter().any(Option::is_some);
        let sizes = sizes.into_iter().filter(|_| any_named);
        sizes.map(|size| size.unwrap_or(columns)).collect()
    }

    pub(super) fn own(&self, module: &str) -> Option<&Value> {
        self.value.get(module).filter(|own| own.is_object())
    }

    pub(super) fn text_for(&self, module: &str, key: &str) -> Option<&str> {
        let own = self.own(module).and_then(|own| own.get(key));
        own.or_else(|| self.value.get(key))?.as_str()
    }

    pub(super) fn modules_of_mlx(&self) -> impl Iterator<Item = &str> {
        let is_of_mlx = matches!(self.method.as_deref(), Some("mlx" | "metal"));
        let entries = self.value.as_object().filter(|_| is_of_mlx).into_iter().flatten();
        let has_any =
            |of: &Value| ["bits", "group_size", "mode"].iter().any(|&key| of.get(key).is_some());
        entries.filter(move |(_, of)| has_any(of)).map(|(module, _)| module.as_str())
    }

    pub(super) fn bits_by_name(&self) -> Result<&[(Regex, Option<u64>)]> {
        if let Some(known) = self.bits_by_name.get() {
            return Ok(known);
        }
        let patterns = self.value.get("module_quant_configs").and_then(Value::as_object);
        let mut expressions = Expressions::default();
        let found = patterns.into_iter().flatten().map(|(pattern, settings)| {
            let regex = expressions.compile(pattern, str::to_owned).map_err(|problem| {
                bad_config(format!("module_quant_configs: {problem}")).in_path(&self.file)
            })?;
            Ok((regex, settings.get("num_bits").and_then(Value::as_u64)))
        });
        let found = found.collect::<Result<_>>()?;
        Ok(self.bits_by_name.get_or_init(|| found))
    }

    /// Recognises a linear layer by its usual name, and takes its inputs from the model's
    /// dimensions.
    pub(super) fn inputs_of(&self, module: &str) -> Option<usize> {
        let number = |key: &str| {
            let found = [&self.model["text_config"][key], &self.model[key]];
            found.into_iter().find_map(whole).filter(|number| *number > 0)
        };
        match module.rsplit('.').next()? {
            "q_proj" | "k_proj" | "v_proj" | "gate_proj" | "up_proj" | "lm_head" => {
                number("hidden_size")
            }
            "down_proj" => number("intermediate_size"),
            "o_proj" => {
                let heads = number("num_attention_heads")?;
                let size = number("head_dim").or_else(|| Some(number("hidden_size")? / heads))?;
                heads.checked_mul(size)
            }
            _ => None,
        }
    }

    pub(super) fn block(&self) -> Option<[usize; 2]> {
        let block = self
            .value
            .get("weight_block_size")
            .or_else(|| self.of_weights().find_map(|weights| weights.get("block_structure")))?;
        let [rows, columns] = &block.as_array()?[..] else { return None };
        Some([whole(rows)?, whole(columns)?]).filter(|block| !block.contains(&0))
    }

    /// Returns `true` if weights are rotated, which the stored tensors do not show.
    pub(super) fn has_transforms(&self) -> bool {
        let transforms = self.value.get("transform_config").and_then(Value::as_object);
        transforms.is_some_and(|transforms| !transforms.is_empty())
    }

    pub(super) fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.text("version")?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

pub(super) fn whole(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Returns each `model_type` in the settings of a model and of its parts.
pub(crate) fn model_types(config: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut settings = vec![config];
    while let Some(json) = settings.pop() {
        let Value::Object(entries) = json else { continue };
        found.extend(json["model_type"].as_str().map(str::to_owned));
        settings.extend(entries.values());
    }
    found
}

pub(crate) fn bad_config(problem: String) -> Error {
    ErrorKind::Quantization { problem: QuantizationProblem::Config { problem } }.into()
}

/// In the `config.json` of a model, or in its `text_config`.
pub(crate) const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// Takes the value of `quantization` in a `config.json`.
pub(crate) fn is_of_mlx(value: &Value) -> bool {
    value.get("bits").is_some()
}

/// Also returns the method of settings that name none.
fn of_model(mut json: Value) -> Option<(Value, Option<&'static str>)> {
    let is_mlx = json.get("quantization").is_some_and(is_of_mlx);
    for key in KEYS {
        for place in ["", "/text_config"] {
            let found = json.pointer_mut(place).and_then(|model| model.get_mut(key));
            if let Some(value) = found.filter(|value| value.is_object()) {
                let value = value.take();
                let has = |key: &str| value.get(key).is_some();
                let method = match has("quant_algo") {
                    true => Some("modelopt"),
                    // MLX writes the same under two keys.
                    false if is_mlx && is_of_mlx(&value) => Some("mlx"),
                    false => has("config_groups").then_some("compressed-tensors"),
                };
                return Some((value, method));
            }
        }
    }
    let value = json.get_mut("quantization").filter(|value| is_of_mlx(value))?;
    Some((value.take(), Some("mlx")))
}
