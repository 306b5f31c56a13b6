//! Block-scaled FP8 through everything that loads: by part, by a `VarBuilder`, all at once.

use std::path::PathBuf;

use candle_core::{DType, Device, IndexOp};
use candle_nn::VarBuilder;
use candle_nn::var_builder::Shard;
use safetensors_candle::{
    CheckpointBackend, TensorParallelBackend, from_candle_error, load_with, var_builder,
};
use safetensors_core::convert::ScaledWeights;
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions};

use super::{builder, values};

/// The path of a file that `generate.py` beside it made with NumPy.
fn fixture(name: &str) -> PathBuf {
    let fixtures = "../safetensors-core/tests/fixtures/scaled";
    PathBuf::from(format!("{}/{fixtures}/{name}.safetensors", env!("CARGO_MANIFEST_DIR")))
}

/// The dequantised weights, as NumPy has them.
fn expected(name: &str) -> Vec<u32> {
    let checkpoint = Checkpoint::open(fixture("small-expected")).unwrap();
    let expected = checkpoint.tensor(name).unwrap().read().unwrap();
    expected.into_vec::<f32>().unwrap().into_iter().map(canonical).collect()
}

/// Bits, the same for every NaN.
fn canonical(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

fn bits(tensor: &candle_core::Tensor) -> Vec<u32> {
    values(tensor).into_iter().map(canonical).collect()
}

fn dequantize() -> LoadOptions {
    let options = ConvertOptions::new().scaled_weights(ScaledWeights::Dequantize);
    LoadOptions::new().convert_options(options.scale_block(4, 8))
}

fn backend() -> TensorParallelBackend {
    TensorParallelBackend::new(Checkpoint::open(fixture("small")).unwrap())
}

#[test]
fn a_var_builder_dequantizes_when_asked() {
    let checkpoint = Checkpoint::open(fixture("small")).unwrap();
    let backend = CheckpointBackend::new(checkpoint).load_options(dequantize());
    let builder = VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu);
    for (name, shape) in [("block", (10, 21)), ("channel", (5, 7)), ("tensor", (5, 7))] {
        let weight = builder.get(shape, name).unwrap();
        assert_eq!(bits(&weight), expected(&format!("{name}.f32")), "{name}");
        let raw = builder.get_with_hints_dtype(shape, name, Default::default(), DType::F8E4M3);
        assert_eq!(raw.unwrap().dtype(), DType::F8E4M3);
    }
    // The scales can still be asked for themselves.
    assert_eq!(builder.get((3, 3), "block_scale_inv").unwrap().dims(), [3, 3]);
}

#[test]
fn a_var_builder_refuses_to_convert_without_the_scales() {
    let builder = var_builder(fixture("small"), DType::BF16, &Device::Cpu).unwrap();
    for result in [builder.get((10, 21), "block"), builder.get_unchecked("block")] {
        let error = from_candle_error(result.unwrap_err());
        assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
        assert_eq!(error.tensor(), Some("block"));
        assert!(error.to_string().contains("block_scale_inv"), "{error}");
    }
    let checkpoint = Checkpoint::open(fixture("small")).unwrap();
    let raw = LoadOptions::new().scaled_weights(ScaledWeights::Raw);
    let backend = CheckpointBackend::new(checkpoint).load_options(raw);
    let builder = VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu);
    let (raw, codes) = (
        builder.get((16, 16), "codes").unwrap(),
        builder.get_unchecked_dtype("codes", DType::F8E4M3).unwrap(),
    );
    assert_eq!(bits(&raw), bits(&codes));
}

#[test]
fn what_is_read_ahead_or_prefetched_is_dequantized_too() {
    for prefetches in [false, true] {
        let checkpoint = Checkpoint::open(fixture("small")).unwrap();
        let names: Vec<_> = checkpoint
            .tensors()
            .filter(|tensor| tensor.scales().is_some())
            .map(|tensor| tensor.name().to_string())
            .collect();
        let backend = CheckpointBackend::new(checkpoint).load_options(dequantize());
        if prefetches {
            backend.prefetch("", DType::F32).unwrap();
        }
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        for name in &names {
            let weight = builder.get_unchecked(name).unwrap();
            assert_eq!(bits(&weight), expected(&format!("{name}.f32")), "{name}");
        }
        // The scales are used as well, though they are not asked for.
        assert_eq!((names.len(), backend.unused().count()), (12, 0));
    }
    // Without the option, what is converted is not read ahead, and is no error before it is asked.
    let backend = CheckpointBackend::new(Checkpoint::open(fixture("small")).unwrap());
    assert_eq!(backend.prefetch("", DType::F32).unwrap(), 12, "the scales");
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    builder.get_unchecked("block_scale_inv").unwrap();
    assert!(builder.get_unchecked("block").is_err());
}

#[test]
fn load_dequantizes_everything_and_leaves_the_scales_out() {
    let scaled = load_with(fixture("small"), &Device::Cpu, &dequantize()).unwrap();
    let names = Checkpoint::open(fixture("small")).unwrap();
    assert_eq!(scaled.len(), names.len() / 2);
    for (name, weight) in &scaled {
        assert_eq!(bits(weight), expected(&format!("{name}.f32")), "{name}");
    }
    let narrow = dequantize().floats_as(Dtype::BF16);
    let narrow = load_with(fixture("small"), &Device::Cpu, &narrow).unwrap();
    assert!(narrow.values().all(|weight| weight.dtype() == DType::BF16));
    // candle has F8_E4M3, but would hold F8_E5M2 as F16.
    let error = load_with(fixture("small"), &Device::Cpu, &LoadOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { to: Dtype::F16, .. }), "{error}");
    assert_eq!(error.tensor(), Some("e5m2"));
    let raw = LoadOptions::new().scaled_weights(ScaledWeights::Raw);
    let as_they_are = load_with(fixture("small"), &Device::Cpu, &raw).unwrap();
    assert_eq!(as_they_are.len(), names.len());
    assert_eq!(as_they_are["block"].dtype(), DType::F8E4M3);
    let floats = LoadOptions::new().floats_as(Dtype::F32);
    let error = load_with(fixture("small"), &Device::Cpu, &floats).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
}

#[test]
fn parts_are_cut_inside_blocks_too() {
    let backend = backend().load_options(dequantize());
    let ranks = builder(&backend, DType::F32);
    let whole = ranks.get((10, 21), "block").unwrap();
    assert_eq!(bits(&whole), expected("block.f32"));
    // Parts of 2, 5, 3 and 7 positions, of blocks of 4 by 8.
    for (dim, world_size) in [(0, 5), (0, 2), (1, 7), (1, 3)] {
        let len = whole.dims()[dim] / world_size;
        for rank in 0..world_size {
            let hint = Shard { dim, rank, world_size };
            let part = ranks.get_with_hints((10, 21), "block", hint).unwrap();
            assert_eq!(bits(&part), bits(&whole.narrow(dim, rank * len, len).unwrap()), "{hint:?}");
        }
    }
    let spans = backend.hints::<TensorPart>();
    let experts = [
        ("experts", TensorPart::span(0, 1, 1)),
        ("experts", TensorPart::span(1, 3, 2)),
        ("vector", TensorPart::span(0, 2, 2)),
    ];
    let parts = spans.read_parts(experts, DType::F32, &Device::Cpu).unwrap();
    let whole = builder(&spans, DType::F32);
    let (of_experts, vector) =
        (whole.get((2, 5, 9), "experts").unwrap(), whole.get((5, 7), "vector").unwrap());
    assert_eq!(bits(&parts[0]), bits(&of_experts.i(1..).unwrap()));
    assert_eq!(bits(&parts[1]), bits(&of_experts.i((.., 3..)).unwrap()));
    assert_eq!(bits(&parts[2]), bits(&vector.i(2..4).unwrap()));
}

#[test]
fn a_part_is_refused_without_the_scales() {
    let backend = backend();
    let hint = Shard { dim: 0, rank: 0, world_size: 2 };
    let error = builder(&backend, DType::F32).get_with_hints((10, 21), "block", hint).unwrap_err();
    assert!(matches!(from_candle_error(error).kind(), ErrorKind::NeedsScales { .. }));
    let error = backend.prefetch([("block", hint)], DType::F16, &Device::Cpu).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }));
    let part = builder(&backend, DType::F8E4M3).get_with_hints((10, 21), "block", hint).unwrap();
    assert_eq!((part.dims(), part.dtype()), (&[5, 21][..], DType::F8E4M3));
}
