//! What no scheme explains is refused by its name; plain tensors are plain.

use safetensors_core::Dtype;
use safetensors_core::Dtype::{BF16, BOOL, F8_E4M3, F8_E8M0, F16, F32, I8, I16, I32, I64, U8, U32};
use safetensors_core::TensorBuf;

use super::checkpoint;
use super::parts::{ONE, Tensors, floats, raw, words};

/// The settings, the tensors, and what the error says.
type Refused = (&'static str, Tensors, &'static [&'static str]);

#[test]
fn what_is_not_explained_is_refused_by_name() {
    let f8 = || raw(F8_E4M3, &[4, 8], &[ONE]);
    let i8 = || raw(I8, &[4, 8], &[1]);
    let u8 = |shape: &[usize]| raw(U8, shape, &[1]);
    let rows = || floats(&[4, 1], &[0.5; 4]);
    let one = || floats(&[1], &[0.5]);
    let table: Vec<Refused> = vec![
        // A companion more than the scheme knows.
        (
            "",
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.weight_offset", rows())],
            &["a.weight", "a.weight_offset", "8-bit with scales"],
        ),
        (
            "",
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.weight_scale_inv", rows())],
            &["a.weight", "a.weight_scale", "8-bit with scales"],
        ),
        (
            r#"{"quant_method": "fp8"}"#,
            vec![("a.weight", f8()), ("a.weight_scale", rows()), ("a.smooth_factor", rows())],
            &["a.smooth_factor"],
        ),
        (
            r#"{"quant_method": "modelopt"}"#,
            vec![("e.up", f8()), ("e.up_weight_scale", one()), ("e.up_weight_scale_3", one())],
            &["\"e.up\"", "e.up_weight_scale_3"],
        ),
        (
            "",
            vec![("a.weight", i8()), ("a.weight_scale", rows()), ("a.weight_scale_second", rows())],
            &["msmodelslim", "a.weight"],
        ),
        // A tensor of the weight's own name beside its codes.
        (
            "",
            vec![
                ("a.weight._data", i8()),
                ("a.weight._scale", rows()),
                ("a.weight", floats(&[1], &[1.0])),
            ],
            &["Quanto", "tensor \"a.weight\""],
        ),
        // Codes whose companion belongs to no scheme.
        ("", vec![("W", i8()), ("W_zero", rows())], &["\"W\"", "W_zero"]),
        (
            r#"{"quant_method": "compressed-tensors"}"#,
            vec![("e.w13_qweight", words(&[2, 4, 8], &[0; 64])), ("e.w13_scales", rows())],
            &["e.w13_qweight"],
        ),
        (
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
            r#"{"quant_method": "bitsandbytes"}"#,
            vec![("m.weight", u8(&[8, 1]))],
            &["m.weight", "bitsandbytes"],
        ),
        (r#"{"quant_method": "compressed-tensors"}"#, vec![("e.up", f8())], &["e.up"]),
        (
            r#"{"quant_method": "mlx", "bits": 4}"#,
            vec![("a.weight", raw(U32, &[4, 4], &[0]))],
            &["a.weight"],
        ),
        (
            r#"{"quant_method": "w4afp8"}"#,
            vec![("a.weight", f8()), ("a.weight_scale", rows())],
            &["w4afp8", "a.weight", "not known"],
        ),
        // GPTQ whose order of inputs is missing, and zero points that the settings have.
        (
            r#"{"quant_method": "gptq", "bits": 4, "desc_act": true}"#,
            vec![
                ("a.qweight", words(&[2, 8], &[0; 16])),
                ("a.scales", floats(&[2, 8], &[0.0; 16])),
                ("a.qzeros", words(&[2, 1], &[0; 2])),
            ],
            &["a.g_idx"],
        ),
        (
            r#"{"quant_method": "compressed-tensors", "config_groups": {
                "a": {"weights": {"num_bits": 8, "symmetric": false}}}}"#,
            vec![("a.weight", i8()), ("a.weight_scale", rows())],
            &["a.weight_zero_point"],
        ),
        // Two scales an expert where nothing says which rows each is of.
        (
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
            r#"{"quant_method": "modelopt"}"#,
            vec![
                ("a.weight", u8(&[4, 10])),
                ("a.weight_scale", raw(F8_E4M3, &[4, 1], &[ONE])),
                ("a.weight_scale_2", one()),
            ],
            &["a.weight", "16 codes"],
        ),
        (
            STACKED_WITHOUT_BITS,
            vec![
                ("e.up_packed", words(&[2, 1, 4], &[0; 8])),
                ("e.up_scale", floats(&[2, 1, 1], &[1.0; 2])),
            ],
            &["e.up_packed", "bits"],
        ),
        // NVFP4 that may be ComfyUI's: without any settings, and beside marks of other modules.
        (
            "",
            vec![
                ("a.weight", u8(&[128, 32])),
                ("a.weight_scale", raw(F8_E4M3, &[128, 4], &[ONE])),
                ("a.weight_scale_2", one()),
            ],
            &["a.weight", "ComfyUI"],
        ),
        (
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
            "",
            vec![("b.comfy_quant", raw(U8, &[27], br#"{"format": "float8_e4m3fn"}"#))],
            &["b.comfy_quant"],
        ),
        (
            "",
            vec![
                ("b.weight", rows()),
                ("b.comfy_quant", raw(U8, &[27], br#"{"format": "float8_e4m3fn"}"#)),
            ],
            &["b.comfy_quant"],
        ),
        (
            r#"{"quant_method": "mlx", "bits": 8, "group_size": 4, "b": {"bits": 4}}"#,
            vec![
                ("a.weight", raw(U32, &[1, 1], &[0])),
                ("a.scales", one_by_one()),
                ("a.biases", one_by_one()),
            ],
            &["MLX", "\"b\""],
        ),
        (
            r#"{"quant_method": "mlx", "bits": 8, "mode": "mxfp4"}"#,
            vec![("a.weight", raw(U32, &[1, 4], &[0])), ("a.scales", u8(&[1, 1]))],
            &["a.weight", "bits"],
        ),
        (
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:other"}"#,
            vec![
                ("a.qweight", words(&[1, 8], &[0; 8])),
                ("a.scales", floats(&[1, 8], &[0.0; 8])),
                ("a.qzeros", words(&[1, 1], &[0])),
            ],
            &["a.qweight", "auto_round:other"],
        ),
    ];
    for (config, tensors, expected) in table {
        let (_directory, checkpoint) = checkpoint((!config.is_empty()).then_some(config), &tensors);
        let names: Vec<_> = tensors.iter().map(|(name, _)| *name).collect();
        let listed = checkpoint.quantized_weights().map(|_| ()).map_err(|error| error.to_string());
        let error = checkpoint.dequantized().map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(listed, error, "{config} {names:?}");
        let error = error.expect_err(&format!("{config} {names:?}"));
        for part in expected {
            assert!(error.contains(part), "{config} {names:?}: {part} is not in {error}");
        }
    }
}

const STACKED_WITHOUT_BITS: &str = r#"{"quant_method": "compressed-tensors"}"#;

fn one_by_one() -> TensorBuf {
    floats(&[1, 1], &[1.0])
}

#[test]
fn a_plain_tensor_is_plain_whatever_it_is_called() {
    let names = [
        "attn.W_q",
        "net.num_blocks",
        "rvq.codebooks",
        "a.trellis",
        "a._data",
        "a.bitmask",
        "a_blocks",
        "a.blocks",
        "a.qweight",
        "a.weight_packed",
        "a._weight_qdata",
        "a.B",
        "a.meta",
        "a.codes",
        "a.theta",
        "a.svdquant_lora_a",
        "a.embedding_quantized",
        "w13_weight",
        "a.weight_scale",
        "a.scale",
    ];
    let all = |dtype: Dtype| names.map(|name| (name, raw(dtype, &[2, 2], &[1])));
    for dtype in [F32, F16, BF16, I64, BOOL] {
        for method in ["", "fp8", "gptq", "mlx", "bitnet", "compressed-tensors", "modelopt"] {
            let config = format!("{{\"quant_method\": \"{method}\", \"bits\": 4}}");
            let config = (!method.is_empty()).then_some(&*config);
            let (_directory, checkpoint) = checkpoint(config, &all(dtype));
            let weights = checkpoint.quantized_weights().map_err(|error| error.to_string());
            assert_eq!(weights, Ok(vec![]), "{dtype} {method}");
        }
    }
    // Of dtypes that codes have, without companions.
    for (method, name, dtype, shape) in [
        ("", "attn.W_q", U8, &[2, 2][..]),
        ("", "a.bitmask", U8, &[2, 2]),
        ("", "a.trellis", I16, &[2, 2]),
        ("", "a._data", I8, &[2, 2]),
        ("", "a_blocks", U8, &[2, 2, 16]),
        ("", "a.weight", F8_E4M3, &[2, 2]),
        ("", "a.weight", I8, &[2, 2]),
        ("", "a.weight_scale", F8_E8M0, &[2, 2]),
        ("fp8", "spiece_model", U8, &[100]),
        ("fp8", "position_ids", I32, &[1, 77]),
        ("gptq", "h.0.attn.bias", U8, &[1, 1, 8, 8]),
        ("bitnet", "spiece_model", U8, &[100]),
        ("bitnet", "position_ids", I32, &[1, 77]),
    ] {
        let config = format!("{{\"quant_method\": \"{method}\"}}");
        let config = (!method.is_empty()).then_some(&*config);
        let (_directory, checkpoint) = checkpoint(config, &[(name, raw(dtype, shape, &[1]))]);
        let weights = checkpoint.quantized_weights().map_err(|error| error.to_string());
        assert_eq!(weights, Ok(vec![]), "{name} {dtype} {method}");
    }
}
