//! [`similar_names`]: suggestions for a name that is not there.

use std::string::String;
use std::vec::Vec;

const MOST: usize = 3;

/// At most a quarter of a short name may differ.
const MOST_EDITS: usize = 10;

const LONGEST: usize = 1024;

// A few milliseconds. Headers may have millions of names, and most models look for a few tensors
// that may be missing.
const MOST_PAIRS: usize = 1 << 20;

/// Returns the name nearest to `name`, or the first three that are equally near. Empty if none is
/// similar.
///
/// A similar name has or lacks a prefix, such as `model.`, or differs by a few edits, but not by a
/// number: `layers.1.bias` is no misspelling of `layers.2.bias`. Takes at most a few milliseconds.
///
/// ```
/// use safetensors_core::framework::similar_names;
///
/// let names = ["model.embed_tokens.weight", "model.layers.0.bias", "model.layers.1.bias"];
/// assert_eq!(similar_names("embed_tokens.weight", names), [names[0]]);
/// assert_eq!(similar_names("model.layer.1.bias", names), [names[2]]);
/// assert!(similar_names("lm_head.weight", names).is_empty());
/// ```
#[doc(hidden)]
pub fn similar_names<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    nearest(name, &mut names.into_iter())
}

fn nearest(name: &str, names: &mut dyn Iterator<Item = &str>) -> Vec<String> {
    if name.is_empty() || name.len() > LONGEST {
        return Vec::new();
    }
    let wanted: Vec<char> = name.chars().collect();
    let most_edits = (wanted.len() / 4).clamp(1, MOST_EDITS);
    let mut pairs_left = MOST_PAIRS;
    let mut nearest = Vec::new();
    let mut least = usize::MAX;
    for other in names {
        if other.is_empty() || other.len() > LONGEST {
            continue;
        }
        let found = if has_prefix_more(name, other) || has_prefix_more(other, name) {
            Some(0)
        } else {
            edits(name, &wanted, other, most_edits, &mut pairs_left)
        };
        let Some(distance) = found.filter(|&distance| distance <= least) else { continue };
        if distance < least {
            least = distance;
            nearest.clear();
        }
        if nearest.len() < MOST {
            nearest.push(String::from(other));
        }
    }
    nearest
}

fn has_prefix_more(name: &str, longer: &str) -> bool {
    longer.strip_suffix(name).is_some_and(|prefix| prefix.ends_with('.'))
}

/// Returns `None` for more than `most` edits, or after too much work.
fn edits(
    name: &str,
    wanted: &[char],
    other: &str,
    most: usize,
    pairs_left: &mut usize,
) -> Option<usize> {
    // These look at bytes only, and exclude nearly all names. A character has at most 4 bytes.
    if name.len().abs_diff(other.len()) > 4 * most || !digits(name).eq(digits(other)) {
        return None;
    }
    // The common start and end take no edits. The part between is short in similar names.
    let other: Vec<char> = other.chars().collect();
    let start = wanted.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let wanted = &wanted[start..];
    let other = &other[start..];
    let end = wanted.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let wanted = &wanted[..wanted.len() - end];
    let other = &other[..other.len() - end];
    if wanted.len().abs_diff(other.len()) > most {
        return None;
    }
    *pairs_left = pairs_left.checked_sub(wanted.len() * other.len())?;
    // Two characters that changed places are one edit.
    let distance = strsim::generic_damerau_levenshtein(wanted, other);
    (distance <= most).then_some(distance)
}

fn digits(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().filter(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use std::{format, vec};

    use super::*;

    #[test]
    fn names_with_a_few_edits_or_another_prefix_are_similar() {
        let names = [
            "model.layers.1.self_attn.q_proj.weight",
            "model.layers.10.self_attn.q_proj.weight",
            "model.layers.1.self_attn.k_proj.weight",
            "model.norm.weight",
            "wörter",
        ];
        let similar = |name: &str| similar_names(name, names);
        assert_eq!(similar("layers.1.self_attn.q_proj.weight"), [names[0]]);
        assert_eq!(similar("text.model.norm.weight"), [names[3]]);
        // Only the nearest, and none with other numbers.
        assert_eq!(similar("model.layers.1.attn.q_proj.weight"), [names[0]]);
        assert_eq!(similar("model.layers.1.self_attn.proj.weight"), [names[0], names[2]]);
        assert_eq!(similar("model.layer.10.self_attn.q_proj.weight"), [names[1]]);
        assert!(similar("model.layers.2.self_attn.q_proj.weight").is_empty());
        assert_eq!(similar("worter"), [names[4]]);
        // Two characters that changed places are one edit, also in a name that may have only one.
        assert_eq!(similar_names("haet", ["heat"]), ["heat"]);
        assert!(similar_names("taeh", ["heat"]).is_empty());
        for none in ["", "x", "norm", "weight.", "models"] {
            assert!(similar(none).is_empty(), "{none}");
        }
        // A part of a component is no prefix.
        assert!(similar_names("norm", ["prenorm", "my.norm_norm_norm"]).is_empty());
        // The first three of many.
        let many = ["a.w", "b.w", "c.w", "d.w"];
        assert_eq!(similar_names("e.w", many), many[..3]);
    }

    #[test]
    fn many_and_long_names_take_little_time() {
        let many: Vec<String> =
            (0..100_000).map(|i| format!("model.layers.{i}.{}.weight", "proj".repeat(9))).collect();
        // Names with nothing in common, so that all characters would have to be compared.
        let long: Vec<String> =
            (0..10_000_u32).map(|i| format!("{}{i}", "ab".repeat(500))).collect();
        let start = Instant::now();
        assert!(similar_names("model.layers.nowhere", many.iter().map(String::as_str)).is_empty());
        let looked_for = "ba".repeat(500) + "1";
        assert!(similar_names(&looked_for, long.iter().map(String::as_str)).len() <= MOST);
        // In a build without optimisation, on a busy machine. Unbounded, it would take minutes.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());

        let huge = "n".repeat(1 << 20);
        assert_eq!(similar_names("n", vec![&*huge, "m"]), ["m"]);
        assert!(similar_names(&huge, vec![&*huge]).is_empty());
    }
}
