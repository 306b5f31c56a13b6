//! Small checkpoints as public tools write them: each is read right, or refused by its name, or plain.

use safetensors_core::{Checkpoint, Dtype, LoadOptions, TensorBuf, TensorView};

use super::{checkpoint, with_metadata};
use Dtype::{BF16, BOOL, F8_E4M3, F8_E8M0, F16, F32, I8, I16, I32, I64, U8, U32};

pub(super) type Tensors = Vec<(&'static str, TensorBuf)>;

/// A tensor of bytes, the last of which is repeated.
fn raw(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> TensorBuf {
    let len = (shape.iter().product::<usize>() * dtype.bits() as usize).div_ceil(8);
    let mut all = bytes.to_vec();
    all.resize(len, bytes.last().copied().unwrap_or(0));
    TensorBuf::from_view(&TensorView::new(dtype, shape, &all).unwrap()).unwrap()
}

fn floats(shape: &[usize], values: &[f32]) -> TensorBuf {
    TensorBuf::from_vec(shape.to_vec(), values.to_vec()).unwrap()
}

fn words(shape: &[usize], values: &[u32]) -> TensorBuf {
    let bytes: Vec<_> = values.iter().flat_map(|word| word.to_le_bytes()).collect();
    raw(I32, shape, &bytes)
}

/// 1 and 2 in F8_E4M3.
const ONE: u8 = 0x38;
const TWO: u8 = 0x40;

/// The names of a file of numbers, and the values of one tensor.
fn numbers(checkpoint: Checkpoint, name: &str) -> Result<(Vec<String>, Vec<f32>), String> {
    let checkpoint = checkpoint.dequantized().map_err(|error| error.to_string())?;
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name().to_owned()).collect();
    names.sort_unstable();
    let tensor = checkpoint.tensor(name).map_err(|error| error.to_string())?;
    let read = tensor.read_with(&LoadOptions::new().all_as(F32));
    let read = read.map_err(|error| error.to_string())?;
    Ok((names, read.into_vec().unwrap()))
}

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

/// Marks are meant for modules with or without the prefix of a diffusion model.
#[test]
fn marks_of_comfyui_have_a_prefix_or_none() {
    let one = || floats(&[], &[0.5]);
    let tensors = |module: &str| {
        vec![
            (format!("{module}.weight"), raw(U8, &[16, 8], &[0x24])),
            (format!("{module}.weight_scale"), raw(F8_E4M3, &[128, 4], &[ONE])),
            (format!("{module}.weight_scale_2"), one()),
        ]
    };
    for (stored, marked, is_right) in [
        ("a.b", "a.b", true),
        ("model.diffusion_model.a.b", "a.b", true),
        ("a.b", "model.diffusion_model.a.b", true),
        ("net.a.b", "a.b", true),
        ("a.b", "a.c", false),
    ] {
        let tensors = tensors(stored);
        let tensors: Vec<_> = tensors.iter().map(|(name, buf)| (&**name, buf.clone())).collect();
        let layers = format!("{{\"layers\": {{\"{marked}\": {{\"format\": \"nvfp4\"}}}}}}");
        let (_directory, checkpoint) =
            with_metadata(None, &tensors, &[("_quantization_metadata", &layers)]);
        let found = numbers(checkpoint, &format!("{stored}.weight"));
        match is_right {
            // The high half is first: 2 is 1, and 4 is 2.
            true => {
                let (names, values) = found.unwrap();
                assert_eq!(names, [format!("{stored}.weight")]);
                assert_eq!(values[..2], [0.5, 1.0]);
            }
            false => assert!(found.unwrap_err().contains("ComfyUI"), "{stored} {marked}"),
        }
    }
}

/// torchao's metadata lists the tensors, of all shards.
#[test]
fn a_name_that_torchao_lists_is_there_unless_the_file_is_a_shard() {
    let tensors = [
        ("a._weight_qdata", raw(I8, &[1, 2], &[10, 20])),
        ("a._weight_scale", floats(&[1, 1], &[0.5])),
    ];
    for (listed, is_right) in [("[\"a.weight\"]", true), ("[\"a.weight\", \"b.weight\"]", false)] {
        let (directory, checkpoint) = with_metadata(None, &tensors, &[("tensor_names", listed)]);
        assert_eq!(checkpoint.quantized_weights().is_ok(), is_right, "{listed}");
        let shard = directory.path().join("model-00001-of-00002.safetensors");
        std::fs::rename(directory.path().join("model.safetensors"), &shard).unwrap();
        assert_eq!(Checkpoint::open(&shard).unwrap().quantized_weights().unwrap().len(), 1);
    }
}

/// Python writes words that JSON does not have.
#[test]
fn settings_may_have_numbers_that_are_not_finite() {
    let tensors = [
        ("a.weight", raw(F8_E4M3, &[1, 2], &[ONE, TWO])),
        ("a.weight_scale", floats(&[1], &[0.5])),
    ];
    let config = r#"{"quant_method": "fp8", "limit": [0.0, Infinity, -Infinity, NaN]}"#;
    let (_directory, checkpoint) = checkpoint(Some(config), &tensors);
    assert_eq!(numbers(checkpoint, "a.weight").unwrap().1, [0.5, 1.0]);
}

/// msmodelslim describes its weights in a file of its own.
#[test]
fn the_settings_of_msmodelslim_name_it() {
    let tensors = [("a.weight", raw(I8, &[2, 2], &[1]))];
    let (directory, checkpoint) = checkpoint(None, &tensors);
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
    let description = directory.path().join("quant_model_description.json");
    std::fs::write(description, r#"{"a.weight": "W8A8"}"#).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.quantized_weights().unwrap_err().to_string();
    assert!(error.contains("msmodelslim") && error.contains("a.weight"), "{error}");
}
