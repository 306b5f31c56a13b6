//! [`unmatched`]: the error of a pattern that no name matches, with names like it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use safetensors_core::framework::similar_names;

use crate::terminal::text;

/// The error for a pattern of an option that matches none of these names.
pub(crate) fn unmatched(option: &str, pattern: &str, names: &[&str]) -> anyhow::Error {
    let near = near(pattern, names);
    let shown = text::printable(pattern);
    let hint = match near.as_slice() {
        [] => "`safetensors inspect --flat` shows the names".to_owned(),
        [first, ..] if first.contains(pattern) && option != "--rename" => {
            format!("'*{shown}*' matches {}", text::some(near))
        }
        _ => format!("near it: {}", text::some(near)),
    };
    anyhow::anyhow!("no tensor matches {option} '{shown}'; {hint}; --ignore-unmatched goes on")
}

/// The names that have the most letters of the words of a pattern, or of words like these. Empty if
/// no name has any.
fn near<'n>(pattern: &str, names: &[&'n str]) -> Vec<&'n str> {
    let parts: BTreeSet<String> =
        names.iter().flat_map(|name| name.split('.')).map(str::to_lowercase).collect();
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    let pattern = pattern.to_lowercase();
    let mut words = Vec::new();
    for word in pattern.split(|c| !is_in_word(c)) {
        // Numbers are in the names of all layers, and single letters are classes of a regex.
        if word.len() < 2 || !word.contains(char::is_alphabetic) {
            continue;
        }
        if parts.iter().any(|part| part.contains(word)) {
            words.push(word.to_owned());
        } else {
            words.extend(similar_names(word, parts.iter().map(String::as_str)).into_iter().take(1));
        }
    }
    let letters = |name: &str| -> usize {
        let name = name.to_lowercase();
        words.iter().filter(|word| name.contains(word.as_str())).map(String::len).sum()
    };
    let mut found: Vec<_> = names.iter().map(|&name| (Reverse(letters(name)), name)).collect();
    let mut seen = HashSet::new();
    found.retain(|(letters, name)| letters.0 > 0 && seen.insert(*name));
    found.sort_by_key(|(letters, _)| *letters);
    let most = found.first().map(|(letters, _)| *letters);
    found.into_iter().take_while(|(letters, _)| Some(*letters) == most).map(|(_, it)| it).collect()
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
            "lm_head.weight",
        ];
        let attention = &names[1..3];
        for (pattern, expected) in [
            ("lm_head", &names[4..]),
            ("LM_HEAD.*", &names[4..]),
            ("lm_haed.weight", &names[4..]),
            ("model.layers.7.self_attn.*", attention),
            ("*.self_atn.*", attention),
            (r"^model\.layer\.(\d+)\.mpl", &names[3..4]),
            ("zzz", &[]),
            ("*", &[]),
            ("", &[]),
        ] {
            assert_eq!(near(pattern, &names), expected, "{pattern}");
        }
    }

    #[test]
    fn the_error_names_three_and_what_to_do() {
        let names: Vec<_> = (0..9).map(|i| format!("layers.{i}.weight")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let says = |option: &str, pattern: &str| unmatched(option, pattern, &names).to_string();
        assert_eq!(
            says("--drop", "layer.*"),
            "no tensor matches --drop 'layer.*'; near it: layers.0.weight, layers.1.weight, \
             layers.2.weight and 6 more; --ignore-unmatched goes on"
        );
        assert_eq!(
            says("--filter", "8.w"),
            "no tensor matches --filter '8.w'; `safetensors inspect --flat` shows the names; \
             --ignore-unmatched goes on"
        );
        assert!(says("--drop", "weight").contains("; '*weight*' matches layers.0.weight, "));
        assert!(says("--rename", "weight").contains("; near it: layers.0.weight, "));
        assert!(says("--drop", "\u{1b}").starts_with("no tensor matches --drop '\\u{1b}';"));
    }
}
