//! Small checkpoints as public tools write them, which are read right.

use safetensors_core::{Dtype, TensorBuf};

use super::cases::{Case, ONE, TWO, Tensors, floats, raw, words};
use Dtype::{F8_E4M3, I8, U8, U32};

type Row = (&'static str, &'static str, Tensors, &'static [&'static str], &'static [f32]);

pub(super) fn cases() -> Vec<Case> {
    const STACKED: &str = r#"{"quant_method": "compressed-tensors", "config_groups": {
        "a": {"weights": {"num_bits": 4, "group_size": 32}}}}"#;
    let f8 = || raw(F8_E4M3, &[1, 2], &[ONE, TWO]);
    let half = || floats(&[1], &[0.5]);
    // Codes of F4 from 0 on: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    let nibbles = [0x10, 0x32, 0x54, 0x76, 0x10, 0x32, 0x54, 0x76];
    let gptq = |zeros: u32| {
        vec![
            ("a.qweight", words(&[1, 8], &[0x8888_8888; 8])),
            ("a.qzeros", words(&[1, 1], &[zeros])),
            ("a.scales", floats(&[1, 8], &[1.0; 8])),
        ]
    };
    let rows: Vec<Row> = vec![
        (
            "FP8 of DeepSeek-V4, `X.scale`",
            "",
            vec![("a.weight", f8()), ("a.scale", half())],
            &["a.weight"],
            &[0.5, 1.0],
        ),
        (
            "FP8 of Mistral, `X.qscale_weight`",
            "",
            vec![("a.weight", f8()), ("a.qscale_weight", half())],
            &["a.weight"],
            &[0.5, 1.0],
        ),
        (
            "the same, `X.qscale_act`",
            "",
            vec![("a.weight", f8()), ("a.qscale_weight", half()), ("a.qscale_act", half())],
            &["a.weight"],
            &[0.5, 1.0],
        ),
        (
            "F4, `X.weight_scale`",
            "",
            vec![("a.weight", raw(Dtype::F4, &[1, 16], &nibbles)), ("a.weight_scale", half())],
            &["a.weight"],
            &[0.0, 0.25, 0.5, 0.75],
        ),
        (
            "F4 of ModelOpt, `X.weight_scale_2`",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("a.weight", raw(Dtype::F4, &[1, 16], &nibbles)),
                ("a.weight_scale", raw(F8_E4M3, &[1, 1], &[TWO])),
                ("a.weight_scale_2", half()),
            ],
            &["a.weight"],
            &[0.0, 0.5, 1.0, 1.5],
        ),
        // ModelOpt's stacked experts.
        (
            "stacked experts of ModelOpt, FP8",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.up", raw(F8_E4M3, &[2, 2, 2], &[ONE])),
                ("e.up_weight_scale", floats(&[2], &[0.5, 0.25])),
                ("e.up_input_scale", half()),
            ],
            &["e.up"],
            &[0.5, 0.5, 0.5, 0.5, 0.25],
        ),
        // Its rows are inputs, so codes and scales run down the columns.
        (
            "the same, NVFP4, rows are inputs",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.up", raw(U8, &[1, 8, 2], &[0x21, 0x43, 0x21, 0x43, 0x21, 0x43])),
                ("e.up_weight_scale", raw(F8_E4M3, &[1, 1, 2], &[ONE, TWO])),
                ("e.up_weight_scale_2", floats(&[], &[0.5])),
            ],
            &["e.up"],
            &[0.25, 1.5, 0.5, 2.0, 0.25, 1.5],
        ),
        (
            "the same, NVFP4",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.up", raw(U8, &[2, 1, 8], &[0x22])),
                ("e.up_weight_scale", raw(F8_E4M3, &[2, 1, 1], &[ONE])),
                ("e.up_weight_scale_2", floats(&[2, 1, 1], &[0.5, 0.25])),
            ],
            &["e.up"],
            &[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25],
        ),
        // The halves of an expert's rows, gate and up, with a scale each.
        (
            "the same, `w13_weight`, a scale for gate and up each",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.w13_weight", raw(U8, &[1, 2, 8], &[0x22])),
                ("e.w13_weight_scale", raw(F8_E4M3, &[1, 2, 1], &[ONE])),
                ("e.w13_weight_scale_2", floats(&[1, 2], &[0.5, 0.25])),
                ("e.w13_input_scale", floats(&[1, 2], &[1.0, 1.0])),
            ],
            &["e.w13_weight"],
            &[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25],
        ),
        // compressed-tensors' stacked experts.
        (
            "stacked experts of compressed-tensors, INT4",
            STACKED,
            vec![
                ("e.up_packed", words(&[2, 1, 4], &[0x7654_3210; 8])),
                ("e.up_scale", floats(&[2, 1, 1], &[0.5, 0.25])),
            ],
            &["e.up"],
            &[-4.0, -3.5, -3.0, -2.5],
        ),
        (
            "the same, with `NAME_shape`",
            STACKED,
            vec![
                ("e.up_packed", words(&[2, 1, 4], &[0x7654_3210; 8])),
                ("e.up_scale", floats(&[2, 1, 1], &[0.5, 0.25])),
                ("e.up_shape", TensorBuf::from_vec(vec![2, 2], vec![1_i64, 32, 1, 32]).unwrap()),
            ],
            &["e.up"],
            &[-4.0, -3.5, -3.0, -2.5],
        ),
        (
            "the same, FP8",
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![
                ("e.up", raw(F8_E4M3, &[2, 1, 2], &[ONE, TWO])),
                ("e.up_scale", floats(&[2, 1, 1], &[0.5, 0.25])),
            ],
            &["e.up"],
            &[0.5, 1.0, 0.5],
        ),
        (
            "the same, NVFP4",
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![
                ("e.up_packed", raw(U8, &[2, 1, 8], &[0x22])),
                ("e.up_scale", raw(F8_E4M3, &[2, 1, 1], &[TWO])),
                ("e.up_global_scale", floats(&[2], &[4.0, 8.0])),
                ("e.up_input_global_scale", floats(&[2], &[1.0, 1.0])),
            ],
            &["e.up"],
            &[0.5, 0.5],
        ),
        // AutoRound: by packing_format, by backend, by neither.
        (
            "AutoRound 0.4, backend `auto_round:gptq:exllamav2`",
            r#"{"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[0.0],
        ),
        (
            "AutoRound 0.4, backend `auto_round:exllamav2`",
            r#"{"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[1.0],
        ),
        (
            "AutoRound without a packing",
            r#"{"quant_method": "auto-round"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[0.0],
        ),
        (
            "AutoRound, `auto_round:gptq`",
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:gptq"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[0.0],
        ),
        (
            "AutoRound, `auto_round`",
            r#"{"quant_method": "auto-round", "packing_format": "auto_round"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[1.0],
        ),
        (
            "AutoRound, `auto_round:mx_fp`",
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:mx_fp"}"#,
            vec![
                ("a.weight_packed", raw(U8, &[1, 16], &nibbles)),
                ("a.weight_scale", raw(U8, &[1, 1], &[128])),
            ],
            &["a.weight"],
            &[0.0, 1.0, 2.0, 3.0],
        ),
        (
            "AutoRound, `auto_round:nv_fp`",
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:nv_fp"}"#,
            vec![
                ("a.weight_packed", raw(U8, &[1, 8], &nibbles)),
                ("a.weight_scale", raw(F8_E4M3, &[1, 1], &[TWO])),
                ("a.weight_global_scale", floats(&[1], &[4.0])),
                ("a.input_global_scale", floats(&[1], &[4.0])),
            ],
            &["a.weight"],
            &[0.0, 0.25, 0.5, 0.75],
        ),
        (
            "AWQ, version `GEMM`",
            r#"{"quant_method": "awq", "version": "GEMM", "bits": 4}"#,
            vec![
                ("a.qweight", words(&[2, 1], &[0x4444_4444; 2])),
                ("a.qzeros", words(&[1, 1], &[0x1111_1111])),
                ("a.scales", floats(&[1, 8], &[0.5; 8])),
            ],
            &["a.weight"],
            &[1.5],
        ),
        // A module's own settings of MLX inherit nothing from the common ones.
        (
            "MLX, a module's settings without a mode",
            r#"{"quant_method": "mlx", "bits": 4, "group_size": 32, "mode": "mxfp4",
                "a": {"group_size": 64, "bits": 8}}"#,
            vec![
                ("a.weight", raw(U32, &[1, 16], &[0, 1, 2, 3])),
                ("a.scales", floats(&[1, 1], &[2.0])),
                ("a.biases", floats(&[1, 1], &[1.0])),
            ],
            &["a.weight"],
            &[1.0, 3.0, 5.0, 7.0],
        ),
        (
            "MLX, a module's settings that are empty",
            r#"{"quant_method": "mlx", "bits": 8, "group_size": 32, "a": {}}"#,
            vec![
                ("a.weight", raw(U32, &[1, 8], &[0x10, 0x32])),
                ("a.scales", floats(&[1, 1], &[2.0])),
                ("a.biases", floats(&[1, 1], &[1.0])),
            ],
            &["a.weight"],
            &[1.0, 3.0, 5.0, 7.0],
        ),
        // The factors of the input belong to the columns.
        (
            "torchao, `act_pre_scale`",
            r#"{"quant_method": "torchao"}"#,
            vec![
                ("a._weight_qdata", raw(I8, &[1, 2], &[10, 20])),
                ("a._weight_scale", floats(&[1, 1], &[0.5])),
                ("a._weight_act_pre_scale", floats(&[2], &[2.0, 4.0])),
                ("a._weight_act_quant_scale", floats(&[1], &[1.0])),
            ],
            &["a.weight"],
            &[10.0, 40.0],
        ),
        // Entries of -1 are no order.
        (
            "compressed-tensors, `weight_g_idx` of -1",
            r#"{"quant_method": "compressed-tensors", "bits": 4}"#,
            vec![
                ("a.weight_packed", words(&[1, 2], &[0x9999_9999; 2])),
                ("a.weight_scale", floats(&[1, 2], &[0.5, 0.25])),
                ("a.weight_shape", TensorBuf::from_vec(vec![2], vec![1_i64, 16]).unwrap()),
                ("a.weight_g_idx", words(&[16], &[u32::MAX; 16])),
            ],
            &["a.weight"],
            &[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25],
        ),
        // The scales of caches go, wherever they are, and a bias, a norm and LoRA stay.
        (
            "scales of activations and caches, a bias, LoRA",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("l.0.mlp.up.weight", f8()),
                ("l.0.mlp.up.weight_scale", half()),
                ("l.0.mlp.up.input_scale", half()),
                ("l.0.mlp.up.bias", half()),
                ("l.0.mlp.up.lora_A.weight", half()),
                ("l.0.norm.weight", half()),
                ("l.0.norm.scale", half()),
                ("l.0.attn.k_proj.weight", floats(&[1], &[1.0])),
                ("l.0.attn.k_proj.k_scale", half()),
                ("l.0.attn.v_scale", half()),
            ],
            &[
                "l.0.attn.k_proj.weight",
                "l.0.mlp.up.bias",
                "l.0.mlp.up.lora_A.weight",
                "l.0.mlp.up.weight",
                "l.0.norm.scale",
                "l.0.norm.weight",
            ],
            &[0.5, 1.0],
        ),
        (
            "ComfyUI, `scaled_fp8` under a prefix",
            "",
            vec![
                ("model.diffusion_model.a.weight", f8()),
                ("model.diffusion_model.a.scale_weight", half()),
                ("model.diffusion_model.scaled_fp8", raw(F8_E4M3, &[0], &[])),
            ],
            &["model.diffusion_model.a.weight"],
            &[0.5, 1.0],
        ),
    ];
    let case = |(about, config, tensors, names, values): Row| {
        let first = names.iter().find(|name| name.contains("up.weight")).unwrap_or(&names[0]);
        Case { about, config, tensors, names, weight: first, values, refused: &[] }
    };
    rows.into_iter().map(case).collect()
}
