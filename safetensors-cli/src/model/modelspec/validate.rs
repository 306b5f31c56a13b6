//! [`validate`]: compares a file's metadata with the standard.

use std::fmt;

use safetensors_core::Metadata;
use safetensors_core::framework::Quoted;

use super::form::{Form, major};
use super::keys::{Category, KEYS, Key, Level, PREFIX, VERSION_KEY, form_of, full_name};

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// `Display` omits the level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) level: Level,
    /// The key, with `modelspec.`
    key: String,
    expected: &'static str,
    /// The value, unless the key is missing.
    found: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, expected) = (Quoted(&self.key), self.expected);
        match &self.found {
            Some(found) => write!(f, "{key} should be {expected}, found {}", Quoted(found)),
            None => write!(f, "{key} is missing: it should be {expected}"),
        }
    }
}

impl Problem {
    /// The name is without `modelspec.`
    pub(super) fn of_value(name: &str, form: Form, text: &str) -> Self {
        let (level, key) = (Level::Error, full_name(name));
        Self { level, key, expected: form.words(), found: Some(text.to_owned()) }
    }
}

/// Lists keys of the standard in its order, then hashes by other algorithms.
///
/// A value of another form is an error. A missing key is an error if every model must have it, and
/// a warning if every model should. Some keys have these rules:
///
/// - A missing `resolution` is an error if `architecture` begins with `stable-diffusion` ("should
///   always have this key"), and a warning if another key for images is present ("models that are
///   able to handle any resolution may omit this key"). `architecture` with a `/` allows it
///   ("adapter and component models can leave this off").
/// - A missing `data_format` is an error, and a missing `format_type` a warning, if `architecture`
///   is `gpt-neo-x`, the only text model in the standard, or if another key for text is present.
///
/// A major version other than 1 is a warning, because its rules may differ.
pub(crate) fn validate(metadata: &Metadata) -> Vec<Problem> {
    let listed = KEYS.iter().filter_map(|key| problem_of(key, metadata));
    let others = metadata.iter().filter_map(|(key, text)| {
        let name = key.strip_prefix(PREFIX)?;
        let is_listed = KEYS.iter().any(|key| key.name == name);
        let form = form_of(name).filter(|form| !is_listed && !form.accepts(text))?;
        Some(Problem::of_value(name, form, text))
    });
    listed.chain(others).collect()
}

fn problem_of(key: &Key, metadata: &Metadata) -> Option<Problem> {
    let name = full_name(key.name);
    let Some(text) = metadata.get(&name) else {
        let level = level_of_lack(key, metadata)?;
        return Some(Problem { level, key: name, expected: key.form.words(), found: None });
    };
    if !key.form.accepts(text) {
        return Some(Problem::of_value(key.name, key.form, text));
    }
    if key.name == VERSION_KEY && major(text) != Some(1) {
        let expected = "of major version 1, the only one that is checked";
        return Some(Problem {
            level: Level::Warning,
            key: name,
            expected,
            found: Some(text.clone()),
        });
    }
    None
}

/// Returns `None` if it may be missing.
fn level_of_lack(key: &Key, metadata: &Metadata) -> Option<Level> {
    let level = key.lack?;
    let architecture = metadata.get(&full_name("architecture")).map_or("", String::as_str);
    let has_key_of = |category| {
        KEYS.iter().any(|other| {
            other.category == category && metadata.contains_key(&full_name(other.name))
        })
    };
    match key.category {
        Category::Any => Some(level),
        Category::Image if architecture.contains('/') => None,
        Category::Image if architecture.starts_with("stable-diffusion") => Some(level),
        Category::Image => has_key_of(Category::Image).then_some(Level::Warning),
        Category::Text => {
            (architecture == "gpt-neo-x" || has_key_of(Category::Text)).then_some(level)
        }
    }
}
