//! Quantised weights as numbers, which are read ahead.

use candle_core::{DType, Device};
use float8::F8E4M3;
use safetensors_candle::from_candle_error;
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
fn bad_scales_of_weights_that_nobody_asks_for_do_not_end_the_bound_on_reading() {
    const ROWS: usize = 1024;
    let layers = 64;
    let weight = |name: String| {
        let codes = TensorBuf::from_vec(vec![ROWS, 1], vec![F8E4M3::from_f32(2.0); ROWS]);
        let scales = TensorBuf::from_vec(vec![ROWS, 1], vec![1.5_f32; ROWS]);
        [(format!("{name}_scale_inv"), scales.unwrap()), (name, codes.unwrap())]
    };
    let names = ["extra.weight", "fc.weight", "proj.weight"];
    let layer = |i| names.into_iter().flat_map(move |name| weight(format!("h.{i}.{name}")));
    let tensors: Vec<_> = (0..layers).flat_map(layer).collect();
    let (backend, spy) = backend_with(&tensors, &numbers());
    let limit = 60_000;
    let backend = backend.read_ahead(limit);
    let bad = (7..layers).step_by(8).map(|i| format!("h.{i}.extra.weight_scale_inv"));
    let bad: Vec<_> = bad.collect();
    spy.break_tensors(bad.iter().map(String::as_str));

    let builder = backend.var_builder(DType::BF16, &Device::Cpu);
    let names = (0..layers).flat_map(|i| names.map(|name| format!("h.{i}.{name}")));
    let is_good = |name: &String| !bad.contains(&format!("{name}_scale_inv"));
    let mut asked = 0;
    for name in names.filter(is_good) {
        let weight = builder.get((ROWS, 1), &name).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(weight.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [3.0; ROWS]);
        asked += 5 * ROWS as u64;
    }
    // A row has a byte and a scale of 4 bytes in the file, and 2 bytes in memory.
    let (read, window) = (spy.take_read(), limit / 2 * 5);
    assert!(read <= 2 * asked + window, "{read} bytes for {asked}");
    assert_eq!(backend.unused().count(), bad.len());
    // Who asks for such a weight is told.
    let error = from_candle_error(builder.get((ROWS, 1), "h.7.extra.weight").unwrap_err());
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

#[test]
fn a_refused_weight_fails_only_those_who_ask_for_it() {
    let (backend, _) = backend(&tensors());
    assert_eq!(backend.prefetch("", DType::BF16).unwrap(), 2 * LAYERS, "scales and norms");
    let builder = backend.var_builder(DType::BF16, &Device::Cpu);
    for i in 0..LAYERS {
        let layer = builder.pp("h").pp(i);
        layer.get(8, "norm").unwrap();
        let error = from_candle_error(layer.get((2, 2), "fc.weight").unwrap_err());
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
        assert_eq!(error.tensor(), Some(&*format!("h.{i}.fc.weight")));
    }
}
