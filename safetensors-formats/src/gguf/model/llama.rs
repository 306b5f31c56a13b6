//! Llama, and Mistral, which is written as one.

use super::architecture::Bias::Perhaps;
use super::architecture::Change::{InterleaveKeys, InterleaveQueries};
use super::architecture::Dim::{FeedForward, Hidden, KeyValues, Queries, Vocabulary};
use super::architecture::{Architecture, Row, Settings, Sizes};
use super::fields::{Fields, missing};
use super::rope;
use crate::error::Result;

pub(super) static LLAMA: Architecture = TABLE;

pub(super) static MISTRAL: Architecture = Architecture {
    classes: &["MistralForCausalLM"],
    read: |fields, sizes| {
        // It is 4096 for transformers if it is not there.
        if fields.has("sliding_window") {
            read(fields, sizes)
        } else {
            Err(missing("sliding_window"))
        }
    },
    ..TABLE
};

const TABLE: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    prefix: "model.",
    layers: "layers.",
    outer: &OUTER,
    layer: &[
        Row::new("input_layernorm", "attn_norm", &[Hidden]),
        Row::new("self_attn.q_proj", "attn_q", &[Queries, Hidden])
            .bias(Perhaps)
            .change(InterleaveQueries),
        Row::new("self_attn.k_proj", "attn_k", &[KeyValues, Hidden])
            .bias(Perhaps)
            .change(InterleaveKeys),
        Row::new("self_attn.v_proj", "attn_v", &[KeyValues, Hidden]).bias(Perhaps),
        Row::new("self_attn.o_proj", "attn_output", &[Hidden, Queries]).bias(Perhaps),
        Row::new("post_attention_layernorm", "ffn_norm", &[Hidden]),
        Row::new("mlp.gate_proj", "ffn_gate", &[FeedForward, Hidden]).bias(Perhaps),
        Row::new("mlp.up_proj", "ffn_up", &[FeedForward, Hidden]).bias(Perhaps),
        Row::new("mlp.down_proj", "ffn_down", &[Hidden, FeedForward]).bias(Perhaps),
    ],
    unused: &["rotary_emb.inv_freq"],
    is_tied: false,
    activation: ("hidden_act", &["silu"]),
    read,
};

/// The tensors outside of the layers of most models that generate text.
pub(super) const OUTER: [Row; 3] = [
    Row::new("embed_tokens", "token_embd", &[Vocabulary, Hidden]),
    Row::new("norm", "output_norm", &[Hidden]),
    Row::new("lm_head", "output", &[Vocabulary, Hidden]).head(),
];

fn read(fields: &mut Fields, sizes: &Sizes) -> Result<Settings> {
    // Programs that read a llama of GGUF attend to all positions.
    fields.expect("sliding_window", &[])?;
    for name in ["attention_bias", "mlp_bias"] {
        // The tensors tell.
        fields.flag(name)?;
    }
    let mut settings = rope::read(fields)?;
    settings.metadata.push(("rope.dimension_count", sizes.head.into()));
    Ok(settings)
}
