//! The `config.json` of an output, which follows the written tensors.

use std::path::{Path, PathBuf};

use safetensors_core::io::next_to;
use safetensors_core::python_json;
use safetensors_core::quantized::settings_files;
use serde_json::{Map, Value};

use super::source::{CONFIG, MOST, Source, config_of};
use crate::input::Rewrite;
use crate::output::existing::identity;
use crate::terminal::report::warn;
use crate::terminal::text;

pub(super) enum Config {
    /// The input's file is still right.
    AsIs,
    /// The path that was read, and the new text.
    Written(PathBuf, String),
    /// No text describes all tensors; a warning was given.
    Left,
}

pub(super) fn changes(sources: &[Source], rewrite: &Rewrite<'_>) -> bool {
    rewrite.tensors().any(|(_, tensor)| tensor.is_quantized())
        || sources.iter().any(Source::makes_numbers)
}

/// Whether all settings describe weights that are now stored otherwise.
pub(super) fn outdates_settings(sources: &[Source], rewrite: &Rewrite<'_>) -> bool {
    changes(sources, rewrite) && sources.iter().all(|it| it.kept.is_empty())
}

/// Updates the inputs' `config.json` for the quantised weights and the dtype. One in `out`, the
/// output's directory, stays if it is right. `goes_along`: a directory's unchanged file is copied.
pub(super) fn config(
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    out: Option<&Path>,
    goes_along: bool,
) -> anyhow::Result<Config> {
    let is_directory = out.is_some();
    let at_output = out.map(|out| identity(&out.join(CONFIG)));
    let changes = changes(sources, rewrite);
    // Other outputs have no place for a file that only a merge would copy, so it is not read.
    let merges = is_directory && sources.iter().any(|source| !source.merged.is_empty());
    let is_needed = changes || merges;
    let mut found: Option<(PathBuf, String, bool)> = None;
    let is_there = |source: &Source| {
        goes_along && source.checkpoint.is_of_directory() || source.has_config(at_output.as_deref())
    };
    for source in sources.iter().filter(|source| is_needed || is_there(source)) {
        let (path, text) = match config_of(&source.checkpoint) {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err(error) if is_needed => return Err(error),
            // It is copied, if it can be. `stale_settings` warns.
            Err(_) => continue,
        };
        let arranged = source.settings.get(CONFIG).unwrap_or(&text);
        let config = match changes {
            true => rewrite.quantized_config(arranged),
            false => rewrite.config(arranged),
        };
        let config = match config.map_err(|error| error.in_path(&path)) {
            Ok(config) => config,
            Err(error) if is_needed => return Err(error.into()),
            Err(error) => {
                warn(format!("{error}; it is copied unchanged"));
                continue;
            }
        };
        let shown = text::path(&path);
        if changes && !source.kept.is_empty() {
            warn(format!("{shown} is not copied: some weights stay quantised"));
            return Ok(Config::Left);
        }
        let dtype = rewrite.float_dtype(changes);
        if is_directory
            && let Some(dtype) = dtype.filter(|it| it.bits() < 16)
            && let Some(kept) = dtype_of(&config)
        {
            warn(format!(
                "the weights are stored as {dtype}, and config.json keeps the dtype {kept}, in \
                 which libraries compute"
            ));
        }
        match &found {
            Some((_, other, _)) if !is_of_same_model(config.as_bytes(), other.as_bytes()) => {
                warn(format!("{shown} is not copied: the inputs have different ones"));
                return Ok(Config::Left);
            }
            Some(_) => {}
            None => {
                let holds = is_there(source) && config == text;
                found = Some((path, config, holds));
            }
        }
    }
    if found.is_none() && rewrite.tensors().any(|(_, tensor)| tensor.is_quantized()) {
        warn(
            "there is no config.json next to IN, so OUT gets none; transformers and vLLM need \
              one",
        );
    }
    let changed = found.filter(|(.., holds)| !holds);
    Ok(changed.map_or(Config::AsIs, |(path, config, _)| Config::Written(path, config)))
}

/// Omits entries about quantised weights. Returns `None` if the text is no JSON object.
fn plain(text: &[u8]) -> Option<Map<String, Value>> {
    let plain = Rewrite::default().quantized_config(std::str::from_utf8(text).ok()?).ok()?;
    object(plain.as_bytes())
}

fn object(text: &[u8]) -> Option<Map<String, Value>> {
    match python_json::read(text) {
        Ok(Value::Object(entries)) => Some(entries),
        Ok(_) | Err(_) => None,
    }
}

fn dtype_of(text: &str) -> Option<String> {
    let entries = object(text.as_bytes())?;
    let inner = entries.get("text_config").and_then(Value::as_object);
    let mut found = [Some(&entries), inner].into_iter().flatten().flat_map(|entries| {
        ["dtype", "torch_dtype"].into_iter().filter_map(|key| entries.get(key)?.as_str())
    });
    found.next().map(str::to_owned)
}

/// Ignores entries about quantised weights.
pub(super) fn is_of_same_model(one: &[u8], other: &[u8]) -> bool {
    // Without settings of a model, nothing is lost.
    plain(one).is_some_and(|one| one.is_empty() || plain(other).is_some_and(|other| one == other))
}

fn quantised(text: &[u8]) -> Map<String, Value> {
    let plain = plain(text).unwrap_or_default();
    let mut entries = object(text).unwrap_or_default();
    entries.retain(|key, value| plain.get(key) != Some(value));
    entries
}

/// Returns a warning for each file of settings that will be wrong.
pub(super) fn stale_settings(
    directory: &Path,
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    copied_names: &[&str],
) -> Vec<String> {
    // Plain weights need no settings, so unreadable ones are no error.
    let ignored = |error: anyhow::Error| warn(format!("{error:#}; its settings are not compared"));
    let mut copied = Vec::new();
    for source in sources.iter().filter(|it| !it.makes_numbers() || !it.kept.is_empty()) {
        let found = config_of(&source.checkpoint).map_err(ignored).ok().flatten();
        let found = found.map(|(path, text)| (path, quantised(text.as_bytes())));
        copied.extend(found.filter(|(_, entries)| !entries.is_empty()));
    }
    let mut warnings = Vec::new();
    let there = || next_to::read(directory, CONFIG, MOST).map_err(|error| ignored(error.into()));
    if !copied_names.contains(&CONFIG)
        && let Some(config) = there().ok().flatten()
    {
        let (there, path) = (quantised(&config), text::path(&directory.join(CONFIG)));
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
        // A config that cannot be understood names no dtype.
        let changed = std::str::from_utf8(&config).ok().and_then(|text| {
            let dtype = dtype_of(text)?;
            let is_of_numbers = sources.iter().any(Source::makes_numbers);
            let written = match is_of_numbers {
                true => rewrite.quantized_config(text),
                false => rewrite.config(text),
            };
            Some((dtype, dtype_of(&written.ok()?)?))
        });
        if let Some((before, now)) = changed.filter(|(before, now)| before != now) {
            warnings.push(format!(
                "{path} still has the dtype {before}: set it to {now}, as the weights are stored \
                 now"
            ));
        }
    }
    for name in settings_files().filter(|name| !copied_names.contains(name)) {
        let path = directory.join(name);
        let Ok(Some(there)) = next_to::read(directory, name, MOST) else { continue };
        // They describe the codes that are copied.
        let mut describing = Vec::new();
        if !outdates_settings(sources, rewrite) {
            let read = sources.iter().filter_map(|it| it.checkpoint.read_beside(name, MOST).ok());
            describing.extend(read.flatten());
        }
        let path = text::path(&path);
        match describing.first() {
            _ if describing.iter().any(|(_, settings)| *settings == there) => {}
            Some((from, _)) => warnings.push(format!(
                "{path} does not describe the quantised weights: copy it from {}",
                text::path(from)
            )),
            None if copied.is_empty() => {
                warnings.push(format!("remove {path}: it describes other weights"));
            }
            None => {}
        }
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
    fn every_description_of_quantised_weights_is_recognised() {
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
