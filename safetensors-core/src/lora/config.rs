//! [`Config`]: what an `adapter_config.json` says of how its modules are merged.

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{AdapterProblem, Result};
use crate::header::UniqueMap;
use crate::python_json;

/// The settings by their names.
pub(super) type Fields = BTreeMap<String, Box<RawValue>>;

/// How the modules of an adapter are merged.
#[derive(Clone, Debug)]
pub(super) struct Config {
    rank: u64,
    alpha: f64,
    /// Other ranks for modules whose names match. The first counts.
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    /// Whether alpha is divided by the root of the rank.
    is_rslora: bool,
    /// Whether weights lie transposed, as those of GPT-2 do.
    pub(super) is_transposed: bool,
    pub(super) is_dora: bool,
    /// The ends of the names of modules that were trained whole.
    whole: Vec<String>,
}

/// Settings that do not matter once the adapter is trained, whatever they say.
const WITHOUT_EFFECT: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Initialisations that leave the base as it is.
const INITIALISATIONS: &[&str] = &["gaussian", "eva", "orthogonal", "true", "false"];

impl Config {
    /// Reads an `adapter_config.json`.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let json = python_json::plain(json);
        let text = std::str::from_utf8(&json).map_err(wrong)?;
        let mut fields = UniqueMap::new("an object of settings").parse(text).map_err(wrong)?;
        let kind: Option<String> = take(&mut fields, "peft_type")?;
        match kind.as_deref() {
            Some("LORA") => Self::of(fields),
            Some(other) => Err(unsupported("peft_type", &format!("{other:?}"))),
            None => Err(wrong("peft_type is missing")),
        }
    }

    /// Settings without `peft_type`. Each that changes what is merged must be known.
    pub(super) fn of(mut fields: Fields) -> Result<Self> {
        let patterns = |patterns: Option<Ordered>, key: &str| -> Result<Vec<(Regex, f64)>> {
            let patterns = patterns.unwrap_or_default().0.into_iter();
            patterns.map(|(pattern, number)| Ok((matcher(key, &pattern)?, number))).collect()
        };
        let config = Self {
            rank: take(&mut fields, "r")?.unwrap_or(8),
            alpha: take(&mut fields, "lora_alpha")?.unwrap_or(8.0),
            ranks: patterns(take(&mut fields, "rank_pattern")?, "rank_pattern")?,
            alphas: patterns(take(&mut fields, "alpha_pattern")?, "alpha_pattern")?,
            is_rslora: take(&mut fields, "use_rslora")?.unwrap_or(false),
            is_transposed: take(&mut fields, "fan_in_fan_out")?.unwrap_or(false),
            is_dora: take(&mut fields, "use_dora")?.unwrap_or(false),
            whole: take(&mut fields, "modules_to_save")?.unwrap_or_default(),
        };
        match take::<Value>(&mut fields, "init_lora_weights")? {
            None | Some(Value::Bool(_) | Value::Null) => {}
            Some(Value::String(how)) if INITIALISATIONS.contains(&&*how.to_lowercase()) => {}
            Some(how) => return Err(unsupported("init_lora_weights", &how.to_string())),
        }
        for (field, value) in fields {
            // Later versions add settings, which are off by default.
            let is_off = matches!(value.get(), "null" | "false" | "{}" | "[]" | "\"\"");
            if !is_off && !WITHOUT_EFFECT.contains(&&*field) {
                return Err(unsupported(&field, value.get()));
            }
        }
        Ok(config)
    }

    /// Whether a tensor belongs to a module that was trained whole. A model may have it that was
    /// made from a checkpoint without it, such as a new head.
    pub(super) fn is_whole(&self, tensor: &str) -> bool {
        let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
        self.whole.iter().any(|end| !end.is_empty() && module.ends_with(&**end))
    }

    /// The rank of a module.
    pub(super) fn rank(&self, module: &str) -> f64 {
        first(&self.ranks, module).unwrap_or(self.rank as f64)
    }

    /// The factor of a module's product.
    pub(super) fn scaling(&self, module: &str) -> f64 {
        let alpha = first(&self.alphas, module).unwrap_or(self.alpha);
        let rank = self.rank(module);
        alpha / if self.is_rslora { rank.sqrt() } else { rank }
    }
}

/// The number of the first pattern that matches a module's name.
fn first(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, number)| *number)
}

/// A pattern matches a whole name, or what follows a dot in it.
fn matcher(key: &str, pattern: &str) -> Result<Regex> {
    let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$"));
    regex.map_err(|error| wrong(format!("{key}: {error}")))
}

/// Takes a field out of the settings. Null is absent.
fn take<T: DeserializeOwned>(fields: &mut Fields, field: &str) -> Result<Option<T>> {
    let Some(value) = fields.remove(field) else { return Ok(None) };
    let parsed = serde_json::from_str(value.get());
    parsed.map_err(|error| wrong(format!("{field}: {error}")))
}

pub(super) fn wrong(problem: impl fmt::Display) -> crate::error::Error {
    AdapterProblem::Settings { problem: problem.to_string() }.into()
}

fn unsupported(field: &str, value: &str) -> crate::error::Error {
    AdapterProblem::Unsupported { found: format!("{field}: {value}") }.into()
}

/// Numbers by names, in the order of the file.
#[derive(Default)]
struct Ordered(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ordered;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers by patterns")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaling(json: &str, module: &str) -> f64 {
        Config::parse(json.as_bytes()).unwrap().scaling(module)
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let json = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 8, "use_rslora": false,
            "rank_pattern": {"q_proj": 4, "layers.1.q_proj": 8, ".*k_pro[j]": 16},
            "alpha_pattern": {"model.layers.0.v": 3}}"#;
        assert_eq!(scaling(json, "model.layers.1.q_proj"), 2.0);
        assert_eq!(scaling(json, "my_q_proj"), 4.0);
        assert_eq!(scaling(json, "my_k_proj"), 0.5);
        assert_eq!(scaling(json, "model.layers.0.v"), 1.5);
        let rslora = json.replace("\"use_rslora\": false", "\"use_rslora\": true");
        assert_eq!(scaling(&rslora, "o"), 5.65685424949238);
    }

    #[test]
    fn what_would_change_the_result_is_refused_by_name() {
        for (more, problem) in [
            (r#""use_qalora": true"#, "use_qalora: true"),
            (r#""layer_replication": [[0, 2]]"#, "layer_replication: [[0, 2]]"),
            (r#""init_lora_weights": "pissa_niter_4""#, "init_lora_weights: \"pissa_niter_4\""),
            (r#""a_new_setting": 1"#, "a_new_setting: 1"),
            (r#""target_parameters": ["experts"]"#, "target_parameters"),
            (r#""r": -1"#, "r: invalid value"),
            (r#""r": 2, "r": 4"#, "duplicate key"),
            (r#""rank_pattern": {"(": 1}"#, "rank_pattern: regex parse error"),
            (r#""use_rslora": "yes""#, "use_rslora: invalid type"),
        ] {
            let json = format!("{{\"peft_type\": \"LORA\", {more}}}");
            let error = Config::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem), "{more}: {error}");
        }
        for (json, problem) in [
            (r#"{"peft_type": "LOHA"}"#, "peft_type: \"LOHA\""),
            ("{}", "peft_type is missing"),
            ("[]", "expected an object of settings"),
            ("\u{ff}", "EOF"),
        ] {
            let error = Config::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem) || json == "\u{ff}", "{json}: {error}");
        }
        let off = r#"{"peft_type": "LORA", "new": null, "newer": false, "list": [], "map": {}}"#;
        assert_eq!(scaling(off, "any"), 1.0);
    }
}
