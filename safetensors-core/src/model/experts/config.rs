//! The names of modules in the settings of a model, with the names of another layout.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};

use super::plan::ExpertPlan;
use crate::format::python_json;
use crate::model::quantized::object;
use crate::weights::KEYS;

/// Renames modules in lists and in the keys of objects. In a `config.json`, these are in the
/// settings of quantised weights. The rest of the text stays as it is.
pub(super) fn renamed(plan: &ExpertPlan, file: &str, text: &str) -> String {
    let mut modules = Modules { plan, names: BTreeMap::new() };
    for (new, tensor) in &plan.tensors {
        for old in tensor.0.names().into_iter().flat_map(|old| [module(old), owner(old)]) {
            modules.names.entry(old).or_default().insert(owner(new));
        }
    }
    if file != "config.json" {
        return modules.within(text, "  ").unwrap_or_else(|| text.to_owned());
    }
    let Ok(entries) = python_json::entries(text) else { return text.to_owned() };
    let inner = entries.get("text_config").and_then(|inner| python_json::entries(inner).ok());
    let keys = || ["quantization"].into_iter().chain(KEYS);
    let places = [Some(entries), inner].into_iter().flatten();
    let places = places.flat_map(|of| keys().filter_map(move |key| of.get(key).copied()));
    let mut places: Vec<_> = places.collect();
    // From the last on, so that the places of the others hold.
    places.sort_by_key(|place| Reverse(place.as_ptr()));
    let mut changed = text.to_owned();
    for place in places {
        let start = place.as_ptr().addr() - text.as_ptr().addr();
        if let Some(new) = modules.within(place, "    ") {
            changed.replace_range(start..start + place.len(), &new);
        }
    }
    changed
}

struct Modules<'p> {
    plan: &'p ExpertPlan,
    /// By the old name, the new ones.
    names: BTreeMap<&'p str, BTreeSet<&'p str>>,
}

impl Modules<'_> {
    /// Returns the new text of a list or of an object. `None` if nothing changes.
    fn within(&self, json: &str, indent: &str) -> Option<String> {
        if let Ok(names) = serde_json::from_str::<Vec<String>>(json) {
            let mut seen = BTreeSet::new();
            let new = names.iter().flat_map(|name| self.renamed(name));
            let new: Vec<_> = new.filter(|name| seen.insert(name.clone())).collect();
            return (new != names).then(|| serde_json::Value::from(new).to_string());
        }
        // Each level adds two spaces, and settings have a few levels.
        let entries = python_json::entries(json).ok().filter(|_| indent.len() < 32)?;
        let entries = entries.into_iter().map(|(key, text)| (key, Cow::Borrowed(text)));
        let entries: BTreeMap<_, _> = entries.collect();
        let mut new = BTreeMap::new();
        for (key, text) in &entries {
            let text = self.within(text, &format!("{indent}  ")).map_or(text.clone(), Cow::Owned);
            for name in self.renamed(key) {
                new.entry(name).or_insert_with(|| text.clone());
            }
        }
        (new != entries).then(|| object(&new, indent))
    }

    /// Returns the new names of a module, a start of names, or an expression.
    fn renamed(&self, name: &str) -> Vec<String> {
        if let Some(new) = self.names.get(name) {
            return new.iter().map(|&name| name.to_owned()).collect();
        }
        let start = format!("{name}.");
        let mut inside = self.names.range::<str, _>((Included(&*start), Unbounded));
        let has_experts = inside.next().is_some_and(|(name, _)| name.starts_with(&start));
        match has_experts || is_pattern(name) {
            true => vec![self.plan.in_pattern(name)],
            false => vec![name.to_owned()],
        }
    }
}

/// Returns whether an entry is an expression rather than the name of a module.
fn is_pattern(entry: &str) -> bool {
    !entry.chars().all(|char| is_word(char) || matches!(char, '.' | '-'))
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Returns the name of a tensor without `.weight`.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Returns the module that has a tensor as a parameter: of a stack, the module of all experts.
fn owner(name: &str) -> &str {
    match name.rsplit_once("experts.") {
        Some((start, stack)) if !stack.contains('.') => &name[..start.len() + "experts".len()],
        _ => module(name),
    }
}

impl ExpertPlan {
    /// Renames the mixture's module, a whole part of a name, in an expression or a start of names.
    fn in_pattern(&self, entry: &str) -> String {
        let [old, new] = self.module.map(|module| module.trim_end_matches('.'));
        let (mut renamed, mut end) = (String::new(), 0);
        for (start, _) in entry.match_indices(old).filter(|_| !old.is_empty()) {
            let after = start + old.len();
            if !entry[..start].ends_with(is_word) && !entry[after..].starts_with(is_word) {
                renamed += &entry[end..start];
                renamed += new;
                end = after;
            }
        }
        renamed + &entry[end..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Arranged;

    fn plan(names: &[(&str, &str)], module: [&'static str; 2]) -> ExpertPlan {
        let tensors = names.iter().map(|(old, new)| ((*new).to_owned(), Arranged::tensor(*old)));
        ExpertPlan { tensors: tensors.collect(), module }
    }

    #[test]
    fn modules_that_stay_numbers_have_their_new_names() {
        let stacked = plan(
            &[
                ("l.0.moe.experts.0.w1.weight", "l.0.mlp.experts.gate_up_proj"),
                ("l.0.moe.experts.1.w1.weight", "l.0.mlp.experts.gate_up_proj"),
                ("l.0.moe.gate.weight", "l.0.mlp.gate.weight"),
            ],
            ["moe.", "mlp."],
        );
        let config = r#"{"a": NaN, "quantization_config": {"ignore": ["l.0.moe.experts.0.w1",
            "l.0.moe.experts.1.w1", "l.0.moe.gate", "re:.*moe.gate$", "lm_head", "l.0.moe",
            "l.1.moe.up", "re:.*shared_moe$"], "b": [1]}}"#;
        let expected = r#"{"a": NaN, "quantization_config": {
    "b": [1],
    "ignore": ["l.0.mlp.experts","l.0.mlp.gate","re:.*mlp.gate$","lm_head","l.0.mlp","l.1.moe.up","re:.*shared_moe$"]
  }}"#;
        assert_eq!(renamed(&stacked, "config.json", config), expected);
        let split = plan(
            &[
                ("mlp.experts.up", "mlp.experts.0.up.weight"),
                ("mlp.experts.up", "mlp.experts.1.up.weight"),
            ],
            ["", ""],
        );
        let lists = ["modules_to_not_convert", "llm_int8_skip_modules", "exclude", "new_list"];
        for (listed, list) in ["mlp.experts", "mlp.experts.up"].into_iter().zip(lists) {
            let config = format!(
                r#"{{"text_config": {{"quantization_config": {{"{list}": ["{listed}"]}}}}}}"#
            );
            let expected = format!(
                r#"{{"text_config": {{"quantization_config": {{
    "{list}": ["mlp.experts.0.up","mlp.experts.1.up"]
  }}}}}}"#
            );
            assert_eq!(renamed(&split, "config.json", &config), expected);
        }
        for same in [
            r#"{"quantization_config": {"ignore": ["head", "re:x"], "bits": 4}}"#,
            "[]",
            "",
            "{\"ignore\": [\"mlp.experts\"]}",
            r#"{"text_config": {"text_config": {"quantization_config": {"ignore": ["mlp.experts"]}}}}"#,
        ] {
            assert_eq!(renamed(&split, "config.json", same), same);
        }
    }

    /// Settings of each module, as GPTQModel, MLX, Quark and ModelOpt have them.
    #[test]
    fn settings_of_modules_have_their_new_names() {
        let split = plan(
            &[
                ("moe.experts.up", "mlp.experts.0.up.weight"),
                ("moe.experts.up", "mlp.experts.1.up.weight"),
                ("moe.gate.weight", "mlp.gate.weight"),
            ],
            ["moe.", "mlp."],
        );
        let settings = r#"{"quantization": {"quantized_layers": {"moe.experts": {"a": "FP8"},
            "moe.gate": {"a": [NaN]}, "-:.*moe.x": {}}, "exclude_modules": ["moe.experts*"]}}"#;
        let expected = r#"{
  "quantization": {
    "exclude_modules": ["mlp.experts*"],
    "quantized_layers": {
      "-:.*mlp.x": {},
      "mlp.experts.0.up": {"a": "FP8"},
      "mlp.experts.1.up": {"a": "FP8"},
      "mlp.gate": {"a": [NaN]}
    }
  }
}"#;
        assert_eq!(renamed(&split, "hf_quant_config.json", settings), expected);
        let config = renamed(&split, "config.json", &format!("{{\"a\": 1,  {}", &settings[1..]));
        assert!(config.starts_with("{\"a\": 1,  \"quantization\": {\n"), "{config}");
        assert!(config.contains("\"mlp.experts.1.up\": {\"a\": \"FP8\"}"), "{config}");
        let deep = "{\"moe.gate\":".repeat(50_000) + "0" + &"}".repeat(50_000);
        assert!(renamed(&split, "hf_quant_config.json", &deep).contains("mlp.gate"));
    }
}
