//! Small checkpoints as public tools write them: each is read right.

use safetensors_core::Dtype::{F8_E4M3, I8, U8, U32};
use safetensors_core::{Dtype, TensorBuf};

use super::checkpoint;
use super::parts::{ONE, TWO, Tensors, floats, numbers, raw, words};

/// The settings, the tensors, the names of the file of numbers, and the first values of the first.
type Read = (&'static str, Tensors, &'static [&'static str], &'static [f32]);

#[test]
fn what_public_tools_write_is_read_right() {
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
    let rows: Vec<Read> = vec![
        ("", vec![("a.weight", f8()), ("a.scale", half())], &["a.weight"], &[0.5, 1.0]),
        ("", vec![("a.weight", f8()), ("a.qscale_weight", half())], &["a.weight"], &[0.5, 1.0]),
        (
            "",
            vec![("a.weight", f8()), ("a.qscale_weight", half()), ("a.qscale_act", half())],
            &["a.weight"],
            &[0.5, 1.0],
        ),
        (
            "",
            vec![("a.weight", raw(Dtype::F4, &[1, 16], &nibbles)), ("a.weight_scale", half())],
            &["a.weight"],
            &[0.0, 0.25, 0.5, 0.75],
        ),
        (
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
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.up", raw(F8_E4M3, &[2, 2, 2], &[ONE])),
                ("e.up_weight_scale", floats(&[2], &[0.5, 0.25])),
                ("e.up_input_scale", half()),
            ],
            &["e.up"],
            &[0.5, 0.5, 0.5, 0.5, 0.25],
        ),
        // Its rows are inputs, so codes and scales lie down the columns.
        (
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
            STACKED,
            vec![
                ("e.up_packed", words(&[2, 1, 4], &[0x7654_3210; 8])),
                ("e.up_scale", floats(&[2, 1, 1], &[0.5, 0.25])),
            ],
            &["e.up"],
            &[-4.0, -3.5, -3.0, -2.5],
        ),
        (
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
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![
                ("e.up", raw(F8_E4M3, &[2, 1, 2], &[ONE, TWO])),
                ("e.up_scale", floats(&[2, 1, 1], &[0.5, 0.25])),
            ],
            &["e.up"],
            &[0.5, 1.0, 0.5],
        ),
        (
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
            r#"{"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[0.0],
        ),
        (
            r#"{"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[1.0],
        ),
        (r#"{"quant_method": "auto-round"}"#, gptq(0x7777_7777), &["a.weight"], &[0.0]),
        (
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:gptq"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[0.0],
        ),
        (
            r#"{"quant_method": "auto-round", "packing_format": "auto_round"}"#,
            gptq(0x7777_7777),
            &["a.weight"],
            &[1.0],
        ),
        (
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:mx_fp"}"#,
            vec![
                ("a.weight_packed", raw(U8, &[1, 16], &nibbles)),
                ("a.weight_scale", raw(U8, &[1, 1], &[128])),
            ],
            &["a.weight"],
            &[0.0, 1.0, 2.0, 3.0],
        ),
        (
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
            r#"{"quant_method": "awq", "version": "GEMM", "bits": 4}"#,
            vec![
                ("a.qweight", words(&[2, 1], &[0x4444_4444; 2])),
                ("a.qzeros", words(&[1, 1], &[0x1111_1111])),
                ("a.scales", floats(&[1, 8], &[0.5; 8])),
            ],
            &["a.weight"],
            &[1.5],
        ),
        // A module's own settings of MLX take nothing from those of all.
        (
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
            r#"{"quant_method": "mlx", "bits": 8, "group_size": 32, "a": {}}"#,
            vec![
                ("a.weight", raw(U32, &[1, 8], &[0x10, 0x32])),
                ("a.scales", floats(&[1, 1], &[2.0])),
                ("a.biases", floats(&[1, 1], &[1.0])),
            ],
            &["a.weight"],
            &[1.0, 3.0, 5.0, 7.0],
        ),
        // What the input is multiplied by belongs to the columns.
        (
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
    for (config, tensors, names, values) in rows {
        let first = names.iter().find(|name| name.contains("up.weight")).unwrap_or(&names[0]);
        let (_directory, checkpoint) = checkpoint((!config.is_empty()).then_some(config), &tensors);
        let found = numbers(checkpoint, first);
        let (all, found) = found.unwrap_or_else(|error| panic!("{config} {names:?}: {error}"));
        assert_eq!(all, names, "{config}");
        assert_eq!(found[..values.len()], *values, "{config} {names:?}");
    }
}
