//! The `config.json` of an output whose weights are stored in another way than those of the input.

use serde_json::{Map, Value};

use super::source::Source;
use crate::input::Rewrite;
use crate::terminal::report::warn;
use crate::terminal::text;

/// The text of the `config.json` of the output: that beside the inputs, with what it says of
/// quantised weights as they are now. `None` if quantised weights stay as they are, and if there is
/// nothing that all of the text holds for: a warning says so then.
pub(super) fn config(sources: &[Source], rewrite: &Rewrite<'_>) -> anyhow::Result<Option<String>> {
    let is_quantised = rewrite.tensors().any(|(_, tensor)| tensor.is_quantized());
    if !is_quantised && sources.iter().all(|source| source.numbers().is_empty()) {
        return Ok(None);
    }
    let mut found = None;
    for source in sources {
        let Some((path, text)) = source.config()? else { continue };
        let config = rewrite.quantized_config(&text).map_err(|error| error.in_path(&path))?;
        if source.keeps_any() {
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

/// Whether two texts of a `config.json` differ in nothing but what they say of quantised weights.
pub(super) fn is_of_same_model(one: &[u8], other: &[u8]) -> bool {
    let read = |text: &[u8]| -> Option<Map<String, Value>> {
        let mut entries: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let settings = ["quantization_config", "compression_config", "quantization"];
        settings.iter().for_each(|key| _ = entries.remove(*key));
        Some(entries)
    };
    // Without settings of a model, nothing is lost.
    read(one).is_some_and(|one| one.is_empty() || read(other).is_some_and(|other| one == other))
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
    }
}
