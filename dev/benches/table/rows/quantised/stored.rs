//! Files of quantised weights, with random codes and scales.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use half::{bf16, f16};
use harness::files::Pattern;
use safetensors_bridge::{Dtype, SaveOptions, TensorView, serialize};

/// The rows and the columns of a weight.
pub(super) const SIDE: usize = 4096;

/// The number of weights in a file.
pub(super) const COUNT: usize = 4;

/// A way to store weights.
pub(super) struct Scheme {
    pub(super) name: &'static str,
    /// The settings in the model's `config.json`.
    pub(super) config: &'static str,
    /// Whether anamnesis reads it.
    pub(super) has_peer: bool,
    /// The tensors that store one weight.
    tensors: fn(&mut Pattern) -> Vec<Stored>,
}

/// A tensor: what its name ends in, and its content.
struct Stored {
    end: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub(super) const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "FP8 by blocks",
        config: r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#,
        has_peer: true,
        tensors: |pattern| {
            let blocks = [SIDE / 128; 2];
            vec![floats(pattern), scales(".weight_scale_inv", &blocks, Dtype::F32, pattern)]
        },
    },
    Scheme {
        name: "FP8 by rows",
        config: r#"{"quant_method": "compressed-tensors", "format": "float-quantized"}"#,
        has_peer: true,
        tensors: |pattern| {
            vec![floats(pattern), scales(".weight_scale", &[SIDE, 1], Dtype::BF16, pattern)]
        },
    },
    Scheme {
        name: "INT8 by rows",
        config: r#"{"quant_method": "compressed-tensors", "format": "int-quantized"}"#,
        has_peer: false,
        tensors: |pattern| {
            let codes = codes(".weight", Dtype::I8, &[SIDE, SIDE], pattern);
            vec![codes, scales(".weight_scale", &[SIDE, 1], Dtype::BF16, pattern)]
        },
    },
    Scheme {
        name: "INT4 by groups",
        config: r#"{"quant_method": "compressed-tensors", "format": "pack-quantized"}"#,
        has_peer: false,
        tensors: |pattern| {
            let shape = [SIDE as i64; 2].iter().flat_map(|side| side.to_le_bytes()).collect();
            vec![
                codes(".weight_packed", Dtype::I32, &[SIDE, SIDE / 8], pattern),
                scales(".weight_scale", &[SIDE, SIDE / 128], Dtype::BF16, pattern),
                Stored { end: ".weight_shape", dtype: Dtype::I64, shape: vec![2], bytes: shape },
            ]
        },
    },
    Scheme {
        name: "NVFP4",
        config: r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#,
        has_peer: true,
        tensors: |pattern| {
            let mut scales = codes(".weight_scale", Dtype::F8_E4M3, &[SIDE, SIDE / 16], pattern);
            // Finite and positive.
            scales.bytes.iter_mut().for_each(|byte| *byte &= 0x77);
            vec![
                codes(".weight", Dtype::U8, &[SIDE, SIDE / 2], pattern),
                scales,
                self::scales(".weight_scale_2", &[], Dtype::F32, pattern),
            ]
        },
    },
    Scheme {
        name: "MXFP4 of gpt-oss",
        config: r#"{"quant_method": "mxfp4"}"#,
        has_peer: false,
        tensors: |pattern| {
            let shape = [4, SIDE / 2, SIDE / 64, 16];
            let mut scales = codes("_scales", Dtype::U8, &shape[..3], pattern);
            scales.bytes.iter_mut().for_each(|byte| *byte = 112 + *byte % 16);
            vec![codes("_blocks", Dtype::U8, &shape, pattern), scales]
        },
    },
    Scheme {
        name: "GPTQ of 4 bits",
        config: r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq"}"#,
        has_peer: true,
        tensors: |pattern| {
            let groups = (0..SIDE as i32).flat_map(|i| (i / 128).to_le_bytes()).collect();
            let mut zeros = codes(".qzeros", Dtype::I32, &[SIDE / 128, SIDE / 8], pattern);
            // Libraries differ in what 15 + 1 is.
            zeros.bytes.iter_mut().for_each(|byte| *byte &= 0x77);
            vec![
                codes(".qweight", Dtype::I32, &[SIDE / 8, SIDE], pattern),
                zeros,
                scales(".scales", &[SIDE / 128, SIDE], Dtype::F16, pattern),
                Stored { end: ".g_idx", dtype: Dtype::I32, shape: vec![SIDE], bytes: groups },
            ]
        },
    },
    Scheme {
        name: "AWQ",
        config: r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}"#,
        has_peer: true,
        tensors: |pattern| {
            vec![
                codes(".qweight", Dtype::I32, &[SIDE, SIDE / 8], pattern),
                codes(".qzeros", Dtype::I32, &[SIDE / 128, SIDE / 8], pattern),
                scales(".scales", &[SIDE / 128, SIDE], Dtype::F16, pattern),
            ]
        },
    },
    Scheme {
        name: "NF4 of bitsandbytes",
        config: r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#,
        has_peer: true,
        tensors: |pattern| {
            let state = format!(
                r#"{{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [{SIDE}, {SIDE}]}}"#
            );
            vec![
                codes(".weight", Dtype::U8, &[SIDE * SIDE / 2, 1], pattern),
                scales(".weight.absmax", &[SIDE * SIDE / 64], Dtype::F32, pattern),
                scales(".weight.quant_map", &[16], Dtype::F32, pattern),
                Stored {
                    end: ".weight.quant_state.bitsandbytes__nf4",
                    dtype: Dtype::U8,
                    shape: vec![state.len()],
                    bytes: state.into_bytes(),
                },
            ]
        },
    },
    Scheme {
        name: "INT8 of bitsandbytes",
        config: r#"{"quant_method": "bitsandbytes", "load_in_8bit": true}"#,
        has_peer: true,
        tensors: |pattern| {
            let codes = codes(".weight", Dtype::I8, &[SIDE, SIDE], pattern);
            vec![codes, scales(".SCB", &[SIDE], Dtype::F32, pattern)]
        },
    },
];

/// Random codes.
fn codes(end: &'static str, dtype: Dtype, shape: &[usize], pattern: &mut Pattern) -> Stored {
    let bytes = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
    // Some bits of what a pattern takes are always zero.
    let bytes = pattern.take(bytes + 1).windows(2).map(|pair| pair[0] ^ pair[1] << 3).collect();
    Stored { end, dtype, shape: shape.to_vec(), bytes }
}

/// Weights of F8_E4M3 without NaN.
fn floats(pattern: &mut Pattern) -> Stored {
    let mut codes = codes(".weight", Dtype::F8_E4M3, &[SIDE, SIDE], pattern);
    codes.bytes.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
    codes
}

/// Positive numbers of the size of scales.
fn scales(end: &'static str, shape: &[usize], dtype: Dtype, pattern: &mut Pattern) -> Stored {
    let random = pattern.take(2 * shape.iter().product::<usize>());
    let values = random.as_chunks::<2>().0.iter().map(|&bytes| {
        let value = 0.002 + f32::from(u16::from_le_bytes(bytes)) / 65536.0 / 64.0;
        match dtype {
            Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    });
    Stored { end, dtype, shape: shape.to_vec(), bytes: values.flatten().collect() }
}

impl Scheme {
    /// Writes a file of weights.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut pattern = Pattern(7);
        let layers: Vec<_> = (0..COUNT).map(|_| (self.tensors)(&mut pattern)).collect();
        let mut views = Vec::new();
        for (layer, tensors) in layers.iter().enumerate() {
            for Stored { end, dtype, shape, bytes } in tensors {
                let name = format!("model.layers.{layer}.mlp.experts.down_proj{end}");
                views.push((name, TensorView::new(*dtype, shape, bytes)?));
            }
        }
        std::fs::write(path, serialize(views, &SaveOptions::new())?)?;
        // Synced now, so that the disk is not busy with it during a measurement.
        Ok(File::open(path)?.sync_all()?)
    }
}
