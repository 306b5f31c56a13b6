//! [`KEYS`]: the standard's table of keys.

use super::form::Form;

/// The prefix of every key of the standard in a file's metadata.
pub(super) const PREFIX: &str = "modelspec.";

/// The key for the version of the standard. A file with this key follows the standard.
pub(super) const VERSION_KEY: &str = "sai_model_spec";

/// The prefix of the keys for hashes. The name of the algorithm follows it.
pub(super) const HASH_PREFIX: &str = "hash_";

/// How strongly the standard asks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requirement {
    /// A file without the key does not follow the standard.
    Must,
    /// The standard recommends the key.
    Should,
    /// The key is optional.
    Can,
}

/// The models that a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    /// Every model.
    Any,
    /// Models that generate images.
    Image,
    /// Models that predict text.
    Text,
}

/// One key of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name, without [`PREFIX`].
    pub(super) name: &'static str,
    /// How strongly the standard asks for it.
    pub(super) requirement: Requirement,
    /// The models that the key is for.
    pub(super) category: Category,
    /// The form of its value.
    pub(super) form: Form,
}

/// The keys of version 1.0.1, in the standard's order.
pub(super) const KEYS: &[Key] = {
    use Category::{Any, Image, Text};
    use Requirement::{Can, Must, Should};
    &[
        key(VERSION_KEY, Must, Any, Form::Version),
        key("architecture", Must, Any, Form::NonEmpty),
        key("implementation", Must, Any, Form::NonEmpty),
        key("title", Must, Any, Form::NonEmpty),
        key("description", Should, Any, Form::Text),
        key("author", Should, Any, Form::Text),
        key("date", Should, Any, Form::Date),
        key("hash_sha256", Should, Any, Form::Sha256),
        key("implementation_version", Can, Any, Form::Text),
        key("license", Can, Any, Form::Text),
        key("usage_hint", Can, Any, Form::Text),
        key("thumbnail", Can, Any, Form::DataImage),
        key("tags", Can, Any, Form::List),
        key("merged_from", Can, Any, Form::List),
        key("resolution", Must, Image, Form::Resolution),
        key("trigger_phrase", Can, Image, Form::Text),
        key("prediction_type", Can, Image, Form::Text),
        key("timestep_range", Can, Image, Form::Range),
        key("encoder_layer", Can, Image, Form::Integer),
        key("preprocessor", Can, Image, Form::Text),
        key("is_negative_embedding", Can, Image, Form::Boolean),
        key("unet_dtype", Can, Image, Form::List),
        key("vae_dtype", Can, Image, Form::List),
        key("data_format", Must, Text, Form::NonEmpty),
        key("format_type", Should, Text, Form::Text),
        key("language", Can, Text, Form::List),
        key("format_template", Can, Text, Form::Text),
    ]
};

const fn key(name: &'static str, requirement: Requirement, category: Category, form: Form) -> Key {
    Key { name, requirement, category, form }
}

/// Returns the name of a key with its prefix, as metadata has it.
pub(super) fn full_name(name: &str) -> String {
    [PREFIX, name].concat()
}

/// Returns the form of the value of a key, if the standard defines one. `name` is without
/// [`PREFIX`].
///
/// A hash by an algorithm that the table does not list has the form of a hash too.
pub(super) fn form_of(name: &str) -> Option<Form> {
    match KEYS.iter().find(|key| key.name == name) {
        Some(key) => Some(key.form),
        None => name.starts_with(HASH_PREFIX).then_some(Form::Hash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(requirement: Requirement) -> Vec<&'static str> {
        KEYS.iter().filter(|key| key.requirement == requirement).map(|key| key.name).collect()
    }

    #[test]
    fn the_table_agrees_with_the_standard() {
        assert_eq!(
            names(Requirement::Must),
            [
                "sai_model_spec",
                "architecture",
                "implementation",
                "title",
                "resolution",
                "data_format"
            ]
        );
        assert_eq!(
            names(Requirement::Should),
            ["description", "author", "date", "hash_sha256", "format_type"]
        );
        assert_eq!((names(Requirement::Can).len(), KEYS.len()), (16, 27));
        let form_of_key = |name| KEYS.iter().find(|key| key.name == name).map(|key| key.form);
        assert_eq!(form_of_key("timestep_range"), Some(Form::Range));
        assert_eq!(form_of_key("resolution"), Some(Form::Resolution));
    }
}
