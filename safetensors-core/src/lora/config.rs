//! [`Config`]: what an `adapter_config.json` says of how its modules are merged.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use regex::Regex;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{AdapterProblem, Result};
use crate::header::UniqueMap;
use crate::patterns::Expressions;
use crate::python_json;

/// The settings by their names.
pub(super) type Fields = BTreeMap<String, Box<RawValue>>;

/// How the modules of an adapter are merged.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The file of the settings, if they have one.
    pub(super) file: Option<PathBuf>,
    rank: u64,
    alpha: f64,
    /// Other ranks for modules that match a pattern. The first counts.
    ranks: Ordered,
    alphas: Ordered,
    /// Whether alpha is divided by the root of the rank.
    is_rslora: bool,
    /// Whether weights lie transposed, as those of GPT-2 do.
    pub(super) is_transposed: bool,
    pub(super) is_dora: bool,
    /// The ends of the names of modules that were trained whole.
    whole: Vec<String>,
}

/// The rank of a module, and the factor of its product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    pub(super) rank: f64,
    pub(super) scaling: f64,
}

/// The most patterns or names of one setting. Each is compared with all modules.
const MOST_NAMES: usize = 1 << 16;

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
        let config = Self {
            file: None,
            rank: take(&mut fields, "r")?.unwrap_or(8),
            alpha: take(&mut fields, "lora_alpha")?.unwrap_or(8.0),
            ranks: take(&mut fields, "rank_pattern")?.unwrap_or_default(),
            alphas: take(&mut fields, "alpha_pattern")?.unwrap_or_default(),
            is_rslora: take(&mut fields, "use_rslora")?.unwrap_or(false),
            is_transposed: take(&mut fields, "fan_in_fan_out")?.unwrap_or(false),
            is_dora: take(&mut fields, "use_dora")?.unwrap_or(false),
            whole: take(&mut fields, "modules_to_save")?.unwrap_or_default(),
        };
        for (setting, found) in [
            ("rank_pattern", config.ranks.0.len()),
            ("alpha_pattern", config.alphas.0.len()),
            ("modules_to_save", config.whole.len()),
        ] {
            if found > MOST_NAMES {
                return Err(wrong(format!(
                    "{setting} has {found} entries, over the limit of {MOST_NAMES}"
                )));
            }
        }
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

    /// The factors of these modules.
    pub(super) fn factors(
        &self,
        modules: &[&str],
        expressions: &mut Expressions,
    ) -> Result<Vec<Factor>> {
        let ranks = self.ranks.first("rank_pattern", modules, expressions)?;
        let alphas = self.alphas.first("alpha_pattern", modules, expressions)?;
        let factors = ranks.into_iter().zip(alphas).map(|(rank, alpha)| {
            let (rank, alpha) = (rank.unwrap_or(self.rank as f64), alpha.unwrap_or(self.alpha));
            let scaling = alpha / if self.is_rslora { rank.sqrt() } else { rank };
            Factor { rank, scaling }
        });
        Ok(factors.collect())
    }
}

/// A pattern of PEFT, which matches a whole name, or the part after a dot of it.
enum Matcher {
    /// The characters of a pattern that has no special ones but `.`, which is any, and `^`.
    Name {
        chars: Vec<Option<char>>,
        is_whole: bool,
    },
    Expression(Regex),
}

impl Matcher {
    fn new(pattern: &str, expressions: &mut Expressions) -> Result<Self, String> {
        let name = pattern.strip_suffix('$').unwrap_or(pattern);
        let (name, is_whole) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        // Most adapters list names, up to thousands. This needs no compiling.
        if let Some(chars) = plain(name) {
            return Ok(Self::Name { chars, is_whole });
        }
        let in_expression = |pattern: &str| format!(r"^(?:.*\.)?(?:{pattern})$");
        Ok(Self::Expression(expressions.compile(pattern, in_expression)?))
    }

    fn is_match(&self, module: &str) -> bool {
        let (chars, is_whole) = match self {
            Self::Name { chars, is_whole } => (chars, *is_whole),
            Self::Expression(regex) => return regex.is_match(module),
        };
        let mut rest = module.chars();
        let is_end = chars.iter().rev().all(|expected| match (expected, rest.next_back()) {
            (None, Some(found)) => found != '\n',
            (expected, found) => *expected == found && found.is_some(),
        });
        let before = rest.next_back();
        let is_start = before.is_none() || before == Some('.') && !is_whole;
        is_end && is_start && !rest.as_str().contains('\n')
    }
}

/// The characters that a pattern stands for, `None` for any one. `None` for a regular expression.
fn plain(pattern: &str) -> Option<Vec<Option<char>>> {
    let mut rest = pattern.chars();
    let mut chars = Vec::new();
    while let Some(c) = rest.next() {
        chars.push(match c {
            '.' => None,
            '\\' if rest.as_str().starts_with('.') => rest.next(),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '/' => Some(c),
            _ => return None,
        });
    }
    Some(chars)
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

/// Numbers by patterns, in the order of the file.
#[derive(Clone, Debug, Default)]
struct Ordered(Vec<(String, f64)>);

impl Ordered {
    /// The number of the first pattern that matches, for each module.
    fn first(
        &self,
        key: &str,
        modules: &[&str],
        expressions: &mut Expressions,
    ) -> Result<Vec<Option<f64>>> {
        let mut found = vec![None; modules.len()];
        for (pattern, number) in &self.0 {
            let matcher = Matcher::new(pattern, expressions)
                .map_err(|problem| wrong(format!("{key}: {problem}")))?;
            for (module, found) in modules.iter().zip(&mut found) {
                if found.is_none() && matcher.is_match(module) {
                    *found = Some(*number);
                }
            }
        }
        Ok(found)
    }
}

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
        let config = Config::parse(json.as_bytes()).unwrap();
        config.factors(&[module], &mut Expressions::default()).unwrap()[0].scaling
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
    fn a_name_matches_as_the_expression_of_peft_does() {
        let modules =
            ["q", "a.q", "aq", "a.b.q", "a-b.q", "a.b.q\n", "\n.b.q", "é.q", "b.q", "", ".", "aéq"];
        for pattern in [
            "q", "b.q", r"b\.q", "^b.q", "^a.b.q", "b.q$", "", "^", ".", "..q", "a.q", "^a-b.q$",
            "é",
        ] {
            let matcher = Matcher::new(pattern, &mut Expressions::default()).unwrap();
            assert_eq!(matches!(matcher, Matcher::Name { .. }), pattern != "é", "{pattern}");
            let oracle = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).unwrap();
            for module in modules {
                let expected = oracle.is_match(module);
                assert_eq!(matcher.is_match(module), expected, "{pattern:?} in {module:?}");
            }
        }
    }

    #[test]
    fn each_of_a_thousand_modules_has_a_rank_by_its_name() {
        let names: Vec<_> = (1..=1000).map(|i| format!("model.layers.{i}.q_proj")).collect();
        let patterns: Vec<_> =
            names.iter().enumerate().map(|(i, name)| format!("\"^{name}\": {i}")).collect();
        let json =
            format!("{{\"peft_type\": \"LORA\", \"rank_pattern\": {{{}}}}}", patterns.join(", "));
        let config = Config::parse(json.as_bytes()).unwrap();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let factors = config.factors(&names, &mut Expressions::default()).unwrap();
        assert!(factors.iter().enumerate().all(|(i, factor)| factor.rank == i as f64));
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
        let whole = format!("\"modules_to_save\": [\"a\"{}]", ", \"a\"".repeat(70_000));
        let json = format!("{{\"peft_type\": \"LORA\", {whole}}}");
        let error = Config::parse(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("modules_to_save has 70001 entries, over the limit"), "{error}");
        let off = r#"{"peft_type": "LORA", "new": null, "newer": false, "list": [], "map": {}}"#;
        assert_eq!(scaling(off, "any"), 1.0);
    }
}
