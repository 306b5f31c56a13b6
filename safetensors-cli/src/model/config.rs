//! [`ModelConfig`]: the numbers of attention in a `config.json`.

use std::path::PathBuf;

use anyhow::Context;
use safetensors_core::python_json;
use serde_json::{Map, Value};

use crate::input::Checkpoint;
use crate::terminal::text;

pub(crate) const CONFIG: &str = "config.json";

// Real ones have a few KiB, with lists of layers a few hundred.
pub(crate) const MOST: u64 = 16 << 20;

/// The path and text of the file next to a checkpoint.
pub(crate) fn config_of(checkpoint: &Checkpoint) -> anyhow::Result<Option<(PathBuf, String)>> {
    text_of(checkpoint, CONFIG)
}

/// The path and text of a file with this name.
pub(crate) fn text_of(
    checkpoint: &Checkpoint,
    name: &str,
) -> anyhow::Result<Option<(PathBuf, String)>> {
    let Some((path, bytes)) = checkpoint.read_beside(name, MOST)? else { return Ok(None) };
    let text = String::from_utf8(bytes).with_context(|| text::path(&path))?;
    Ok(Some((path, text)))
}

/// The settings of a text part replace the others.
#[derive(Debug)]
pub(crate) struct ModelConfig(Map<String, Value>);

impl ModelConfig {
    /// Reads the file next to a checkpoint.
    pub(crate) fn next_to(checkpoint: &Checkpoint) -> anyhow::Result<Option<Self>> {
        let Some((path, text)) = config_of(checkpoint)? else { return Ok(None) };
        let config = python_json::read(text.as_bytes()).with_context(|| text::path(&path))?;
        Ok(Some(Self::new(config)))
    }

    fn new(config: Value) -> Self {
        let Value::Object(mut all) = config else { return Self(Map::new()) };
        if let Some(Value::Object(text)) = all.remove("text_config") {
            all.extend(text);
        }
        Self(all)
    }

    /// The first of these settings that is a number.
    fn number(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.0.get(*name)?.as_u64())
    }

    pub(crate) fn heads(&self) -> Option<u64> {
        self.number(&["num_attention_heads", "n_head"]).filter(|&heads| heads > 0)
    }

    // Several heads of queries may share them.
    pub(crate) fn key_value_heads(&self) -> Option<u64> {
        self.number(&["num_key_value_heads"]).filter(|&heads| heads > 0).or_else(|| self.heads())
    }

    /// The most numbers for this many tokens, or `None` if settings are missing.
    pub(crate) fn cached_numbers(&self, tokens: u64) -> Option<u64> {
        let layers = self.number(&["num_hidden_layers", "n_layer"])?;
        let each = match self.number(&["kv_lora_rank"]) {
            // All heads share the part that DeepSeek caches instead.
            Some(rank) => rank.saturating_add(self.number(&["qk_rope_head_dim"])?),
            None => {
                let of_head = || Some(self.number(&["hidden_size", "n_embd"])? / self.heads()?);
                let of_head = self.number(&["head_dim"]).or_else(of_head)?;
                of_head.saturating_mul(self.key_value_heads()?).saturating_mul(2)
            }
        };
        let window = self.number(&["sliding_window"]).unwrap_or(tokens).min(tokens);
        let cached = match self.0.get("layer_types").and_then(Value::as_array) {
            Some(types) => types.iter().fold(0_u64, |all, kind| match kind.as_str() {
                Some("sliding_attention") => all.saturating_add(window),
                Some(kind) if kind.ends_with("attention") && kind != "linear_attention" => {
                    all.saturating_add(tokens)
                }
                // The state of such a layer does not grow with the text.
                _ => all,
            }),
            None => layers.saturating_mul(tokens),
        };
        Some(cached.saturating_mul(each))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cache_follows_heads_windows_and_layers() {
        let llama = json!({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
            "num_key_value_heads": 8});
        let gemma = json!({"text_config": {"num_hidden_layers": 3, "num_attention_heads": 4,
            "head_dim": 256, "sliding_window": 512,
            "layer_types": ["sliding_attention", "full_attention", "linear_attention"]}});
        let deepseek = json!({"num_hidden_layers": 61, "num_attention_heads": 128,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64});
        let gpt2 = json!({"n_layer": 12, "n_head": 12, "n_embd": 768});
        for (config, tokens, expected) in [
            (llama, 8192, Some(32 * 8192 * 2 * 8 * 128)),
            (gemma, 1000, Some((512 + 1000) * 2 * 4 * 256)),
            (deepseek, 10, Some(61 * 10 * (512 + 64))),
            (gpt2, 1024, Some(12 * 1024 * 2 * 768)),
            (json!({"num_hidden_layers": 2}), 10, None),
            (json!({"n_layer": 1, "n_head": 0, "n_embd": 8}), 10, None),
            (json!({"n_layer": u64::MAX, "n_head": 1, "n_embd": u64::MAX}), 9, Some(u64::MAX)),
            (json!([]), 10, None),
        ] {
            let shown = config.to_string();
            assert_eq!(ModelConfig::new(config).cached_numbers(tokens), expected, "{shown}");
        }
    }
}
