//! Single tensors: dtypes, shapes, errors.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Error};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use float8::F8E4M3;
use half::f16;
use safetensors_candle::{CheckpointBackend, IntoCore, var_builder};
use safetensors_core::convert::Overflow;
use safetensors_core::element::{F4Packed, F8E8M0};
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions, TensorBuf, TensorView, Widening,
};
use tempfile::TempDir;

use crate::common::{patterned, place, save_bufs, without_backtrace};

fn checkpoint() -> (TempDir, PathBuf) {
    let (dir, path) = place("model.safetensors");
    save_bufs(
        &path,
        &[
            (
                "layer.0.weight",
                TensorBuf::from_vec(vec![2, 3], vec![0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap(),
            ),
            ("ids", TensorBuf::from_vec(vec![2], vec![3_i64, 4]).unwrap()),
            ("mask", TensorBuf::from_vec(vec![2], vec![true, false]).unwrap()),
            ("rope", patterned(Dtype::C64, &[2, 3])),
            ("seeds", TensorBuf::from_vec(vec![1], vec![u64::MAX]).unwrap()),
            ("scales", TensorBuf::from_vec(vec![2], vec![F8E8M0(127), F8E8M0(128)]).unwrap()),
            (
                "fp8",
                TensorBuf::from_vec(
                    vec![2],
                    vec![F8E4M3::from_bits(0x38), F8E4M3::from_bits(0xfe)],
                )
                .unwrap(),
            ),
            ("blocks", TensorBuf::from_vec(vec![2], vec![F4Packed(0x21)]).unwrap()),
        ],
    );
    (dir, path)
}

fn builder(path: &PathBuf, dtype: DType) -> VarBuilder<'static> {
    var_builder(path, dtype, &Device::Cpu).unwrap()
}

#[test]
fn tensors_are_returned_in_the_requested_dtype_below_the_prefix() {
    let (_dir, path) = checkpoint();
    let weight = builder(&path, DType::F64).pp("layer").pp(0).get((2, 3), "weight").unwrap();
    assert_eq!(weight.dtype(), DType::F64);
    assert_eq!(weight.to_vec2::<f64>().unwrap(), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
    let ids = builder(&path, DType::F32).get(2, "ids").unwrap();
    assert_eq!(ids.to_vec1::<f32>().unwrap(), [3.0, 4.0]);
    let ids = builder(&path, DType::F32).get_unchecked_dtype("ids", DType::I64).unwrap();
    assert_eq!(ids.to_vec1::<i64>().unwrap(), [3, 4]);
    let mask = builder(&path, DType::U8).get(2, "mask").unwrap();
    assert_eq!(mask.to_vec1::<u8>().unwrap(), [1, 0]);
    let weight = builder(&path, DType::F32).get_unchecked("layer.0.weight").unwrap();
    assert_eq!(weight.dims(), [2, 3]);
}

#[test]
fn another_shape_is_candles_error_and_names_tensor_and_file() {
    let (_dir, path) = checkpoint();
    let error =
        without_backtrace(builder(&path, DType::F32).get((3, 2), "layer.0.weight").unwrap_err());
    let Error::UnexpectedShape { msg, expected, got } = &error else { panic!("{error}") };
    assert_eq!((expected.dims(), got.dims()), (&[3, 2][..], &[2, 3][..]));
    assert!(msg.contains("layer.0.weight") && msg.contains(path.to_str().unwrap()), "{msg}");
    // An equal number of elements is not enough.
    assert!(builder(&path, DType::F32).get(6, "layer.0.weight").is_err());
}

#[test]
fn complex_numbers_are_requested_as_pairs() {
    let (_dir, path) = checkpoint();
    let builder = builder(&path, DType::F32);
    assert_eq!(builder.get((2, 3, 2), "rope").unwrap().dims(), [2, 3, 2]);
    let error = without_backtrace(builder.get((2, 3), "rope").unwrap_err());
    let Error::UnexpectedShape { got, .. } = &error else { panic!("{error}") };
    assert_eq!(got.dims(), [2, 3, 2]);
}

#[test]
fn small_floats_are_converted_unless_requested_in_their_dtype() {
    let (_dir, path) = checkpoint();
    let scales =
        builder(&path, DType::BF16).get(2, "scales").unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(scales.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    let blocks = builder(&path, DType::F32).get(2, "blocks").unwrap();
    assert_eq!(blocks.to_vec1::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!(builder(&path, DType::F8E8M0).get(2, "scales").unwrap().dtype(), DType::F8E8M0);
    assert_eq!(builder(&path, DType::F4).get(2, "blocks").unwrap().dtype(), DType::F4);
    let fp8 = builder(&path, DType::F64).get(2, "fp8").unwrap();
    assert_eq!(fp8.to_vec1::<f64>().unwrap(), [1.0, -448.0]);
    assert_eq!(builder(&path, DType::F8E4M3).get(2, "fp8").unwrap().dtype(), DType::F8E4M3);
    let error = builder(&path, DType::F4).get(2, "ids").unwrap_err();
    assert!(error.to_string().contains("\"ids\""), "{error}");
}

#[test]
fn shape_and_presence_need_no_data() {
    let (_dir, path) = checkpoint();
    let builder = builder(&path, DType::F32);
    // From here on every read of data fails.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(16).unwrap();
    assert!(builder.contains_tensor("ids"));
    let error = without_backtrace(builder.get(3, "ids").unwrap_err());
    assert!(matches!(error, Error::UnexpectedShape { .. }), "{error}");

    let error = builder.get(2, "ids").unwrap_err();
    let message = error.to_string();
    assert!(message.contains("\"ids\"") && message.contains("model.safetensors"), "{message}");
    let ours = error.into_core();
    assert!(matches!(ours.kind(), ErrorKind::Io(_)), "{ours}");
    assert_eq!((ours.tensor(), ours.file()), (Some("ids"), path.to_str()));
}

#[test]
fn our_errors_pass_unchanged_through_candles() {
    let (_dir, path) = checkpoint();
    let error = builder(&path, DType::I64).get(1, "seeds").unwrap_err();
    let message = error.to_string();
    assert!(message.contains("\"seeds\"") && message.contains("model.safetensors"), "{message}");
    assert!(matches!(error.into_core().kind(), ErrorKind::DoesNotFit { index: 0, .. }));

    for name in ["ids", "mask", "rope", "layer.0.weight"] {
        let error = builder(&path, DType::F6E2M3).get_unchecked(name).unwrap_err().into_core();
        let ErrorKind::NoConversion { to, .. } = error.kind() else { panic!("{error}") };
        assert_eq!(*to, Dtype::F6_E2M3);
        assert_eq!((error.tensor(), error.file()), (Some(name), path.to_str()));
    }
}

#[test]
fn exact_loading_refuses_to_widen() {
    let (_dir, path) = checkpoint();
    let exact = LoadOptions::new().widening(Widening::Refuse);
    let backend = CheckpointBackend::new_with(Checkpoint::open(&path).unwrap(), &exact).unwrap();
    let get = |name: &str, dtype: DType| backend.get_unchecked(name, dtype, &Device::Cpu);
    let error = get("mask", DType::U8).unwrap_err().into_core();
    assert!(matches!(error.kind(), ErrorKind::WouldWiden { dtype: Dtype::BOOL, .. }), "{error}");
    assert_eq!(error.tensor(), Some("mask"));
    // A requested conversion does not count as widening.
    assert!(get("scales", DType::F32).is_ok());
    assert!(get("ids", DType::I64).is_ok());
}

#[test]
fn options_set_the_overflow_rule_and_the_progress_callback() {
    let (_dir, path) = place("model.safetensors");
    let values = [1e9_f32, 1.0];
    let bytes = values.map(f32::to_le_bytes).concat();
    let complex =
        TensorBuf::from_view(&TensorView::new(Dtype::C64, &[1], &bytes).unwrap()).unwrap();
    let large = TensorBuf::from_vec(vec![2], values.into()).unwrap();
    save_bufs(&path, &[("complex", complex), ("large", large)]);
    let told = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&told);
    let saturate = LoadOptions::new()
        .convert_options(ConvertOptions::new().overflow(Overflow::Saturate))
        // The model's dtype applies. The dtype of the options has no effect.
        .floats_as(Dtype::F64)
        .progress(move |progress| {
            counting.store(progress.bytes_done, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
    let backend = CheckpointBackend::new_with(Checkpoint::open(&path).unwrap(), &saturate).unwrap();
    for name in ["large", "complex"] {
        let tensor =
            backend.get_unchecked(name, DType::F16, &Device::Cpu).unwrap().flatten_all().unwrap();
        assert_eq!(tensor.to_vec1::<f16>().unwrap(), [f16::MAX, f16::ONE], "{name}");
        assert!(told.swap(0, Ordering::Relaxed) > 0, "{name}");
    }
}
