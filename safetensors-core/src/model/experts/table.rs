//! [`Row`]: the names of experts in each architecture.
//!
//! The rows are from transformers 5.24 (`conversion_mapping.py`). `dev/scripts/expert_fixtures.py`
//! makes a model of nearly each for the tests.

use crate::file::load::GateUp;

/// The names and the layout of experts in some architectures. Names follow the name of the module
/// that has the mixture, such as `model.layers.3.mlp.`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Each `model_type`, without `_text` at its end.
    pub(super) models: &'static [&'static str],
    /// The last part of the module's name if experts are split, and if they are stacked.
    pub(super) module: [&'static str; 2],
    /// Each stack, with the matrices of an expert in it: the gate, then up.
    pub(super) stacks: [(&'static str, &'static [&'static str]); 2],
    pub(super) gate_up: GateUp,
    /// Whether the outputs are columns of a stack.
    pub(super) is_transposed: bool,
    /// The starts of other names in the module if experts are split, and if they are stacked.
    pub(super) others: &'static [[&'static str; 2]],
}

/// The layout of most architectures.
const PLAIN: Row = Row {
    models: &[],
    module: ["", ""],
    stacks: [
        ("experts.gate_up_proj", &["gate_proj", "up_proj"]),
        ("experts.down_proj", &["down_proj"]),
    ],
    gate_up: GateUp::First,
    is_transposed: false,
    others: &[],
};

/// The same with the names of Meta's first code for Llama.
const NUMBERED: Row = Row {
    stacks: [("experts.gate_up_proj", &["w1", "w3"]), ("experts.down_proj", &["w2"])],
    ..PLAIN
};

/// The rows for an architecture that is not in the table.
pub(super) const UNKNOWN: [Row; 2] = [PLAIN, NUMBERED];

/// Of several rows with one architecture, the later ones are read, and never made.
pub(super) const ROWS: [Row; 15] = [
    Row {
        models: &[
            "afmoe",
            "cohere2_moe",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "flex_olmo",
            "gemma4",
            "glm4_moe",
            "glm4_moe_lite",
            "glm4v_moe",
            "glm_moe_dsa",
            "hunyuan_v1_moe",
            "jamba",
            "kimi_k2",
            "mellum",
            "mimo_v2_flash",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_5_moe",
            "qwen3_omni_moe",
            "sarvam_mla",
            "solar_open",
        ],
        ..PLAIN
    },
    Row {
        models: &["mixtral", "minimax", "minimax_m2", "kimi_linear"],
        module: ["block_sparse_moe.", "mlp."],
        ..NUMBERED
    },
    Row {
        models: &["phimoe"],
        module: ["block_sparse_moe.", "mlp."],
        others: &[["gate.", "router."]],
        ..NUMBERED
    },
    Row { models: &["lfm2_moe"], ..NUMBERED },
    Row { models: &["llama4", "qwen3_vl_moe"], is_transposed: true, ..PLAIN },
    Row { models: &["gpt_oss"], gate_up: GateUp::Interleaved, is_transposed: true, ..PLAIN },
    Row {
        models: &["aria"],
        stacks: [
            ("experts.fc1.weight", &["gate_proj", "up_proj"]),
            ("experts.fc2.weight", &["down_proj"]),
        ],
        is_transposed: true,
        ..PLAIN
    },
    Row { models: &["aria"], is_transposed: true, ..PLAIN },
    Row {
        models: GRANITE,
        stacks: [("input_linear.weight", &["w1", "w3"]), ("output_linear.weight", &["w2"])],
        ..NUMBERED
    },
    Row { models: GRANITE, others: &[["router.layer.", "router."]], ..NUMBERED },
    Row {
        models: &["nemotron_h"],
        stacks: [("experts.up_proj", &["up_proj"]), ("experts.down_proj", &["down_proj"])],
        ..PLAIN
    },
    Row { models: &["ernie4_5_moe"], others: &[["moe_statics.", "gate.moe_statics."]], ..PLAIN },
    Row {
        models: &["exaone_moe"],
        others: &[["e_score_correction_bias", "gate.e_score_correction_bias"]],
        ..PLAIN
    },
    Row {
        models: &["hy_v3"],
        others: &[
            ["router.gate.", "gate."],
            ["expert_bias", "e_score_correction_bias"],
            ["shared_mlp.", "shared_experts."],
        ],
        ..PLAIN
    },
    Row {
        models: &["laguna"],
        others: &[
            ["experts.e_score_correction_bias", "gate.e_score_correction_bias"],
            ["shared_expert.", "shared_experts."],
        ],
        ..PLAIN
    },
];

const GRANITE: &[&str] = &["granitemoe", "granitemoehybrid", "granitemoeshared"];
