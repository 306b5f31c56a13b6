//! Modules that most text models share.

use super::architecture::Dim::{FeedForward, Head, Hidden, KeyValues, Queries, Vocabulary};
use super::architecture::Row;

pub(super) const EMBEDDING: Row = Row::new("embed_tokens", "token_embd", &[Vocabulary, Hidden]);
pub(super) const LAST_NORM: Row = Row::new("norm", "output_norm", &[Hidden]);
pub(super) const HEAD: Row = Row::new("lm_head", "output", &[Vocabulary, Hidden]).head();

pub(super) const FIRST_NORM: Row = Row::new("input_layernorm", "attn_norm", &[Hidden]);
pub(super) const QUERIES: Row = Row::new("self_attn.q_proj", "attn_q", &[Queries, Hidden]);
pub(super) const KEYS: Row = Row::new("self_attn.k_proj", "attn_k", &[KeyValues, Hidden]);
pub(super) const VALUES: Row = Row::new("self_attn.v_proj", "attn_v", &[KeyValues, Hidden]);
pub(super) const OUTPUT: Row = Row::new("self_attn.o_proj", "attn_output", &[Hidden, Queries]);
pub(super) const QUERY_NORM: Row = Row::new("self_attn.q_norm", "attn_q_norm", &[Head]);
pub(super) const KEY_NORM: Row = Row::new("self_attn.k_norm", "attn_k_norm", &[Head]);
pub(super) const MIDDLE_NORM: Row = Row::new("post_attention_layernorm", "ffn_norm", &[Hidden]);
pub(super) const GATE: Row = Row::new("mlp.gate_proj", "ffn_gate", &[FeedForward, Hidden]);
pub(super) const UP: Row = Row::new("mlp.up_proj", "ffn_up", &[FeedForward, Hidden]);
pub(super) const DOWN: Row = Row::new("mlp.down_proj", "ffn_down", &[Hidden, FeedForward]);
