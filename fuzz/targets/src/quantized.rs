//! Checkpoints with the names, dtypes and shapes of quantised weights: each is refused, or its
//! weights are read in parts as they are whole.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::{
    Checkpoint, Dtype, Limits, ReadAt, SaveOptions, TensorBuf, TensorView, serialize,
};

use crate::input::Input;

/// The ends of the names that schemes know.
const NAMES: &[&str] = &[
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_zero_point",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_g_idx",
    "pre_quant_scale",
    "input_scale",
    "scale",
    "scale_weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "biases",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "comfy_quant",
    "_weight_qdata",
    "_weight_scale",
    "weight._data",
    "weight._scale",
    "W_q",
    "zero",
    "nbits",
    "axis",
    "shape",
    "blocks",
];

const METHODS: &[&str] = &[
    "",
    "fp8",
    "compressed-tensors",
    "modelopt",
    "mxfp4",
    "gptq",
    "auto-round",
    "awq",
    "bitsandbytes",
    "torchao",
    "hqq",
    "quanto",
];

/// Dimensions that schemes expect, and others.
const DIMS: &[usize] = &[0, 1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 96, 128, 1 << 40, 1 << 60];

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let method = input.one_of(METHODS);
    let (bits, group) = (input.below(10), input.one_of(DIMS));
    let mut tensors: Vec<(String, TensorBuf)> = Vec::new();
    for _ in 0..input.below(8) {
        let name = format!("l.{}", input.one_of(NAMES));
        let dtype = input.one_of(Dtype::ALL);
        let shape: Vec<_> = (0..input.below(4)).map(|_| input.one_of(DIMS)).collect();
        let Ok(len) = safetensors_core::shape::byte_len(dtype, &shape) else { continue };
        if len > 1 << 14 || tensors.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let bytes = content(&mut input, &name, dtype, len as usize);
        let view = TensorView::new(dtype, &shape, &bytes).unwrap();
        tensors.push((name, TensorBuf::from_view(&view).unwrap()));
    }
    let file = serialize(tensors.iter().map(|(name, buf)| (name, buf)), &SaveOptions::new());
    let config = format!(
        r#"{{"quantization_config": {{"quant_method": "{method}", "bits": {bits}, "group_size": {group}}}}}"#
    );
    let mut files = vec![("m/model.safetensors", file.unwrap())];
    if !method.is_empty() {
        files.push(("m/config.json", config.into_bytes()));
    }
    let store = MemoryStore::from_iter(files);
    let checkpoint = Checkpoint::open_in(store, "m", &Limits::default()).unwrap();
    let Ok(checkpoint) = checkpoint.dequantized() else { return };
    for tensor in checkpoint.tensors() {
        if tensor.byte_len() > 1 << 22 {
            continue;
        }
        let source = tensor.source();
        let mut whole = vec![0; tensor.byte_len() as usize];
        let is_read = source.read_exact_at(&mut whole, tensor.file_offset()).is_ok();
        let start = input.u64() % (whole.len() as u64 + 1);
        let len = input.u64() % (whole.len() as u64 - start + 1);
        let mut part = vec![0; len as usize];
        let read = source.read_exact_at(&mut part, tensor.file_offset() + start);
        // A group that does not exist is an error of the parts that have it.
        if is_read {
            read.unwrap();
            assert!(part == whole[start as usize..][..len as usize], "{}", tensor.name());
        }
    }
}

/// The bytes of a tensor. What describes a weight is plausible half of the time.
fn content(input: &mut Input<'_>, name: &str, dtype: Dtype, len: usize) -> Vec<u8> {
    let mut bytes = input.filled(len);
    let json: &[u8] = match name {
        "l.comfy_quant" => br#"{"format": "nvfp4"}"#,
        "l.weight.quant_state.bitsandbytes__nf4" => {
            br#"{"blocksize": 64, "shape": [8, 16], "nested_blocksize": 2, "nested_offset": 1.5}"#
        }
        _ => b"",
    };
    if len >= json.len() && input.flag() {
        bytes[..json.len()].copy_from_slice(json);
        if !json.is_empty() {
            bytes[json.len()..].fill(b' ');
        }
    }
    if dtype == Dtype::BOOL {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    bytes
}
