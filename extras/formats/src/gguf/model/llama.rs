//! Llama, and Mistral, which is written as Llama.

use super::architecture::Bias::Perhaps;
use super::architecture::Change::{InterleaveKeys, InterleaveQueries};
use super::architecture::{Architecture, Settings, Sizes};
use super::fields::{Fields, missing};
use super::modules::{
    DOWN, EMBEDDING, FIRST_NORM, GATE, HEAD, KEYS, LAST_NORM, MIDDLE_NORM, OUTPUT, QUERIES, UP,
    VALUES,
};
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

pub(super) const TABLE: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    prefix: "model.",
    layers: "layers.",
    outer: &[EMBEDDING, LAST_NORM, HEAD],
    layer: &[
        &[FIRST_NORM, QUERIES.bias(Perhaps).change(InterleaveQueries)],
        &[KEYS.bias(Perhaps).change(InterleaveKeys), VALUES.bias(Perhaps), OUTPUT.bias(Perhaps)],
        &[MIDDLE_NORM, GATE.bias(Perhaps), UP.bias(Perhaps), DOWN.bias(Perhaps)],
    ],
    unused: &["rotary_emb.inv_freq"],
    is_tied: false,
    activation: ("hidden_act", &["silu"]),
    read,
};

fn read(fields: &mut Fields, sizes: &Sizes) -> Result<Settings> {
    // Programs that read a llama of GGUF attend to all positions.
    fields.expect("sliding_window", &[])?;
    for name in ["attention_bias", "mlp_bias"] {
        // The tensors decide.
        fields.flag(name)?;
    }
    let mut settings = rope::read(fields)?;
    settings.metadata.push(("rope.dimension_count", sizes.head.into()));
    Ok(settings)
}
