//! [`KEYS`]: the standard's table of keys.

use super::form::Form;

/// The prefix of every key of the standard in a file's metadata.
pub(super) const PREFIX: &str = "modelspec.";

/// A file with this key follows the standard.
pub(super) const VERSION_KEY: &str = "sai_model_spec";

/// The prefix of hashes, before the name of the algorithm.
pub(super) const HASH_PREFIX: &str = "hash_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// A departure from a recommendation.
    Warning,
    /// A departure from a requirement.
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    Any,
    Image,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name, without [`PREFIX`].
    pub(super) name: &'static str,
    /// `None` for an optional key.
    pub(super) lack: Option<Level>,
    pub(super) category: Category,
    pub(super) form: Form,
}

/// The keys of version 1.0.1, in the standard's order.
pub(super) const KEYS: &[Key] = {
    use Category::{Any, Image, Text};
    const CAN: Option<Level> = None;
    const SHOULD: Option<Level> = Some(Level::Warning);
    const MUST: Option<Level> = Some(Level::Error);
    &[
        key(VERSION_KEY, MUST, Any, Form::Version),
        key("architecture", MUST, Any, Form::NonEmpty),
        key("implementation", MUST, Any, Form::NonEmpty),
        key("title", MUST, Any, Form::NonEmpty),
        key("description", SHOULD, Any, Form::Text),
        key("author", SHOULD, Any, Form::Text),
        key("date", SHOULD, Any, Form::Date),
        key("hash_sha256", SHOULD, Any, Form::Sha256),
        key("implementation_version", CAN, Any, Form::Text),
        key("license", CAN, Any, Form::Text),
        key("usage_hint", CAN, Any, Form::Text),
        key("thumbnail", CAN, Any, Form::DataImage),
        key("tags", CAN, Any, Form::List),
        key("merged_from", CAN, Any, Form::List),
        key("resolution", MUST, Image, Form::Resolution),
        key("trigger_phrase", CAN, Image, Form::Text),
        key("prediction_type", CAN, Image, Form::Text),
        key("timestep_range", CAN, Image, Form::Range),
        key("encoder_layer", CAN, Image, Form::Integer),
        key("preprocessor", CAN, Image, Form::Text),
        key("is_negative_embedding", CAN, Image, Form::Boolean),
        key("unet_dtype", CAN, Image, Form::List),
        key("vae_dtype", CAN, Image, Form::List),
        key("data_format", MUST, Text, Form::NonEmpty),
        key("format_type", SHOULD, Text, Form::Text),
        key("language", CAN, Text, Form::List),
        key("format_template", CAN, Text, Form::Text),
    ]
};

const fn key(name: &'static str, lack: Option<Level>, category: Category, form: Form) -> Key {
    Key { name, lack, category, form }
}

/// Adds the prefix.
pub(super) fn full_name(name: &str) -> String {
    [PREFIX, name].concat()
}

/// `name` is without [`PREFIX`]. A hash by any algorithm has a form.
pub(super) fn form_of(name: &str) -> Option<Form> {
    match KEYS.iter().find(|key| key.name == name) {
        Some(key) => Some(key.form),
        None => name.starts_with(HASH_PREFIX).then_some(Form::Hash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(lack: Option<Level>) -> Vec<&'static str> {
        KEYS.iter().filter(|key| key.lack == lack).map(|key| key.name).collect()
    }

    #[test]
    fn the_table_agrees_with_the_standard() {
        assert_eq!(
            names(Some(Level::Error)),
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
            names(Some(Level::Warning)),
            ["description", "author", "date", "hash_sha256", "format_type"]
        );
        assert_eq!((names(None).len(), KEYS.len()), (16, 27));
        let form_of_key = |name| KEYS.iter().find(|key| key.name == name).map(|key| key.form);
        assert_eq!(form_of_key("timestep_range"), Some(Form::Range));
        assert_eq!(form_of_key("resolution"), Some(Form::Resolution));
    }
}
