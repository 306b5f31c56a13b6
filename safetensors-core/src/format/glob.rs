//! [`Pattern`]: a glob for names of tensors.

use std::fmt;
use std::str::{Chars, FromStr};
use std::string::String;

use regex::Regex;

/// A glob that an entire name has to match. Names have no structure, so `*` and `?` match dots and
/// slashes too.
///
/// | pattern | matches |
/// |---|---|
/// | `*` | any text, or none |
/// | `?` | one character |
/// | `[abc]`, `[0-9]` | one of these; a literal `]` comes first, a `-` first or last |
/// | `[!abc]`, `[^abc]` | one other than these |
/// | `{a,b}` | either; each may be a pattern, or empty |
/// | `\*` | the character after the backslash, outside of brackets |
///
/// Matches in time linear in the length of a name.
///
/// ```
/// use safetensors_core::glob::Pattern;
///
/// let norms: Pattern = "*.layers.[0-3].{input,output}_norm.*".parse()?;
/// assert!(norms.matches("model.layers.2.input_norm.weight"));
/// assert!(!norms.matches("model.layers.4.input_norm.weight"));
/// # Ok::<(), safetensors_core::glob::BadPattern>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    text: String,
}

/// Why a text is not a [`Pattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPattern(String);

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadPattern {}

impl Pattern {
    /// Returns whether the name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Pattern {
    type Err = BadPattern;

    /// # Errors
    ///
    /// [`BadPattern`] for a bracket or brace without its counterpart, an empty range, a backslash
    /// at the end, and a pattern that is too long.
    fn from_str(pattern: &str) -> Result<Self, BadPattern> {
        let regex = regex_of(pattern).map_err(BadPattern)?;
        // The text is a regular expression by construction, so only the limits of `Regex` can fail.
        let too_large =
            |_| BadPattern("the pattern is too long, or its braces are nested too deep".into());
        Ok(Self { regex: Regex::new(&regex).map_err(too_large)?, text: pattern.into() })
    }
}

fn regex_of(pattern: &str) -> Result<String, String> {
    // `s` lets `.` match line ends too.
    let mut regex = String::from("(?s)^");
    let mut open_braces = 0_usize;
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' => regex.push_str(&class(&mut rest)?),
            '{' => {
                open_braces += 1;
                regex.push_str("(?:");
            }
            ',' if open_braces > 0 => regex.push('|'),
            '}' if open_braces == 0 => return Err("\"}\" closes no \"{\"".into()),
            '}' => {
                open_braces -= 1;
                regex.push(')');
            }
            '\\' => match rest.next() {
                Some(c) => regex.push_str(&literal(c)),
                None => return Err("no character follows the last \"\\\"".into()),
            },
            c => regex.push_str(&literal(c)),
        }
    }
    if open_braces > 0 {
        return Err("\"{\" is not closed by \"}\"".into());
    }
    regex.push('$');
    Ok(regex)
}

fn class(rest: &mut Chars<'_>) -> Result<String, String> {
    let mut regex = String::from("[");
    if let Some(after) = rest.as_str().strip_prefix(['!', '^']) {
        *rest = after.chars();
        regex.push('^');
    }
    let mut is_first = true;
    loop {
        let first = match rest.next() {
            Some(']') if !is_first => break,
            Some(c) => c,
            None => return Err("\"[\" is not closed by \"]\"".into()),
        };
        is_first = false;
        regex.push_str(&literal(first));

        // A hyphen before the closing bracket is a character, not a range.
        let mut ahead = rest.clone();
        if let (Some('-'), Some(last)) = (ahead.next(), ahead.next())
            && last != ']'
        {
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            regex.push('-');
            regex.push_str(&literal(last));
            *rest = ahead;
        }
    }
    regex.push(']');
    Ok(regex)
}

/// Valid inside and outside of a class.
fn literal(c: char) -> String {
    format!("\\x{{{:x}}}", u32::from(c))
}

#[cfg(test)]
mod tests {
    use globset::GlobBuilder;

    use super::*;

    #[test]
    fn one_character_is_one_character() {
        let cases: [(&str, &[&str], &[&str]); 12] = [
            ("?", &["a", "é", "\u{1f600}", "\n"], &["", "aa", "éé", "e\u{301}"]),
            ("??", &["éa", "ab", "é\n"], &["é", "\u{1f600}"]),
            ("[é]", &["é"], &["Ã", "\u{a9}", "e"]),
            ("[à-é]x", &["àx", "äx", "éx"], &["ax", "x", "\u{ea}x"]),
            ("[!é]", &["e", "\u{1f600}"], &["é", ""]),
            ("*é*", &["é", "caféteria", "\né"], &["cafe"]),
            ("{é,ßx}", &["é", "ßx"], &["ß", "éx"]),
            ("\\\\xC3", &["\\xC3"], &["Ã", "\u{c3}"]),
            ("\\*\\é", &["*é"], &["aé"]),
            ("a.b+(c)|^$", &["a.b+(c)|^$"], &["axb", "a.b"]),
            ("[[:alpha:]", &[":", "a", "["], &["b"]),
            ("[a&&b~~c]", &["&", "a", "~"], &["e"]),
        ];
        for (pattern, matching, others) in cases {
            let pattern = Pattern::from_str(pattern).unwrap();
            for name in matching {
                assert!(pattern.matches(name), "{pattern:?} {name:?}");
            }
            for name in others {
                assert!(!pattern.matches(name), "{pattern:?} {name:?}");
            }
        }
    }

    #[test]
    fn names_have_no_parts() {
        for pattern in ["a*d", "a**d", "a?b?c?d", "a.b[./]c*d", "{a*,x}d"] {
            assert!(Pattern::from_str(pattern).unwrap().matches("a.b/c.d"), "{pattern}");
        }
        assert!(!Pattern::from_str("**/d").unwrap().matches("d"));
    }

    #[test]
    fn alternatives_match_each_of_them() {
        let cases: [(&str, &[&str], &[&str]); 4] = [
            ("w{,_scale}", &["w", "w_scale"], &["w_", "_scale"]),
            ("{a,{b,c}d}", &["a", "bd", "cd"], &["ad", "b", "d"]),
            ("{a\\,b,[,}]}", &["a,b", ",", "}"], &["a", "b"]),
            ("a,b", &["a,b"], &["a", "b"]),
        ];
        for (pattern, matching, others) in cases {
            let pattern = Pattern::from_str(pattern).unwrap();
            assert!(matching.iter().all(|name| pattern.matches(name)), "{pattern:?}");
            assert!(!others.iter().any(|name| pattern.matches(name)), "{pattern:?}");
        }
    }

    #[test]
    fn malformed_patterns_are_errors() {
        for (pattern, error) in [
            ("[", "\"[\" is not closed"),
            ("[]", "\"[\" is not closed"),
            ("[!]", "\"[\" is not closed"),
            ("[a-", "\"[\" is not closed"),
            ("[z-a]", "the range 'z' to 'a' is empty"),
            ("{a,b", "\"{\" is not closed"),
            ("a}", "\"}\" closes no \"{\""),
            ("}{", "\"}\" closes no \"{\""),
            ("a\\", "no character follows"),
        ] {
            let found = Pattern::from_str(pattern).unwrap_err().to_string();
            assert!(found.starts_with(error), "{pattern}: {found}");
        }
        // Hostile sizes quickly give an error.
        assert!(Pattern::from_str(&"{".repeat(100_000)).is_err());
        let deep = ["{".repeat(100_000), "}".repeat(100_000)].concat();
        assert!(Pattern::from_str(&deep).unwrap_err().to_string().contains("nested too deep"));
        assert!(Pattern::from_str(&"?".repeat(200_000)).unwrap_err().0.contains("too long"));
        assert!(Pattern::from_str(&"*a".repeat(1_000)).unwrap().matches(&"a".repeat(10_000)));
    }

    #[test]
    fn a_pattern_matches_entire_names() {
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
        ] {
            let found = Pattern::from_str(pattern).unwrap().matches(name);
            assert_eq!(found, is_match, "{pattern} {name}");
        }
        // A hostile pattern takes no exponential time.
        let hostile = Pattern::from_str(&("a*".repeat(500) + "b")).unwrap();
        assert!(!hostile.matches(&"a".repeat(5000)));
    }

    // globset, which reads the same language over bytes, is the oracle for ASCII. It differs where
    // names would be paths (`**`, `/`), and skips empty alternatives.
    #[test]
    fn agrees_with_globset() {
        let parts =
            ["a", "b", "-", "*", "?", "[", "]", "!", "^", "{", "}", ",", "\\", "[a-", "{a,"];
        let names: Vec<String> = (0..4)
            .flat_map(|len| (0..5_usize.pow(len)).map(move |number| (len, number)))
            .map(|(len, number)| {
                (0..len).map(|i| char::from(b"ab-],"[number / 5_usize.pow(i) % 5])).collect()
            })
            .collect();
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut valid, mut malformed) = (0, 0);
        for _ in 0..3_000 {
            let len = random(7);
            let pattern: String = (0..len).map(|_| parts[random(parts.len())]).collect();
            let has_empty_alternative =
                ["{,", ",,", ",}", "{}"].iter().any(|empty| pattern.contains(empty));
            if pattern.contains("**") || has_empty_alternative {
                continue;
            }
            let own = Pattern::from_str(&pattern);
            let oracle = GlobBuilder::new(&pattern).backslash_escape(true).build();
            match (own, oracle) {
                (Ok(own), Ok(oracle)) => {
                    valid += 1;
                    let oracle = oracle.compile_matcher();
                    for name in &names {
                        let expected = oracle.is_match(name);
                        assert_eq!(own.matches(name), expected, "{pattern:?} {name:?}");
                    }
                }
                (Err(_), Err(_)) => malformed += 1,
                (own, oracle) => panic!("{pattern:?}: {own:?}, globset: {oracle:?}"),
            }
        }
        assert!(valid > 300 && malformed > 300, "{valid} {malformed}");
    }
}
