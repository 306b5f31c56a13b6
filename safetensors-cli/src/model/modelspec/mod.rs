//! Stability AI's Model Metadata Standard 1.0.1: metadata that describes a model.
//! See [its repository](https://github.com/Stability-AI/ModelSpec).
//!
//! `keys` has the table of the standard, `form` and `date` check values, and [`validate()`]
//! compares a file with the table.

mod date;
mod form;
mod keys;
#[cfg(test)]
mod tests;
mod validate;

use form::Form;
pub(crate) use keys::Level;
use keys::{form_of, full_name};
use safetensors_core::Metadata;
pub(crate) use validate::{Problem, validate};

/// The version that [`entries`] declares.
const VERSION: &str = "1.0.1";

/// Returns `true` for any key of the standard, valid or not.
pub(crate) fn is_in(metadata: &Metadata) -> bool {
    metadata.keys().any(|key| key.starts_with(keys::PREFIX))
}

/// The names are without `modelspec.`, and the values must have their form.
pub(crate) fn entries<'a>(
    values: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Metadata, Problem> {
    let mut entries = Metadata::from([(full_name(keys::VERSION_KEY), VERSION.into())]);
    for (name, text) in values {
        let text = match form_of(name) {
            Some(form) if !form.accepts(text) => return Err(Problem::of_value(name, form, text)),
            Some(Form::List) => form::items(text).collect::<Vec<_>>().join(","),
            _ => text.to_owned(),
        };
        entries.insert(full_name(name), text);
    }
    Ok(entries)
}

/// Takes the place of a SHA-256 that is computed later.
pub(crate) fn any_sha256() -> (String, String) {
    (full_name("hash_sha256"), format!("0x{}", "0".repeat(form::SHA256_DIGITS)))
}
