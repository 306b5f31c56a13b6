//! Qwen2 and Qwen3.

use super::architecture::Bias::Always;
use super::architecture::{Architecture, Settings, Sizes};
use super::fields::{Fields, wrong};
use super::llama::TABLE;
use super::modules::{
    DOWN, FIRST_NORM, GATE, KEY_NORM, KEYS, MIDDLE_NORM, OUTPUT, QUERIES, QUERY_NORM, UP, VALUES,
};
use super::rope;
use crate::error::Result;

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    layer: &[
        &[FIRST_NORM, QUERIES.bias(Always), KEYS.bias(Always), VALUES.bias(Always), OUTPUT],
        &[MIDDLE_NORM, GATE, UP, DOWN],
    ],
    read,
    ..TABLE
};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    layer: &[
        &[FIRST_NORM, QUERIES, KEYS, VALUES, OUTPUT, QUERY_NORM, KEY_NORM],
        &[MIDDLE_NORM, GATE, UP, DOWN],
    ],
    read,
    ..TABLE
};

fn read(fields: &mut Fields, _: &Sizes) -> Result<Settings> {
    // Programs that read these models attend to all positions.
    fields.expect("use_sliding_window", &[false.into()])?;
    fields.take("sliding_window");
    fields.take("max_window_layers");
    fields.expect("attention_bias", &[false.into()])?;
    if let Some(kinds) = fields.take("layer_types") {
        let is_full = |kind: &serde_json::Value| kind == "full_attention";
        if !kinds.as_array().is_some_and(|kinds| kinds.iter().all(is_full)) {
            return Err(wrong("layer_types", "full_attention in all layers", &kinds));
        }
    }
    rope::read(fields)
}
