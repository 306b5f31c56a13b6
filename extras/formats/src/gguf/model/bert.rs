//! BERT, which puts out embeddings.

use super::architecture::Bias::Always;
use super::architecture::Dim::{FeedForward, Hidden, Positions, TokenTypes, Vocabulary};
use super::architecture::{Architecture, Row, Settings, Sizes};
use super::fields::Fields;
use crate::error::Result;

pub(super) static BERT: Architecture = Architecture {
    name: "bert",
    classes: &["BertModel", "BertForMaskedLM"],
    prefix: "bert.",
    layers: "encoder.layer.",
    outer: &[
        Row::new("embeddings.word_embeddings", "token_embd", &[Vocabulary, Hidden]),
        Row::new("embeddings.position_embeddings", "position_embd", &[Positions, Hidden]).exact(),
        Row::new("embeddings.token_type_embeddings", "token_types", &[TokenTypes, Hidden]).exact(),
        Row::new("embeddings.LayerNorm", "token_embd_norm", &[Hidden]).bias(Always),
    ],
    layer: &[&[
        Row::new("attention.self.query", "attn_q", &[Hidden, Hidden]).bias(Always),
        Row::new("attention.self.key", "attn_k", &[Hidden, Hidden]).bias(Always),
        Row::new("attention.self.value", "attn_v", &[Hidden, Hidden]).bias(Always),
        Row::new("attention.output.dense", "attn_output", &[Hidden, Hidden]).bias(Always),
        Row::new("attention.output.LayerNorm", "attn_output_norm", &[Hidden]).bias(Always),
        Row::new("intermediate.dense", "ffn_up", &[FeedForward, Hidden]).bias(Always),
        Row::new("output.dense", "ffn_down", &[Hidden, FeedForward]).bias(Always),
        Row::new("output.LayerNorm", "layer_output_norm", &[Hidden]).bias(Always),
    ]],
    unused: &[
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.predictions.bias",
        "cls.predictions.decoder.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    ],
    is_tied: true,
    activation: ("hidden_act", &["gelu"]),
    read: |fields, _: &Sizes| read(fields),
};

fn read(fields: &mut Fields) -> Result<Settings> {
    fields.expect("position_embedding_type", &["absolute".into()])?;
    let metadata = vec![("attention.causal", false.into())];
    Ok(Settings { metadata, ..Settings::default() })
}
