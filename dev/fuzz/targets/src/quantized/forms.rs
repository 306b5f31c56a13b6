//! [`FORMS`]: for each way to store quantised weights, the tensors of a small one.

use safetensors_core::Dtype;
use safetensors_core::Dtype::{BF16, F8_E4M3, F16, F32, I8, I32, I64, U8, U32};

/// A tensor: its name, dtype, shape, and its first bytes where these describe others.
pub(super) type Stored = (&'static str, Dtype, &'static [usize], &'static [u8]);

/// A weight as its scheme stores it.
pub(super) struct Form {
    /// The name of its seed.
    #[cfg_attr(not(test), allow(dead_code, reason = "the test of the seeds reads it"))]
    pub(super) name: &'static str,
    /// The `quantization_config` of its settings, if it needs any.
    pub(super) config: &'static str,
    pub(super) tensors: &'static [Stored],
}

const fn form(name: &'static str, config: &'static str, tensors: &'static [Stored]) -> Form {
    Form { name, config, tensors }
}

/// The shape `[4, 32]` in a tensor of I64.
const SHAPE: &[u8] = &[4, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0];

const NF4: &[u8] =
    br#"{"blocksize": 64, "shape": [4, 32], "nested_blocksize": 2, "nested_offset": 1.5}"#;

const FOUR_BITS: &str = r#"{
    "quant_method": "compressed-tensors",
    "config_groups": {"a": {"weights": {"num_bits": 4}}}
}"#;

const OLD_THREE_BITS: &str = r#"{
    "quant_method": "compressed-tensors",
    "version": "0.17.0",
    "config_groups": {"a": {"weights": {"num_bits": 3}}}
}"#;

pub(super) const FORMS: &[Form] = &[
    form(
        "fp8",
        r#"{"quant_method": "fp8"}"#,
        &[("l.weight", F8_E4M3, &[4, 32], b""), ("l.weight_scale_inv", F32, &[1, 1], b"")],
    ),
    form(
        "int8-zero-points",
        r#"{"quant_method": "compressed-tensors"}"#,
        &[
            ("l.weight", I8, &[4, 32], b""),
            ("l.weight_scale", F32, &[4, 1], b""),
            ("l.weight_zero_point", I8, &[4, 1], b""),
        ],
    ),
    form(
        "packed",
        FOUR_BITS,
        &[
            ("l.weight_packed", I32, &[4, 4], b""),
            ("l.weight_scale", F32, &[4, 2], b""),
            ("l.weight_zero_point", I32, &[1, 2], b""),
            ("l.weight_g_idx", I32, &[32], &[0; 128]),
            ("l.weight_shape", I64, &[2], SHAPE),
        ],
    ),
    form(
        "packed-whole-words",
        OLD_THREE_BITS,
        &[
            ("l.weight_packed", I32, &[4, 4], b""),
            ("l.weight_scale", F32, &[4, 1], b""),
            ("l.weight_shape", I64, &[2], SHAPE),
        ],
    ),
    form(
        "nvfp4-divided",
        "",
        &[
            ("l.weight_packed", U8, &[4, 16], b""),
            ("l.weight_scale", F8_E4M3, &[4, 2], b""),
            ("l.weight_global_scale", F32, &[1], b""),
        ],
    ),
    form(
        "nvfp4-multiplied",
        r#"{"quant_method": "modelopt"}"#,
        &[
            ("l.weight", U8, &[4, 16], b""),
            ("l.weight_scale", F8_E4M3, &[4, 2], b""),
            ("l.weight_scale_2", F32, &[], b""),
            ("l.pre_quant_scale", F32, &[32], b""),
        ],
    ),
    form(
        "mxfp6",
        "",
        &[("l.weight_packed", U8, &[4, 24], b""), ("l.weight_scale", U8, &[4, 1], b"")],
    ),
    form(
        "int4-down",
        r#"{"quant_method": "modelopt"}"#,
        &[("l.weight", U8, &[2, 32], b""), ("l.weight_scale", F32, &[4, 2], b"")],
    ),
    form(
        "experts-transposed",
        r#"{"quant_method": "mxfp4"}"#,
        &[("l_blocks", U8, &[2, 4, 1, 16], b""), ("l_scales", U8, &[2, 4, 1], b"")],
    ),
    form(
        "experts",
        "",
        &[("l.blocks", U8, &[2, 4, 1, 16], b""), ("l.scales", U8, &[2, 4, 1], b"")],
    ),
    form(
        "gptq-4bits",
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#,
        &[
            ("l.qweight", I32, &[4, 8], b""),
            ("l.qzeros", I32, &[1, 1], b""),
            ("l.scales", F16, &[1, 8], b""),
            ("l.g_idx", I32, &[32], &[0; 128]),
        ],
    ),
    form(
        "gptq-3bits",
        r#"{"quant_method": "gptq", "bits": 3, "group_size": 32}"#,
        &[
            ("l.qweight", I32, &[6, 32], b""),
            ("l.qzeros", I32, &[2, 3], b""),
            ("l.scales", F16, &[2, 32], b""),
        ],
    ),
    form(
        "awq",
        r#"{"quant_method": "awq", "bits": 4}"#,
        &[
            ("l.qweight", I32, &[32, 1], b""),
            ("l.qzeros", I32, &[2, 1], b""),
            ("l.scales", F16, &[2, 8], b""),
        ],
    ),
    form(
        "nf4",
        "",
        &[
            ("l.weight", U8, &[64, 1], b""),
            ("l.weight.absmax", F32, &[2], b""),
            ("l.weight.quant_map", F32, &[16], b""),
            ("l.weight.quant_state.bitsandbytes__nf4", U8, &[NF4.len()], NF4),
        ],
    ),
    form(
        "nf4-nested",
        "",
        &[
            ("l.weight", U8, &[64, 1], b""),
            ("l.weight.absmax", U8, &[2], b""),
            ("l.weight.quant_map", F32, &[16], b""),
            ("l.weight.nested_absmax", F32, &[1], b""),
            ("l.weight.nested_quant_map", F32, &[256], b""),
            ("l.weight.quant_state.bitsandbytes__nf4", U8, &[NF4.len()], NF4),
        ],
    ),
    form("scb", "", &[("l.weight", I8, &[4, 32], b""), ("l.SCB", F32, &[4], b"")]),
    form(
        "comfy-nvfp4",
        "",
        &[
            ("l.weight", U8, &[16, 8], b""),
            ("l.weight_scale", F8_E4M3, &[128, 4], b""),
            ("l.weight_scale_2", F32, &[], b""),
            ("l.comfy_quant", U8, &[19], br#"{"format": "nvfp4"}"#),
        ],
    ),
    form(
        "comfy-mxfp8",
        "",
        &[
            ("l.weight", F8_E4M3, &[4, 64], b""),
            ("l.weight_scale", U8, &[128, 4], b""),
            ("l.comfy_quant", U8, &[19], br#"{"format": "mxfp8"}"#),
        ],
    ),
    form(
        "torchao",
        r#"{"quant_method": "torchao"}"#,
        &[
            ("l._weight_qdata", I8, &[4, 32], b""),
            ("l._weight_scale", BF16, &[4, 2], b""),
            ("l._weight_zero_point", I8, &[4, 2], b""),
        ],
    ),
    form(
        "hqq-4bits",
        r#"{"quant_method": "hqq"}"#,
        &[
            ("l.W_q", U8, &[2, 32], b""),
            ("l.scale", F32, &[4, 1], b""),
            ("l.zero", F32, &[4, 1], b""),
            ("l.nbits", I32, &[], &[4, 0, 0, 0]),
            ("l.axis", I32, &[], &[1, 0, 0, 0]),
            ("l.shape", I64, &[2], SHAPE),
        ],
    ),
    form(
        "hqq-3bits-axis0",
        r#"{"quant_method": "hqq"}"#,
        &[
            ("l.W_q", I32, &[1, 32], b""),
            ("l.scale", F32, &[1, 32], b""),
            ("l.zero", F32, &[1, 32], b""),
            ("l.nbits", I32, &[], &[3, 0, 0, 0]),
            ("l.axis", I32, &[], &[0, 0, 0, 0]),
            ("l.shape", I64, &[2], SHAPE),
        ],
    ),
    form(
        "quanto-8bits",
        r#"{"quant_method": "quanto"}"#,
        &[("l.weight._data", I8, &[4, 32], b""), ("l.weight._scale", F32, &[4, 1], b"")],
    ),
    form(
        "quanto-4bits",
        r#"{"quant_method": "quanto", "weights": "int4"}"#,
        &[
            ("l.weight._data._data", U8, &[2, 64], b""),
            ("l.weight._scale", F32, &[4, 1], b""),
            ("l.weight._shift", F32, &[4, 1], b""),
            ("l.bias", F32, &[2], b""),
        ],
    ),
    form(
        "mlx",
        r#"{"quant_method": "mlx", "bits": 3}"#,
        &[
            ("l.weight", U32, &[4, 3], b""),
            ("l.scales", F16, &[4, 2], b""),
            ("l.biases", F16, &[4, 2], b""),
        ],
    ),
    form(
        "mlx-nvfp4",
        r#"{"quant_method": "mlx", "mode": "nvfp4"}"#,
        &[("l.weight", U32, &[4, 4], b""), ("l.scales", U8, &[4, 2], b"")],
    ),
    form(
        "gemma",
        r#"{"quant_method": "gemma", "module_quant_configs": {"^l$": {"num_bits": 2}}}"#,
        &[("l.embedding_quantized", U8, &[4, 8], b""), ("l.embedding_scale", F32, &[4, 1], b"")],
    ),
];
