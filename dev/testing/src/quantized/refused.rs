//! Small checkpoints that no scheme explains, which are refused by name.

use safetensors_core::Dtype;

use super::cases::{Case, ONE, Tensors, floats, raw, words};
use Dtype::{F8_E4M3, I8, I16, U8, U32};

type Row = (&'static str, &'static str, Tensors, &'static [&'static str]);

pub(super) fn cases() -> Vec<Case> {
    let f8 = || raw(F8_E4M3, &[4, 8], &[ONE]);
    let i8 = || raw(I8, &[4, 8], &[1]);
    let u8 = |shape: &[usize]| raw(U8, shape, &[1]);
    let rows = || floats(&[4, 1], &[0.5; 4]);
    let one = || floats(&[1], &[0.5]);
    let one_by_one = || floats(&[1, 1], &[1.0]);
    let rows_of_cases: Vec<Row> = vec![
        // A companion more than the scheme knows.
        (
            "`X.weight_offset`",
            "",
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.weight_offset", rows())],
            &["a.weight", "a.weight_offset", "fp8"],
        ),
        (
            "`X.weight_scale` and `X.weight_scale_inv`",
            "",
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.weight_scale_inv", rows())],
            &["a.weight", "a.weight_scale", "fp8"],
        ),
        (
            "`X.smooth_factor`",
            r#"{"quant_method": "fp8"}"#,
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.smooth_factor", rows())],
            &["a.smooth_factor"],
        ),
        (
            "stacked experts of ModelOpt, `NAME_weight_scale_3`",
            r#"{"quant_method": "modelopt"}"#,
            vec![("e.up", f8()), ("e.up_weight_scale", one()), ("e.up_weight_scale_3", one())],
            &["\"e.up\"", "e.up_weight_scale_3"],
        ),
        (
            "msmodelslim, `X.weight_scale_second`",
            "",
            vec![("a.weight", i8()), ("a.weight_scale", rows()), ("a.weight_scale_second", rows())],
            &["msmodelslim", "a.weight"],
        ),
        // A tensor with the weight's own name next to its codes.
        (
            "a tensor of the weight's name next to its codes",
            "",
            vec![
                ("a.weight._data", i8()),
                ("a.weight._scale", rows()),
                ("a.weight", floats(&[1], &[1.0])),
            ],
            &["Quanto", "tensor \"a.weight\""],
        ),
        // Codes with a companion that belongs to no scheme.
        ("I8, `W_zero`", "", vec![("W", i8()), ("W_zero", rows())], &["\"W\"", "W_zero"]),
        (
            "`w13_qweight` of three dimensions",
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![("e.w13_qweight", words(&[2, 4, 8], &[0; 64])), ("e.w13_scales", rows())],
            &["e.w13_qweight"],
        ),
        (
            "GPTQ of three dimensions",
            r#"{"quant_method": "gptq", "bits": 4}"#,
            vec![
                ("a.qweight", words(&[2, 4, 8], &[0; 64])),
                ("a.scales", floats(&[2, 4, 8], &[0.0; 64])),
                ("a.qzeros", words(&[2, 4, 1], &[0; 8])),
            ],
            &["a.qweight", "gptq"],
        ),
        // Codes without companions, where the settings name a method.
        (
            "bitsandbytes without its state",
            r#"{"quant_method": "bitsandbytes"}"#,
            vec![("m.weight", u8(&[8, 1]))],
            &["m.weight", "bitsandbytes"],
        ),
        (
            "stacked experts of FP8 without scales",
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![("e.up", f8())],
            &["e.up"],
        ),
        (
            "MLX without scales",
            r#"{"quant_method": "mlx", "bits": 4}"#,
            vec![("a.weight", raw(U32, &[4, 4], &[0]))],
            &["a.weight"],
        ),
        (
            "a method that is not known",
            r#"{"quant_method": "w4afp8"}"#,
            vec![("a.weight", f8()), ("a.weight_scale", rows())],
            &["w4afp8", "a.weight", "not known"],
        ),
        (
            "AQLM under its own method",
            r#"{"quant_method": "aqlm"}"#,
            vec![
                ("a.codes", raw(I16, &[2, 2, 1], &[1])),
                ("a.codebooks", floats(&[1, 2, 1, 2], &[0.0; 4])),
            ],
            &["AQLM", "a.codes"],
        ),
        (
            "words of a method that is not known",
            r#"{"quant_method": "bitdistiller"}"#,
            vec![("a.blob", words(&[2, 2], &[0; 4])), ("a.scales", rows())],
            &["bitdistiller", "a.blob", "not known"],
        ),
        (
            "blocks of FP8 that may be of 96 or of 128 columns",
            "",
            vec![
                ("a.weight", raw(F8_E4M3, &[128, 192], &[ONE])),
                ("a.weight_scale_inv", floats(&[1, 2], &[0.5, 0.25])),
            ],
            &["a.weight_scale_inv", "weight_block_size", "96"],
        ),
        // GPTQ without its order of inputs, and zero points that the settings have.
        (
            "GPTQ, `desc_act` without `g_idx`",
            r#"{"quant_method": "gptq", "bits": 4, "desc_act": true}"#,
            vec![
                ("a.qweight", words(&[2, 8], &[0; 16])),
                ("a.scales", floats(&[2, 8], &[0.0; 16])),
                ("a.qzeros", words(&[2, 1], &[0; 2])),
            ],
            &["a.g_idx"],
        ),
        (
            "compressed-tensors, not symmetric, without zero points",
            r#"{"quant_method": "compressed-tensors", "config_groups": {
                "a": {"weights": {"num_bits": 8, "symmetric": false}}}}"#,
            vec![("a.weight", i8()), ("a.weight_scale", rows())],
            &["a.weight_zero_point"],
        ),
        // Two scales an expert, without a rule for their rows.
        (
            "ModelOpt, `[E, 2]` of rows that nothing tells apart",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("e.gate_up", u8(&[1, 4, 8])),
                ("e.gate_up_weight_scale", raw(F8_E4M3, &[1, 4, 1], &[ONE])),
                ("e.gate_up_weight_scale_2", floats(&[1, 2], &[0.5, 0.25])),
            ],
            &["e.gate_up_weight_scale_2", "shape [1, 2]"],
        ),
        // Groups that do not divide the columns.
        (
            "groups that do not divide the columns",
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("a.weight", u8(&[4, 10])),
                ("a.weight_scale", raw(F8_E4M3, &[4, 1], &[ONE])),
                ("a.weight_scale_2", one()),
            ],
            &["a.weight", "16 codes"],
        ),
        (
            "stacked experts of compressed-tensors without bits",
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![
                ("e.up_packed", words(&[2, 1, 4], &[0; 8])),
                ("e.up_scale", floats(&[2, 1, 1], &[1.0; 2])),
            ],
            &["e.up_packed", "bits"],
        ),
        // NVFP4 that may be ComfyUI's: without any settings, and next to marks of other modules.
        (
            "NVFP4 without settings and marks",
            "",
            vec![
                ("a.weight", u8(&[128, 32])),
                ("a.weight_scale", raw(F8_E4M3, &[128, 4], &[ONE])),
                ("a.weight_scale_2", one()),
            ],
            &["a.weight", "ComfyUI"],
        ),
        (
            "NVFP4 without a mark, among ComfyUI's",
            "",
            vec![
                ("a.weight", u8(&[4, 8])),
                ("a.weight_scale", raw(F8_E4M3, &[4, 1], &[ONE])),
                ("a.weight_scale_2", one()),
                ("b.weight", f8()),
                ("b.weight_scale", one()),
                ("b.comfy_quant", raw(U8, &[27], br#"{"format": "float8_e4m3fn"}"#)),
            ],
            &["a.weight", "ComfyUI", "mark"],
        ),
        // Marks and settings of modules that there are not.
        (
            "a mark of ComfyUI without its module",
            "",
            vec![("b.comfy_quant", raw(U8, &[27], br#"{"format": "float8_e4m3fn"}"#))],
            &["b.comfy_quant"],
        ),
        (
            "a mark of ComfyUI at a plain weight",
            "",
            vec![
                ("b.weight", rows()),
                ("b.comfy_quant", raw(U8, &[27], br#"{"format": "float8_e4m3fn"}"#)),
            ],
            &["b.comfy_quant"],
        ),
        (
            "MLX, settings of a module that is not there",
            r#"{"quant_method": "mlx", "bits": 8, "group_size": 4, "b": {"bits": 4}}"#,
            vec![
                ("a.weight", raw(U32, &[1, 1], &[0])),
                ("a.scales", one_by_one()),
                ("a.biases", one_by_one()),
            ],
            &["MLX", "\"b\""],
        ),
        (
            "MLX, bits that are not those of the mode",
            r#"{"quant_method": "mlx", "bits": 8, "mode": "mxfp4"}"#,
            vec![("a.weight", raw(U32, &[1, 4], &[0])), ("a.scales", u8(&[1, 1]))],
            &["a.weight", "bits"],
        ),
        (
            "AutoRound, a packing that is not known",
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:other"}"#,
            vec![
                ("a.qweight", words(&[1, 8], &[0; 8])),
                ("a.scales", floats(&[1, 8], &[0.0; 8])),
                ("a.qzeros", words(&[1, 1], &[0])),
            ],
            &["a.qweight", "auto_round:other"],
        ),
    ];
    let case = |(about, config, tensors, refused): Row| {
        let (names, values): (&[&str], &[f32]) = (&[], &[]);
        Case { about, config, tensors, names, weight: "", values, refused }
    };
    rows_of_cases.into_iter().map(case).collect()
}
