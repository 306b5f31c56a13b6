//! Plain weights that become quantised tensors while they are loaded.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use safetensors_candle::quantize::{self, linear_layers};
use safetensors_core::header::TensorInfo;
use safetensors_core::io::Requests;
use safetensors_core::load::{ExpertLayout, ExpertOptions, GateUp, QuantizedWeights};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, LoadOptions, ReadAt, SaveOptions, TensorView, serialize,
};

use crate::common::save_tensors;

fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

#[track_caller]
fn assert_same(found: &QTensor, expected: &QTensor) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
    assert!(found.data().unwrap() == expected.data().unwrap(), "other blocks: {found:?}");
}

fn open(tensors: &[(&str, &Tensor)], dir: &tempfile::TempDir) -> Checkpoint {
    let path = dir.path().join("model.safetensors");
    save_tensors(&path, tensors).unwrap();
    Checkpoint::open(path).unwrap()
}

#[test]
fn blocks_equal_candles_own_of_a_loaded_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let tensors: Vec<_> = [DType::F32, DType::F16, DType::BF16, DType::F64]
        .into_iter()
        .map(|dtype| (format!("{dtype:?}"), numbers(&[3, 2, 512], dtype)))
        .collect();
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let checkpoint = open(&named, &dir);
    use GgmlDType::*;
    for dtype in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Q8K] {
        for threads in [1, 3] {
            let options = LoadOptions::new().threads(threads);
            let loaded = quantize::load(&checkpoint, &Device::Cpu, &options, |_| Some(dtype));
            let loaded = loaded.unwrap();
            assert_eq!(loaded.len(), tensors.len());
            for (name, tensor) in &tensors {
                assert_same(&loaded[name], &QTensor::quantize(tensor, dtype).unwrap());
            }
        }
    }
}

#[test]
fn only_linear_layers_are_quantised_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let matrix = numbers(&[8, 512], DType::BF16);
    let narrow = numbers(&[8, 96], DType::F32);
    let odd = numbers(&[8, 33], DType::F16);
    let norm = numbers(&[512], DType::F16);
    let (ids, scalar) = (Tensor::arange(0_i64, 8, &Device::Cpu).unwrap(), numbers(&[], DType::F32));
    let checkpoint = open(
        &[
            ("embed_tokens.weight", &matrix),
            ("layers.0.mlp.up_proj.weight", &matrix),
            ("layers.0.mlp.down_proj.weight", &narrow),
            ("layers.0.mlp.odd_proj.weight", &odd),
            ("layers.0.norm.weight", &norm),
            ("lm_head.weight", &matrix),
            ("position_ids", &ids),
            ("scale", &scalar),
        ],
        &dir,
    );
    let loaded = quantize::load(&checkpoint, &Device::Cpu, &LoadOptions::new(), |tensor| {
        linear_layers(tensor, GgmlDType::Q6K)
    });
    let loaded = loaded.unwrap();
    let dtypes: Vec<_> = loaded.iter().map(|(name, it)| (name.as_str(), it.dtype())).collect();
    let expected = [
        ("embed_tokens.weight", GgmlDType::BF16),
        ("layers.0.mlp.down_proj.weight", GgmlDType::Q8_0),
        ("layers.0.mlp.odd_proj.weight", GgmlDType::F16),
        ("layers.0.mlp.up_proj.weight", GgmlDType::Q6K),
        ("layers.0.norm.weight", GgmlDType::F16),
        ("lm_head.weight", GgmlDType::BF16),
    ];
    assert_eq!(dtypes, expected);
    let embedding = loaded["embed_tokens.weight"].dequantize(&Device::Cpu).unwrap();
    let plain = matrix.to_dtype(DType::F32).unwrap();
    assert_eq!(embedding.to_vec2::<f32>().unwrap(), plain.to_vec2::<f32>().unwrap());
}

#[test]
fn a_tensor_without_blocks_is_an_error_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (numbers(&[2, 256], DType::F32), numbers(&[4, 96], DType::F32));
    let scalar = numbers(&[], DType::F32);
    let load = |tensors: &[(&str, &Tensor)]| {
        let checkpoint = open(tensors, &dir);
        let options = LoadOptions::new().progress(|progress| panic!("read {progress:?}"));
        quantize::load(&checkpoint, &Device::Cpu, &options, |_| Some(GgmlDType::Q4K)).unwrap_err()
    };
    let error = load(&[("a", &good), ("b", &bad)]);
    assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
    assert_eq!(error.tensor(), Some("b"));
    assert!(error.file().is_some_and(|file| file.ends_with("model.safetensors")));
    assert!(
        error.to_string().contains("rows of 96 numbers do not divide into blocks of 256"),
        "{error}"
    );
    let error = load(&[("a", &good), ("s", &scalar)]);
    assert_eq!(error.tensor(), Some("s"));
}

#[test]
fn empty_tensors_and_empty_checkpoints_load() {
    let dir = tempfile::tempdir().unwrap();
    let none = Tensor::zeros((0, 256), DType::F32, &Device::Cpu).unwrap();
    let load = |tensors: &[(&str, &Tensor)]| {
        let checkpoint = open(tensors, &dir);
        quantize::load(&checkpoint, &Device::Cpu, &LoadOptions::new(), |_| Some(GgmlDType::Q4K))
    };
    assert_eq!(load(&[("none", &none)]).unwrap()["none"].shape().dims(), [0, 256]);
    assert!(load(&[]).unwrap().is_empty());
}

#[test]
fn quantised_schemes_aliases_and_progress_work_together() {
    let codes = [0x38_u8; 64];
    let tensors = [
        ("w", TensorView::new(Dtype::F8_E4M3, &[2, 32], &codes).unwrap()),
        ("w_scale", TensorView::from_slice(&[1], &[0.5_f32]).unwrap()),
    ];
    let tied = SaveOptions::new().metadata([("head", "w")]);
    let bytes = serialize(tensors, &tied).unwrap();
    let checkpoint = Checkpoint::from_source(bytes, "memory").unwrap();
    let load = |options: &LoadOptions| {
        let choose = |name: &str| (name == "w").then_some(GgmlDType::Q8_0);
        quantize::load(&checkpoint, &Device::Cpu, options, |tensor| choose(tensor.name()))
    };
    let error = load(&LoadOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");

    let options = LoadOptions::new().quantized(QuantizedWeights::Numbers);
    let loaded = load(&options.clone().progress(|progress| {
        assert_eq!((progress.bytes_done, progress.bytes_total), (256, 256));
        std::ops::ControlFlow::Continue(())
    }));
    let loaded = loaded.unwrap();
    assert!(Arc::ptr_eq(&loaded["w"], &loaded["head"]));
    let without = load(&options.clone().aliases(false)).unwrap();
    assert_eq!(without.keys().collect::<Vec<_>>(), ["w"]);
    let found = loaded["w"].dequantize(&Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
    assert!(found.concat().iter().all(|found| (found - 0.5).abs() < 1e-3));
    let cancelled = load(&options.progress(|_| std::ops::ControlFlow::Break(())));
    assert!(matches!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled));
}

/// A source for 6 calls at once. Once `waits` is set, a call fails unless 5 more begin with it.
struct Far {
    bytes: Vec<u8>,
    waits: Arc<AtomicBool>,
    begun: Mutex<usize>,
    changed: Condvar,
}

impl ReadAt for Far {
    fn byte_len(&self) -> u64 {
        self.bytes.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.waits.load(Ordering::SeqCst) {
            let mut begun = self.begun.lock().unwrap();
            *begun += 1;
            self.changed.notify_all();
            let most = Duration::from_secs(20);
            let wait = self.changed.wait_timeout_while(begun, most, |begun| *begun < 6);
            if wait.unwrap().1.timed_out() {
                return Err(io::Error::other("too few calls at once"));
            }
        }
        self.bytes.read_exact_at(buf, offset)
    }

    fn requests(&self) -> Option<Requests> {
        Some(Requests::new(1 << 20, 6))
    }
}

#[test]
fn a_remote_source_gets_many_requests_at_once() {
    let values = [0.5_f32; 64];
    let view = TensorView::from_slice(&[2, 32], &values).unwrap();
    let tensors = ["a", "b", "c", "d", "e", "f"].map(|name| (name, view));
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    let waits = Arc::new(AtomicBool::new(false));
    let source =
        Far { bytes, waits: waits.clone(), begun: Mutex::default(), changed: Condvar::new() };
    let checkpoint = Checkpoint::from_source(source, "far").unwrap();
    waits.store(true, Ordering::SeqCst);
    let choose = |_: TensorInfo<'_>| Some(GgmlDType::Q8_0);
    let loaded = quantize::load(&checkpoint, &Device::Cpu, &LoadOptions::new(), choose);
    assert_eq!(loaded.unwrap().len(), 6);
}

#[test]
fn the_experts_of_a_stack_are_split_and_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let gate_up = numbers(&[4, 128, 32], DType::F32);
    let down = numbers(&[4, 32, 64], DType::F32);
    let tensors = [("mlp.experts.gate_up_proj", &gate_up), ("mlp.experts.down_proj", &down)];
    let checkpoint = open(&tensors, &dir);
    let options = ExpertOptions::new().gate_up(GateUp::First);
    let options = LoadOptions::new().experts(ExpertLayout::Split, options);
    let loaded = quantize::load(&checkpoint, &Device::Cpu, &options, |tensor| {
        linear_layers(tensor, GgmlDType::Q4_0)
    });
    let loaded = loaded.unwrap();
    assert_eq!(loaded.len(), 12);
    // candle panics on a view that does not begin where its memory does.
    let up = gate_up.get(3).unwrap().narrow(0, 64, 64).unwrap().force_contiguous().unwrap();
    let expected = QTensor::quantize(&up, GgmlDType::Q4_0).unwrap();
    assert_same(&loaded["mlp.experts.3.up_proj.weight"], &expected);
}

#[cfg(target_os = "linux")]
#[test]
fn memory_holds_the_blocks_and_a_tensor_for_each_thread() {
    use safetensors_testing::memory::{growth, resident};
    use safetensors_testing::process::is_alone;

    const MIB: u64 = 1 << 20;
    if !is_alone(memory_holds_the_blocks_and_a_tensor_for_each_thread) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // 16 tensors of 8 MiB as F32, and a bit over 1 MiB as Q4_0.
    let bytes = vec![0x3c_u8; 4 * MIB as usize];
    let names: Vec<_> = (0..16).map(|i| format!("{i}.weight")).collect();
    let view = TensorView::new(Dtype::BF16, &[2048, 1024], &bytes).unwrap();
    let tensors = names.iter().map(|name| (name, view));
    safetensors_core::save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    drop(bytes);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = LoadOptions::new().threads(2);
    let load = || quantize::load(&checkpoint, &Device::Cpu, &options, |_| Some(GgmlDType::Q4_0));
    let (loaded, taken) = growth(resident(), load);
    let blocks: usize = loaded.unwrap().values().map(|it| it.storage_size_in_bytes()).sum();
    // All numbers take 128 MiB.
    let most = blocks as u64 + 2 * 8 * MIB + 16 * MIB;
    assert!(taken < most, "{} MiB of at most {}", taken / MIB, most / MIB);
}
