//! [`Select`]: which tensors a command is about, by patterns of their names.

use globset::GlobBuilder;
use regex::Regex;
use safetensors_core::{Checkpoint, LazyTensor};

/// The option that picks tensors, for every command that has it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Select {
    /// Only tensors whose names match: * any text, ? one character, {a,b} either
    ///
    /// [0-9] is one of several characters. May be given several times; a name has to match one of
    /// them
    #[arg(short = 'f', long = "filter", value_name = "GLOB", value_parser = glob)]
    patterns: Vec<Pattern>,
}

impl Select {
    /// The test that names have to pass.
    pub(crate) fn matcher(&self) -> anyhow::Result<Matcher> {
        Ok(Matcher::new(&self.patterns))
    }
}

/// A pattern over a whole name. `*` crosses dots and slashes: to the format a name has no parts.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Whether the name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

/// Patterns put together. Without any, every name matches.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// Nothing if every name matches.
    patterns: Option<Vec<Pattern>>,
}

impl Matcher {
    /// A name has to match one of these.
    pub(crate) fn new(patterns: &[Pattern]) -> Self {
        Self { patterns: Some(patterns.to_vec()).filter(|patterns| !patterns.is_empty()) }
    }

    /// Whether the name matches a pattern.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.patterns
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
    }

    /// Whether there are patterns at all.
    pub(crate) fn is_everything(&self) -> bool {
        self.patterns.is_none()
    }

    /// The tensors that match, in the checkpoint's order.
    ///
    /// Patterns that leave nothing of a checkpoint are an error: a misspelt one would look like an
    /// empty model.
    pub(crate) fn tensors<'a, S>(
        &self,
        checkpoint: &'a Checkpoint<S>,
    ) -> anyhow::Result<Vec<LazyTensor<'a, S>>> {
        let tensors: Vec<_> =
            checkpoint.tensors().filter(|tensor| self.matches(tensor.name())).collect();
        if tensors.is_empty() && !self.is_everything() {
            anyhow::bail!(
                "no tensor matches --filter; `safetensors inspect --flat` shows the names"
            );
        }
        Ok(tensors)
    }
}

/// Reads a pattern.
pub(crate) fn glob(pattern: &str) -> Result<Pattern, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
    let glob = glob.map_err(|error| error.to_string())?;
    Ok(Pattern(Regex::new(&of_characters(glob.regex())).map_err(|error| error.to_string())?))
}

/// The regular expression of a glob, which is one of bytes, as one of characters: `?` is any one of
/// them, also `é`.
fn of_characters(regex: &str) -> String {
    // With the flag that `.` is a line end too.
    let mut text = String::from("(?s)");
    // Characters beyond ASCII come as the bytes of their UTF-8, each escaped as `\xC3`.
    let mut bytes = Vec::new();
    let mut rest = regex.strip_prefix("(?-u)").unwrap_or(regex);
    while let Some(c) = rest.chars().next() {
        let byte =
            rest.strip_prefix("\\x").and_then(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok());
        if let Some(byte) = byte {
            bytes.push(byte);
            rest = &rest[4..];
            continue;
        }
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut bytes)));
        // What follows a backslash belongs to it, another backslash too.
        let len = if c == '\\' {
            1 + rest[1..].chars().next().map_or(0, char::len_utf8)
        } else {
            c.len_utf8()
        };
        text.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    text + &String::from_utf8_lossy(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_over_whole_names() {
        let matcher = |patterns: &[&str]| {
            Matcher::new(&patterns.iter().map(|p| glob(p).unwrap()).collect::<Vec<_>>())
        };
        let layers = matcher(&["*.layers.[0-3].*", "lm_head.{weight,bias}"]);
        assert!(layers.matches("model.layers.3.mlp/up") && layers.matches("lm_head.bias"));
        assert!(!layers.matches("model.layers.30.mlp") && !layers.matches("x.lm_head.bias"));
        assert!(matcher(&[]).matches("") && matcher(&[]).is_everything());
        assert!(glob("[").is_err());
    }

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
            let pattern = glob(pattern).unwrap();
            for name in matching {
                assert!(pattern.matches(name), "{pattern:?} {name:?}");
            }
            for name in others {
                assert!(!pattern.matches(name), "{pattern:?} {name:?}");
            }
        }
    }
}
