//! The lists of modules in a `config.json` that are not quantised, with the names of another layout.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};

use super::plan::Plan;
use crate::format::python_json;
use crate::weights::KEYS;

/// The settings that list modules.
const LISTS: [&str; 2] = ["ignore", "modules_to_not_convert"];

/// Renames modules in the lists of a `config.json`. The rest of the text stays as it is.
pub(super) fn renamed(plan: &Plan, config: &str) -> String {
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (old, new) in &plan.names {
        for old in [module(old), owner(old)] {
            modules.entry(old).or_default().insert(owner(new));
        }
    }
    let mut lists = lists(config);
    // From the last on, so that the places of the others hold.
    lists.sort_by_key(|list| Reverse(list.as_ptr()));
    let mut changed = config.to_owned();
    for list in lists {
        let Ok(old) = serde_json::from_str::<Vec<String>>(list) else { continue };
        let mut new = Vec::new();
        for name in &old {
            let names = modules.get(&**name).into_iter().flatten().map(|&name| name.to_owned());
            new.extend(names);
            if !modules.contains_key(&**name) {
                let start = format!("{name}.");
                let mut inside = modules.range::<str, _>((Included(&*start), Unbounded));
                let has_experts = inside.next().is_some_and(|(name, _)| name.starts_with(&start));
                let is_renamed = has_experts || is_pattern(name);
                new.push(if is_renamed { plan.in_pattern(name) } else { name.clone() });
            }
        }
        let mut seen = BTreeSet::new();
        new.retain(|name| seen.insert(name.clone()));
        if new != old {
            let start = list.as_ptr().addr() - config.as_ptr().addr();
            let json = serde_json::Value::from(new).to_string();
            changed.replace_range(start..start + list.len(), &json);
        }
    }
    changed
}

/// Returns the lists of modules in the text of settings.
fn lists(config: &str) -> Vec<&str> {
    let Ok(entries) = python_json::entries(config) else { return Vec::new() };
    let inner = entries.get("text_config").and_then(|inner| python_json::entries(inner).ok());
    let mut lists = Vec::new();
    for entries in [Some(entries), inner].into_iter().flatten() {
        let of_weights =
            KEYS.iter().filter_map(|key| python_json::entries(entries.get(*key)?).ok());
        lists.extend(of_weights.flat_map(|of| LISTS.map(|key| of.get(key).copied())).flatten());
    }
    lists
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

impl Plan {
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

    fn plan(names: &[(&str, &str)], module: [&'static str; 2]) -> Plan {
        let names = names.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
        Plan { tensors: Vec::new(), names: names.collect(), module }
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
        assert_eq!(
            renamed(&stacked, config),
            r#"{"a": NaN, "quantization_config": {"ignore": ["l.0.mlp.experts","l.0.mlp.gate","re:.*mlp.gate$","lm_head","l.0.mlp","l.1.moe.up","re:.*shared_moe$"], "b": [1]}}"#
        );
        let split = plan(
            &[
                ("mlp.experts.up", "mlp.experts.0.up.weight"),
                ("mlp.experts.up", "mlp.experts.1.up.weight"),
            ],
            ["", ""],
        );
        for listed in ["mlp.experts", "mlp.experts.up"] {
            let config = |list: &str| {
                format!(
                    r#"{{"text_config": {{"quantization_config": {{"modules_to_not_convert": {list}}}}}}}"#
                )
            };
            assert_eq!(
                renamed(&split, &config(&format!("[\"{listed}\"]"))),
                config(r#"["mlp.experts.0.up","mlp.experts.1.up"]"#)
            );
        }
        for same in [
            r#"{"quantization_config": {"ignore": ["head", "re:x"]}}"#,
            "[]",
            "",
            "{\"ignore\": 1}",
            r#"{"text_config": {"text_config": {"quantization_config": {"ignore": ["mlp.experts"]}}}}"#,
        ] {
            assert_eq!(renamed(&split, same), same);
        }
    }
}
