//! Patterns of file names, as Python's `fnmatch` reads them, without its sets of characters.

/// Whether a whole name matches a pattern: `*` stands for any characters, also for `/` and none,
/// `?` for one character, and everything else for itself.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Where to go on after a mismatch: behind the last `*`, which then stands for one more.
    let mut star = None;
    loop {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
                continue;
            }
            Some(c) if name.get(from).is_some_and(|found| *c == '?' || c == found) => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            None if from == name.len() => return true,
            _ => {}
        }
        match star {
            Some((position, end)) if end < name.len() => {
                star = Some((position, end + 1));
                (at, from) = (position + 1, end + 1);
            }
            _ => return false,
        }
    }
}

/// Whether a pattern matches only the file of its own name.
pub(super) fn is_name(pattern: &str) -> bool {
    !pattern.contains(['*', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, is_match) in [
            ("config.json", "config.json", true),
            ("config.json", "a/config.json", false),
            ("*.json", "a/config.json", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("token*er?json", "tokenizer.json", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("?", "é", true),
            ("a?", "a", false),
            ("**", "x", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_exponential_time() {
        assert!(!matches(&("a*".repeat(500) + "b"), &"a".repeat(5000)));
    }
}
