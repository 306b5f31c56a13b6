//! Qwen2 and Qwen3.

use super::architecture::Bias::Always;
use super::architecture::Dim::{FeedForward, Head, Hidden, KeyValues, Queries};
use super::architecture::{Architecture, Row, Settings, Sizes};
use super::fields::{Fields, wrong};
use super::llama::OUTER;
use super::rope;
use crate::error::Result;

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    prefix: "model.",
    layers: "layers.",
    outer: &OUTER,
    layer: &[
        Row::new("input_layernorm", "attn_norm", &[Hidden]),
        Row::new("self_attn.q_proj", "attn_q", &[Queries, Hidden]).bias(Always),
        Row::new("self_attn.k_proj", "attn_k", &[KeyValues, Hidden]).bias(Always),
        Row::new("self_attn.v_proj", "attn_v", &[KeyValues, Hidden]).bias(Always),
        Row::new("self_attn.o_proj", "attn_output", &[Hidden, Queries]),
        Row::new("post_attention_layernorm", "ffn_norm", &[Hidden]),
        Row::new("mlp.gate_proj", "ffn_gate", &[FeedForward, Hidden]),
        Row::new("mlp.up_proj", "ffn_up", &[FeedForward, Hidden]),
        Row::new("mlp.down_proj", "ffn_down", &[Hidden, FeedForward]),
    ],
    unused: &["rotary_emb.inv_freq"],
    is_tied: false,
    activation: ("hidden_act", &["silu"]),
    read,
};

pub(super) static QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    prefix: "model.",
    layers: "layers.",
    outer: &OUTER,
    layer: &[
        Row::new("input_layernorm", "attn_norm", &[Hidden]),
        Row::new("self_attn.q_proj", "attn_q", &[Queries, Hidden]),
        Row::new("self_attn.k_proj", "attn_k", &[KeyValues, Hidden]),
        Row::new("self_attn.v_proj", "attn_v", &[KeyValues, Hidden]),
        Row::new("self_attn.o_proj", "attn_output", &[Hidden, Queries]),
        Row::new("self_attn.q_norm", "attn_q_norm", &[Head]),
        Row::new("self_attn.k_norm", "attn_k_norm", &[Head]),
        Row::new("post_attention_layernorm", "ffn_norm", &[Hidden]),
        Row::new("mlp.gate_proj", "ffn_gate", &[FeedForward, Hidden]),
        Row::new("mlp.up_proj", "ffn_up", &[FeedForward, Hidden]),
        Row::new("mlp.down_proj", "ffn_down", &[Hidden, FeedForward]),
    ],
    unused: &["rotary_emb.inv_freq"],
    is_tied: false,
    activation: ("hidden_act", &["silu"]),
    read,
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
