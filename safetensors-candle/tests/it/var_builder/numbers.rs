//! Quantised weights as numbers, which are read ahead.

use candle_core::{DType, Device};
use float8::F8E4M3;
use safetensors_candle::IntoCore;
use safetensors_core::load::QuantizedWeights;
use safetensors_core::{ErrorKind, LoadOptions, TensorBuf};

use super::spy::{backend, backend_with, weight};

const LAYERS: usize = 12;

fn numbers() -> LoadOptions {
    LoadOptions::new().quantized(QuantizedWeights::Numbers)
}

/// Layers of a weight with a scale, and a norm. The weights of layer `i` are all `i + 1`.
fn tensors() -> Vec<(String, TensorBuf)> {
    (0..LAYERS).flat_map(layer).collect()
}

fn layer(i: usize) -> [(String, TensorBuf); 3] {
    let scaled = vec![F8E4M3::from_f32(2.0); 4];
    let scale = vec![(i + 1) as f32 / 2.0];
    [
        (format!("h.{i}.fc.weight"), TensorBuf::from_vec(vec![2, 2], scaled).unwrap()),
        (format!("h.{i}.fc.weight_scale_inv"), TensorBuf::from_vec(vec![1, 1], scale).unwrap()),
        weight(&format!("h.{i}.norm"), 8),
    ]
}

#[test]
fn weights_that_are_read_ahead_or_prefetched_are_numbers() {
    for is_prefetched in [false, true] {
        let (backend, spy) = backend_with(&tensors(), &numbers());
        if is_prefetched {
            assert_eq!(backend.prefetch("", DType::BF16).unwrap(), 2 * LAYERS);
        }
        spy.take_calls();
        let builder = backend.var_builder(DType::BF16, &Device::Cpu);
        let mut reading = 0;
        for i in 0..LAYERS {
            let layer = builder.pp("h").pp(i);
            let weight = layer.get((2, 2), "fc.weight").unwrap().to_dtype(DType::F32).unwrap();
            let expected = vec![vec![(i + 1) as f32; 2]; 2];
            assert_eq!(weight.to_vec2::<f32>().unwrap(), expected);
            layer.get(8, "norm").unwrap();
            reading += usize::from(spy.take_calls() > 0);
        }
        assert!(reading <= if is_prefetched { 0 } else { LAYERS / 2 }, "{reading} layers read");
        assert_eq!(backend.unused().count(), 0);
        // A weight, a scale and a norm of each layer, and none of them twice.
        assert_eq!(spy.take_read(), LAYERS as u64 * (4 + 4 + 16));
    }
}

#[test]
fn a_refused_weight_fails_only_its_own_requests() {
    let (backend, _) = backend(&tensors());
    assert_eq!(backend.prefetch("", DType::BF16).unwrap(), 2 * LAYERS, "scales and norms");
    let builder = backend.var_builder(DType::BF16, &Device::Cpu);
    for i in 0..LAYERS {
        let layer = builder.pp("h").pp(i);
        layer.get(8, "norm").unwrap();
        let error = layer.get((2, 2), "fc.weight").unwrap_err().into_core();
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
        assert_eq!(error.tensor(), Some(&*format!("h.{i}.fc.weight")));
    }
}
