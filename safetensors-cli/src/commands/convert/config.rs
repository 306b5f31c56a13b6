//! The `config.json` of an output whose weights are stored in another way than those of the input,
//! or are merged with adapters.

use std::path::Path;

use safetensors_core::io::beside;
use safetensors_core::python_json;
use serde_json::{Map, Value};

use super::source::{CONFIG, MOST, Source, config_of};
use crate::input::Rewrite;
use crate::terminal::report::warn;
use crate::terminal::text;

/// The text of the `config.json` of the output: that of the inputs, with what it says of quantised
/// weights and of the dtype as they are now. `None` if quantised weights stay as they are and no adapter is
/// merged, and if there is nothing that all of the text holds for: a warning says so then.
pub(super) fn config(
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    is_directory: bool,
) -> anyhow::Result<Option<String>> {
    let is_quantised = rewrite.tensors().any(|(_, tensor)| tensor.is_quantized());
    let changes = is_quantised || sources.iter().any(|source| !source.numbers.is_empty());
    let merges = sources.iter().any(|source| !source.merged.is_empty());
    // Other outputs have no place for what only a merge would copy, so it is not read.
    if !(changes || merges && is_directory) {
        return Ok(None);
    }
    let mut found = None;
    for source in sources {
        let Some((path, text)) = config_of(source.checkpoint())? else { continue };
        let config = match changes {
            true => rewrite.quantized_config(&text),
            false => rewrite.config(&text),
        };
        let config = config.map_err(|error| error.in_path(&path))?;
        if changes && !source.kept.is_empty() {
            warn(format!("{} is not copied: some weights stay quantised", text::path(&path)));
            return Ok(None);
        }
        match &found {
            Some(other) if !is_of_same_model(config.as_bytes(), String::as_bytes(other)) => {
                warn(format!(
                    "{} is not copied: the inputs have different ones",
                    text::path(&path)
                ));
                return Ok(None);
            }
            Some(_) => {}
            None => found = Some(config),
        }
    }
    if found.is_none() && is_quantised {
        warn("there is no config.json beside IN, so OUT gets none; transformers and vLLM need one");
    }
    Ok(found)
}

/// The entries of a `config.json` without what they say of quantised weights; `None` if the text is
/// no JSON object.
fn plain(text: &[u8]) -> Option<Map<String, Value>> {
    let plain = Rewrite::default().quantized_config(std::str::from_utf8(text).ok()?).ok()?;
    object(plain.as_bytes())
}

/// The entries of a JSON object.
fn object(text: &[u8]) -> Option<Map<String, Value>> {
    match python_json::read(text) {
        Ok(Value::Object(entries)) => Some(entries),
        Ok(_) | Err(_) => None,
    }
}

/// Whether two texts of a `config.json` differ in nothing but what they say of quantised weights.
pub(super) fn is_of_same_model(one: &[u8], other: &[u8]) -> bool {
    // Without settings of a model, nothing is lost.
    plain(one).is_some_and(|one| one.is_empty() || plain(other).is_some_and(|other| one == other))
}

/// The entries of a `config.json` that describe quantised weights.
fn quantised(text: &[u8]) -> Map<String, Value> {
    let plain = plain(text).unwrap_or_default();
    let mut entries = object(text).unwrap_or_default();
    entries.retain(|key, value| plain.get(key) != Some(value));
    entries
}

/// Returns a warning for each file of settings in a directory that describes weights as they will not
/// be stored there. Nothing is written yet.
pub(super) fn stale_settings(
    directory: &Path,
    sources: &[Source],
    is_replaced: bool,
) -> Vec<String> {
    // Plain weights need no settings, so those that cannot be read are no error.
    let ignored = |error: anyhow::Error| warn(format!("{error:#}; its settings are not compared"));
    let mut copied = Vec::new();
    for source in sources.iter().filter(|it| it.numbers.is_empty() || !it.kept.is_empty()) {
        let found = config_of(source.checkpoint()).map_err(ignored).ok().flatten();
        let found = found.map(|(path, text)| (path, quantised(text.as_bytes())));
        copied.extend(found.filter(|(_, entries)| !entries.is_empty()));
    }
    let mut warnings = Vec::new();
    let there = || beside::read(directory, CONFIG, MOST).map_err(|error| ignored(error.into()));
    if !is_replaced && let Some(text) = there().ok().flatten() {
        let (there, path) = (quantised(&text), text::path(&directory.join(CONFIG)));
        match copied.iter().find(|(_, entries)| *entries != there) {
            Some((from, _)) => warnings.push(format!(
                "{path} does not describe the quantised weights: copy its settings from {}",
                text::path(from)
            )),
            None if copied.is_empty() && !there.is_empty() => warnings.push(format!(
                "{path} still describes quantised weights: remove that, because the weights are \
                 not stored like that now"
            )),
            None => {}
        }
    }
    let others = ["hf_quant_config.json", "quantize_config.json", "quanto_qmap.json"];
    let others = others.map(|name| directory.join(name));
    for path in others.iter().filter(|path| copied.is_empty() && path.is_file()) {
        warnings.push(format!("remove {}: it describes other weights", text::path(path)));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_of_one_model_differ_in_how_weights_are_stored() {
        let plain = br#"{"a": 1, "b": [1e-5]}"#;
        let same = br#"{"b": [0.00001], "quantization_config": {"quant_method": "fp8"}, "a": 1}"#;
        assert!(is_of_same_model(plain, same) && is_of_same_model(same, plain));
        assert!(is_of_same_model(b"{}", plain));
        for other in [&b"{\"a\": 1}"[..], b"", b"[]"] {
            assert!(!is_of_same_model(other, plain), "{}", String::from_utf8_lossy(other));
        }
        let plain = br#"{"text_config": {"a": 1}}"#;
        let same = br#"{"text_config": {"a": 1, "quantization_config": {"bits": 4}}}"#;
        assert!(is_of_same_model(plain, same) && is_of_same_model(same, plain));
        let other = br#"{"text_config": {"a": 2}}"#;
        assert!(!is_of_same_model(plain, other));
    }

    #[test]
    fn every_description_of_quantised_weights_is_found() {
        for settings in [
            r#""quantization_config": {"quant_method": "fp8"}"#,
            r#""compression_config": {"format": "pack-quantized"}"#,
            r#""quantization": {"group_size": 64, "bits": 4}"#,
            r#""text_config": {"quantization_config": {"quant_method": "fp8"}}"#,
        ] {
            let text = format!("{{\"model_type\": \"llama\", {settings}}}");
            assert!(!quantised(text.as_bytes()).is_empty(), "{text}");
        }
        let others = ["", "[]", "{\"note\": \"\\\"quantization_config\\\"\"}"];
        for text in others.into_iter().chain([r#"{"quantization": {"note": "\"bits\""}}"#]) {
            assert!(quantised(text.as_bytes()).is_empty(), "{text}");
        }
    }
}
