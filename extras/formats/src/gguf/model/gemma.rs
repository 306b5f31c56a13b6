//! Gemma, Gemma 2, and Gemma 3 for text alone.

use serde_json::Value as Json;

use super::architecture::Change::AddOne;
use super::architecture::Dim::Hidden;
use super::architecture::{Architecture, Row, Settings, Sizes};
use super::fields::{Fields, missing, wrong};
use super::modules::{
    DOWN, EMBEDDING, FIRST_NORM, GATE, HEAD, KEY_NORM, KEYS, LAST_NORM, MIDDLE_NORM, OUTPUT,
    QUERIES, QUERY_NORM, UP, VALUES,
};
use super::{llama, rope};
use crate::error::Result;

const TANH: &str = "gelu_pytorch_tanh";

const TABLE: Architecture = Architecture {
    outer: &[EMBEDDING, LAST_NORM.change(AddOne), HEAD],
    is_tied: true,
    activation: ("hidden_activation", &[TANH]),
    ..llama::TABLE
};

const ATTENTION: &[Row] = &[FIRST_NORM.change(AddOne), QUERIES, KEYS, VALUES, OUTPUT];
const FEED_FORWARD: &[Row] = &[GATE, UP, DOWN];
const MIDDLE_NORMS: &[Row] = &[
    norm("post_attention_layernorm", "post_attention_norm"),
    norm("pre_feedforward_layernorm", "ffn_norm"),
];
const LAYER_NORM: &[Row] = &[norm("post_feedforward_layernorm", "post_ffw_norm")];

const fn norm(source: &'static str, target: &'static str) -> Row {
    Row::new(source, target, &[Hidden]).change(AddOne)
}

pub(super) static GEMMA: Architecture = Architecture {
    name: "gemma",
    classes: &["GemmaForCausalLM"],
    layer: &[ATTENTION, &[MIDDLE_NORM.change(AddOne)], FEED_FORWARD],
    // Both mean the approximation by tanh, because the first models were published with "gelu".
    activation: ("hidden_act", &["gelu", TANH]),
    read: |fields, _| read_common(fields),
    ..TABLE
};

pub(super) static GEMMA2: Architecture = Architecture {
    name: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    layer: &[ATTENTION, MIDDLE_NORMS, FEED_FORWARD, LAYER_NORM],
    read: |fields, sizes| {
        let mut settings = read_common(fields)?;
        read_windows(fields, sizes, 2, &mut settings)?;
        check_scale(fields, sizes, 46)?;
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            let cap = fields.float(name)?.ok_or_else(|| missing(name))?;
            settings.metadata.push((name, (cap as f32).into()));
        }
        fields.expect("hidden_act", &[TANH.into()])?;
        Ok(settings)
    },
    ..TABLE
};

pub(super) static GEMMA3: Architecture = Architecture {
    name: "gemma3",
    classes: &["Gemma3ForCausalLM"],
    layer: &[
        ATTENTION,
        &[QUERY_NORM.change(AddOne), KEY_NORM.change(AddOne)],
        MIDDLE_NORMS,
        FEED_FORWARD,
        LAYER_NORM,
    ],
    read: |fields, sizes| {
        let mut settings = read_common(fields)?;
        read_windows(fields, sizes, 6, &mut settings)?;
        check_scale(fields, sizes, 62)?;
        fields.expect("attn_logit_softcapping", &[])?;
        fields.expect("hidden_act", &[TANH.into()])?;
        for (key, base) in [("rope.freq_base", 1e6_f32), ("rope.freq_base_swa", 1e4)] {
            if !settings.metadata.iter().any(|(other, _)| *other == key) {
                settings.metadata.push((key, base.into()));
            }
        }
        if let Some(cap) = fields.float("final_logit_softcapping")? {
            settings.metadata.push(("final_logit_softcapping", (cap as f32).into()));
        }
        Ok(settings)
    },
    ..TABLE
};

fn read_common(fields: &mut Fields) -> Result<Settings> {
    fields.expect("attention_bias", &[false.into()])?;
    // The older name of the activation is read where the newer one is not there.
    fields.expect("hidden_activation", &[TANH.into()])?;
    rope::read(fields)
}

/// Programs take every layer but each `pattern`th as local.
fn read_windows(
    fields: &mut Fields,
    sizes: &Sizes,
    pattern: usize,
    settings: &mut Settings,
) -> Result<()> {
    let window = fields.required_size("sliding_window")?;
    settings.metadata.push(("attention.sliding_window", window.into()));
    fields.expect("sliding_window_pattern", &[pattern.into()])?;
    let Some(kinds) = fields.take("layer_types") else { return Ok(()) };
    let is_expected = |(i, kind): (usize, &Json)| {
        let is_full = (i + 1).is_multiple_of(pattern);
        kind == if is_full { "full_attention" } else { "sliding_attention" }
    };
    let layers = kinds.as_array().filter(|kinds| kinds.len() as u64 == u64::from(sizes.layers));
    match layers {
        Some(layers) if layers.iter().enumerate().all(is_expected) => Ok(()),
        _ => {
            let expected = format!("sliding_attention but for each {pattern}th layer");
            Err(wrong("layer_types", &expected, &kinds))
        }
    }
}

/// Programs compute it from the size of a head, and for the largest model, known by its number of
/// layers, from the hidden size.
fn check_scale(fields: &mut Fields, sizes: &Sizes, largest: u32) -> Result<()> {
    let expected = if sizes.layers == largest { sizes.hidden / sizes.heads } else { sizes.head };
    let name = "query_pre_attn_scalar";
    match fields.take(name) {
        Some(scalar) if scalar.as_f64() != Some(expected.into()) => {
            Err(wrong(name, &expected.to_string(), &scalar))
        }
        _ => Ok(()),
    }
}
