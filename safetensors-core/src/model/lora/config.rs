//! [`Config`]: the settings of an `adapter_config.json` for merging its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::numbers::Numbers;
use crate::format::error::{AdapterProblem, Result};
use crate::format::header::UniqueMap;
use crate::format::patterns::Expressions;
use crate::format::python_json;

/// The settings by their names.
pub(super) type Fields = BTreeMap<String, Box<RawValue>>;

/// How the modules of an adapter are merged.
#[derive(Clone, Debug)]
pub(super) struct Config {
    rank: u64,
    alpha: f64,
    /// Other ranks for modules that match a pattern. The first counts.
    ranks: Numbers,
    alphas: Numbers,
    /// Whether alpha is divided by the root of the rank.
    is_rslora: bool,
    /// Whether weights are stored transposed, as in GPT-2.
    pub(super) is_transposed: bool,
    pub(super) is_dora: bool,
    /// Whether mlx-lm wrote the settings.
    pub(super) is_mlx: bool,
    /// Parameters that are changed, without their modules being layers that PEFT knows.
    parameters: Vec<String>,
    version: Option<String>,
    /// The ends of the names of modules that were trained completely, reversed and sorted. None
    /// starts with another.
    whole: Vec<String>,
}

/// Settings that do not matter once the adapter is trained, with any value.
const WITHOUT_EFFECT: &str = "\
    auto_mapping decompose_both decompose_factor base_model_name_or_path bias corda_config \
    eva_config exclude_modules inference_mode init_weights layers_pattern layers_to_transform \
    loftq_config lora_bias lora_dropout lora_ga_config megatron_core module_dropout \
    qalora_group_size rank_dropout rank_dropout_scale revision runtime_config target_modules \
    task_type use_effective_conv2d";

/// The most names of parameters; each is compared with each module.
const MOST_PARAMETERS: usize = 1000;

/// Initialisations that leave the base as it is.
const INITIALISATIONS: &[&str] = &["gaussian", "eva", "orthogonal", "true", "false"];

impl Config {
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let json = python_json::plain(json);
        let text = std::str::from_utf8(&json).map_err(wrong)?;
        let mut fields = UniqueMap::new("an object of settings").parse(text).map_err(wrong)?;
        let kind: Option<String> = take(&mut fields, "peft_type")?;
        match kind.as_deref() {
            Some("LORA") => Self::read(fields, &mut Expressions::default()),
            Some("LOHA" | "LOKR") => {
                if let Some(alpha) = fields.remove("alpha") {
                    fields.insert("lora_alpha".to_owned(), alpha);
                }
                Self::read(fields, &mut Expressions::default())
            }
            None if fields.contains_key("fine_tune_type")
                || fields.contains_key("lora_parameters") =>
            {
                Self::of_mlx(fields)
            }
            Some(other) => Err(unsupported("peft_type", &format!("{other:?}"))),
            None => Err(wrong("peft_type is missing")),
        }
    }

    /// Parses the settings of mlx-lm, which also has all settings of the training there.
    fn of_mlx(mut fields: Fields) -> Result<Self> {
        let kind: Option<String> = take(&mut fields, "fine_tune_type")?;
        let kind = kind.as_deref().unwrap_or("lora");
        if !["lora", "dora", "full"].contains(&kind) {
            return Err(unsupported("fine_tune_type", &format!("{kind:?}")));
        }
        let mut lora: Fields = take(&mut fields, "lora_parameters")?.unwrap_or_default();
        let mut config = Self::read(Fields::new(), &mut Expressions::default())?;
        config.rank = take(&mut lora, "rank")?.unwrap_or(8);
        let scale: Option<f64> = take(&mut lora, "scale")?;
        if scale.is_none() && kind != "full" {
            return Err(wrong("lora_parameters: scale is missing"));
        }
        config.alpha = scale.unwrap_or(1.0) * config.rank as f64;
        config.is_dora = kind == "dora";
        config.is_mlx = true;
        Ok(config)
    }

    /// Parses settings without `peft_type`. Each setting that changes the merged weights must be
    /// known.
    pub(super) fn read(mut fields: Fields, expressions: &mut Expressions) -> Result<Self> {
        let mut numbers = |setting| {
            let json = take::<Box<RawValue>>(&mut fields, setting)?;
            let patterns = json.map_or_else(|| Ok(Vec::new()), |json| ordered(json.get()));
            let patterns = patterns.map_err(|error| error.to_string());
            let numbers = patterns.and_then(|patterns| Numbers::new(patterns, expressions));
            numbers.map_err(|problem| wrong(format!("{setting}: {problem}")))
        };
        let ranks = numbers("rank_pattern")?;
        let alphas = numbers("alpha_pattern")?;
        let whole = take::<Vec<String>>(&mut fields, "modules_to_save")?.unwrap_or_default();
        let whole = whole.iter().filter(|end| !end.is_empty());
        let mut whole: Vec<String> = whole.map(|end| end.chars().rev().collect()).collect();
        whole.sort_unstable();
        whole.dedup_by(|longer, end| longer.starts_with(&**end));
        let parameters: Vec<_> = take(&mut fields, "target_parameters")?.unwrap_or_default();
        if parameters.len() > MOST_PARAMETERS {
            return Err(wrong(format!("target_parameters: over {MOST_PARAMETERS} names")));
        }
        let config = Self {
            rank: take(&mut fields, "r")?.unwrap_or(8),
            alpha: take(&mut fields, "lora_alpha")?.unwrap_or(8.0),
            ranks,
            alphas,
            is_rslora: take(&mut fields, "use_rslora")?.unwrap_or(false),
            is_transposed: take(&mut fields, "fan_in_fan_out")?.unwrap_or(false),
            is_dora: take(&mut fields, "use_dora")?.unwrap_or(false),
            is_mlx: false,
            parameters,
            version: take(&mut fields, "peft_version")?,
            whole,
        };
        match take::<Value>(&mut fields, "init_lora_weights")? {
            None | Some(Value::Bool(_) | Value::Null) => {}
            Some(Value::String(how)) if INITIALISATIONS.contains(&&*how.to_lowercase()) => {}
            Some(how) => return Err(unsupported("init_lora_weights", &how.to_string())),
        }
        for (field, value) in fields {
            // Later versions add settings, which are off by default.
            let is_off = matches!(value.get(), "null" | "false" | "{}" | "[]" | "\"\"");
            if !is_off && !WITHOUT_EFFECT.split(' ').any(|it| it == field) {
                return Err(unsupported(&field, value.get()));
            }
        }
        Ok(config)
    }

    /// Returns `true` if a tensor belongs to a module that was trained completely. A model may have
    /// it that was made from a checkpoint without it, such as a new head.
    pub(super) fn is_whole(&self, tensor: &str) -> bool {
        let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
        let reversed: String = module.chars().rev().collect();
        let before = self.whole.partition_point(|end| *end <= reversed);
        self.whole[..before].last().is_some_and(|end| reversed.starts_with(&**end))
    }

    /// Returns the parameters of a module that may be changed.
    pub(super) fn parameters_of(&self, module: &str) -> Vec<&str> {
        let targets = self.parameters.iter();
        let targets = targets.map(|it| it.rsplit_once('.').unwrap_or(("experts", it)));
        let found = targets.filter(|(path, _)| is_end(module, path)).map(|(_, name)| name);
        found.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns `true` if PEFT multiplied `lora_A` with the middle dimension of any stack of
    /// weights, as it did before version 0.19.
    pub(super) fn is_before_0_19(&self) -> bool {
        let version = self.version.as_deref().unwrap_or_default();
        let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
        matches!((numbers.next(), numbers.next()), (Some(0), Some(..19)))
    }

    pub(super) fn rank(&self, module: &str) -> f64 {
        self.ranks.get(module).unwrap_or(self.rank as f64)
    }

    /// Returns the factor of a module's product.
    pub(super) fn scaling(&self, module: &str) -> f64 {
        let rank = self.rank(module);
        let alpha = self.alphas.get(module).unwrap_or(self.alpha);
        alpha / if self.is_rslora { rank.sqrt() } else { rank }
    }
}

/// Returns `true` if a path has this end, which begins after a dot.
fn is_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// Returns numbers by patterns, in the order of the text.
fn ordered(json: &str) -> serde_json::Result<Vec<(String, f64)>> {
    let mut entries: Vec<_> = python_json::entries(json)?.into_iter().collect();
    entries.sort_by_key(|(_, text)| text.as_ptr());
    let number = |(pattern, text): (_, &str)| Ok((pattern, serde_json::from_str(text)?));
    entries.into_iter().map(number).collect()
}

/// Takes a field out of the settings. Null is absent.
fn take<T: DeserializeOwned>(fields: &mut Fields, field: &str) -> Result<Option<T>> {
    let Some(value) = fields.remove(field) else { return Ok(None) };
    let parsed = serde_json::from_str(value.get());
    parsed.map_err(|error| wrong(format!("{field}: {error}")))
}

pub(super) fn wrong(problem: impl fmt::Display) -> crate::format::error::Error {
    AdapterProblem::Settings { problem: problem.to_string() }.into()
}

fn unsupported(field: &str, value: &str) -> crate::format::error::Error {
    AdapterProblem::Unsupported { found: format!("{field}: {value}") }.into()
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
    fn a_module_with_a_listed_end_is_saved_entirely() {
        let ends: Vec<_> = (0..100_000).map(|i| format!("\"a{i}\"")).collect();
        let ends = format!("[\"\", \"head\", \"lm_head\", \"é.b\", {}]", ends.join(", "));
        let json = format!("{{\"peft_type\": \"LORA\", \"modules_to_save\": {ends}}}");
        let config = Config::parse(json.as_bytes()).unwrap();
        for (tensor, expected) in [
            ("lm_head.weight", true),
            ("my_head.weight", true),
            ("é.b.bias", true),
            ("a99999.weight", true),
            ("a100000.weight", false),
            ("ead.weight", false),
            ("b.weight", false),
            ("head", false),
        ] {
            assert_eq!(config.is_whole(tensor), expected, "{tensor}");
        }
    }

    #[test]
    fn settings_that_would_change_the_result_are_refused_by_name() {
        for (more, problem) in [
            (r#""use_qalora": true"#, "use_qalora: true"),
            (r#""layer_replication": [[0, 2]]"#, "layer_replication: [[0, 2]]"),
            (r#""init_lora_weights": "pissa_niter_4""#, "init_lora_weights: \"pissa_niter_4\""),
            (r#""a_new_setting": 1"#, "a_new_setting: 1"),
            (r#""r": -1"#, "r: invalid value"),
            (r#""r": 2, "r": 4"#, "duplicate key"),
            (r#""use_rslora": "yes""#, "use_rslora: invalid type"),
        ] {
            let json = format!("{{\"peft_type\": \"LORA\", {more}}}");
            let error = Config::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem), "{more}: {error}");
        }
        for (json, problem) in [
            (r#"{"peft_type": "OFT"}"#, "peft_type: \"OFT\""),
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
