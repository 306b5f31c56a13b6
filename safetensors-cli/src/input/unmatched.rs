//! Errors of patterns, and [`near`], names like a missing one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use safetensors_core::framework::similar_names;

use crate::terminal::text;

pub(crate) fn unmatched(option: &str, pattern: &str, names: &[&str]) -> anyhow::Error {
    let near = near(pattern, names);
    let shown = text::printable(pattern);
    let hint = match near.as_slice() {
        [] => "`safetensors inspect --flat` shows the names".to_owned(),
        [first, ..] if first.contains(pattern) && option != "--rename" => {
            format!("'*{shown}*' matches {}", text::some(near))
        }
        _ => format!("similar: {}", text::some(near)),
    };
    anyhow::anyhow!("no tensor matches {option} '{shown}'; {hint}; --ignore-unmatched allows it")
}

/// The pattern matches only tensors that store these weights, which are read as numbers.
pub(crate) fn only_codes(
    option: &str,
    pattern: &str,
    weights: Vec<&str>,
    instead: &str,
) -> anyhow::Error {
    anyhow::anyhow!(
        "{option} '{}' matches only codes and scales, which become numbers under the names of \
         weights: {}; {instead} takes them as stored; --ignore-unmatched allows it",
        text::printable(pattern),
        text::some(weights)
    )
}

/// Returns the names with the most letters of words like the pattern's or name's, the shortest
/// first.
pub(super) fn near<'n>(pattern: &str, names: &[&'n str]) -> Vec<&'n str> {
    let parts: BTreeSet<String> =
        names.iter().flat_map(|name| name.split('.')).map(str::to_lowercase).collect();
    let mut words = Vec::new();
    for word in pattern.to_lowercase().split(|c: char| !c.is_alphanumeric() && c != '_') {
        if parts.iter().any(|part| has(part, word)) {
            words.push(word.to_owned());
        } else {
            words.extend(similar_names(word, parts.iter().map(String::as_str)).into_iter().take(1));
        }
    }
    let mut found = BTreeSet::new();
    for &name in names {
        let lower = name.to_lowercase();
        let is_in = |word: &&String| lower.split('.').any(|part| has(part, word));
        let letters: usize = words.iter().filter(is_in).map(String::len).sum();
        found.insert((Reverse(letters), !name.ends_with(pattern), name.len(), name));
    }
    let most = found.first().map_or(0, |(letters, ..)| letters.0);
    let nearest = found.into_iter().take_while(|(letters, ..)| most > 0 && letters.0 == most);
    nearest.map(|(.., name)| name).collect()
}

/// A number must be a whole part. A letter may belong to a regular expression.
fn has(part: &str, word: &str) -> bool {
    let is_short = word.len() < 2 || word.bytes().all(|byte| byte.is_ascii_digit());
    part == word && !word.is_empty() || !is_short && part.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_have_the_same_words_or_similar_ones() {
        let names = [
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.10.mlp.up_proj.weight",
            "lm_head.weight",
        ];
        let attention = &[names[2], names[1]];
        for (pattern, expected) in [
            ("lm_head", &names[5..]),
            ("LM_HEAD.*", &names[5..]),
            ("lm_haed.weight", &names[5..]),
            ("model.layers.7.self_attn.*", attention),
            ("*.self_atn.*", attention),
            (r"^model\.layer\.(\d+)\.mpl", &names[3..5]),
            ("model.layer.10.mpl.up_proj.weight", &names[4..5]),
            ("zzz", &[]),
            ("*", &[]),
            ("", &[]),
        ] {
            assert_eq!(near(pattern, &names), expected, "{pattern}");
        }
    }

    #[test]
    fn the_error_has_three_similar_names_and_a_remedy() {
        let names: Vec<_> = (0..9).map(|i| format!("layers.{i}.weight")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let says = |option: &str, pattern: &str| unmatched(option, pattern, &names).to_string();
        assert_eq!(
            says("--drop", "layer.*"),
            "no tensor matches --drop 'layer.*'; similar: layers.0.weight, layers.1.weight, \
             layers.2.weight and 6 more; --ignore-unmatched allows it"
        );
        assert_eq!(
            says("--filter", "9.z"),
            "no tensor matches --filter '9.z'; `safetensors inspect --flat` shows the names; \
             --ignore-unmatched allows it"
        );
        assert!(says("--drop", "weight").contains("; '*weight*' matches layers.0.weight, "));
        assert!(says("--rename", "weight").contains("; similar: layers.0.weight, "));
        assert!(says("--drop", "\u{1b}").starts_with("no tensor matches --drop '\\u{1b}';"));
    }
}
