//! [`validate`]: lists every difference between a file's metadata and the standard.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::keys::{Category, KEYS, Key, PREFIX, Requirement, VERSION_KEY, form_of};
use super::spec::{ModelSpec, full_name};
use super::value::{Value as _, Version};
use crate::error::Quoted;
use crate::header::Metadata;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// The metadata does not follow a recommendation of the standard.
    Warning,
    /// The metadata does not follow the standard.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One difference between metadata and the standard. `Display` describes it in a sentence, without
/// the level.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// How bad it is.
    pub level: Level,
    /// The key, with `modelspec.`
    pub key: String,
    /// What the value of the key should be.
    pub expected: &'static str,
    /// The value of the key; `None` if the key is missing.
    pub found: Option<String>,
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

/// Compares metadata with the standard, and lists the differences. Keys that the standard lists
/// come first, in its order, then hashes by other algorithms.
///
/// A value that does not have the form of its key is an error. A missing key is an error if every
/// model must have it, and a warning if every model should have it. For keys of some models only,
/// these rules hold:
///
/// - A missing `resolution` is an error if `architecture` begins with `stable-diffusion`, because
///   the standard says "should always have this key". It is a warning if another key for images is
///   present, because "models that are able to handle any resolution may omit this key". It is
///   always allowed if `architecture` contains a `/`, because "adapter and component models can
///   leave this off".
/// - A missing `data_format` is an error, and a missing `format_type` a warning, if `architecture`
///   is `gpt-neo-x`, the only text model that the standard lists, or if another key for text is
///   present.
///
/// A major version other than 1 is a warning, because its rules may differ. Keys that the standard
/// does not list are allowed.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::modelspec::{Level, ModelSpec, validate};
///
/// let mut metadata =
///     ModelSpec::new("gpt-neo-x", "transformers", "My Model").to_metadata()?;
/// metadata.insert("modelspec.date".into(), "yesterday".into());
/// let problems = validate(&metadata);
/// let errors: Vec<_> =
///     problems.iter().filter(|problem| problem.level == Level::Error).collect();
/// assert_eq!(errors.len(), 2);
/// assert_eq!(
///     (errors[0].key.as_str(), errors[0].found.as_deref()),
///     ("modelspec.date", Some("yesterday"))
/// );
/// assert_eq!(
///     (errors[1].key.as_str(), errors[1].found.as_deref()),
///     ("modelspec.data_format", None)
/// );
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub fn validate(metadata: &Metadata) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut find = |level, name: &str, expected, found: Option<&String>| {
        problems.push(Problem { level, key: full_name(name), expected, found: found.cloned() });
    };
    for key in KEYS {
        let found = metadata.get(&full_name(key.name));
        match found {
            Some(text) if !key.form.accepts(text) => {
                find(Level::Error, key.name, key.form.words(), found)
            }
            Some(text) if key.name == VERSION_KEY && is_of_another_major(text) => {
                find(
                    Level::Warning,
                    key.name,
                    "of major version 1, the only one that is checked",
                    found,
                );
            }
            Some(_) => {}
            None => {
                if let Some(level) = level_of_lack(key, metadata) {
                    find(level, key.name, key.form.words(), None);
                }
            }
        }
    }
    for (key, text) in metadata {
        let Some(name) = key.strip_prefix(PREFIX) else { continue };
        match form_of(name) {
            Some(form) if !KEYS.iter().any(|key| key.name == name) && !form.accepts(text) => {
                find(Level::Error, name, form.words(), Some(text));
            }
            _ => {}
        }
    }
    problems
}

fn is_of_another_major(text: &str) -> bool {
    Version::from_text(text).is_some_and(|version| version.major != ModelSpec::VERSION.major)
}

/// The level of the problem that this key is missing; `None` if that is not a problem.
fn level_of_lack(key: &Key, metadata: &Metadata) -> Option<Level> {
    let by_requirement = match key.requirement {
        Requirement::Must => Level::Error,
        Requirement::Should => Level::Warning,
        Requirement::Can => return None,
    };
    let architecture = metadata.get(&full_name("architecture")).map_or("", String::as_str);
    let has_key_of = |category| {
        KEYS.iter().any(|other| {
            other.category == category && metadata.contains_key(&full_name(other.name))
        })
    };
    match key.category {
        Category::Any => Some(by_requirement),
        Category::Image if architecture.contains('/') => None,
        Category::Image if architecture.starts_with("stable-diffusion") => Some(by_requirement),
        Category::Image => has_key_of(Category::Image).then_some(Level::Warning),
        Category::Text => {
            (architecture == "gpt-neo-x" || has_key_of(Category::Text)).then_some(by_requirement)
        }
    }
}
