//! Casts, and the other options.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Var};
use half::bf16;
use safetensors_candle::train::StateOptions;
use safetensors_core::convert::Overflow;
use safetensors_core::error::Mismatch;
use safetensors_core::{ConvertOptions, Dtype, ErrorKind, LoadOptions, TensorBuf};

use super::support::{get, map, mismatches, quick, save_bufs, values, var};

use crate::common::place;

fn zeros(dtype: DType) -> Var {
    Var::zeros(2, dtype, &Device::Cpu).unwrap()
}

#[test]
fn each_tensor_is_cast_to_the_dtype_of_its_variable() {
    let (_dir, path) = place("a.safetensors");
    let half = || TensorBuf::from_vec(vec![2], [1.5, -2.0].map(bf16::from_f32).to_vec()).unwrap();
    let wide = TensorBuf::from_vec(vec![2], vec![0.1_f64, 3.0]).unwrap();
    let ids = TensorBuf::from_vec(vec![2], vec![1_i64, 255]).unwrap();
    let bufs = [("a", half()), ("b", wide), ("c", ids), ("d", half())];
    save_bufs(&path, &bufs, &quick());
    let dtypes = [("a", DType::F32), ("b", DType::F32), ("c", DType::U8), ("d", DType::F64)];
    let fresh = map(dtypes.map(|(name, dtype)| (name, zeros(dtype))));
    StateOptions::new().cast(true).load(&path, &fresh).unwrap();
    assert_eq!(get(&fresh, "a").to_vec1::<f32>().unwrap(), [1.5, -2.0]);
    assert_eq!(get(&fresh, "b").to_vec1::<f32>().unwrap(), [0.1, 3.0]);
    assert_eq!(get(&fresh, "c").to_vec1::<u8>().unwrap(), [1, 255]);
    assert_eq!(get(&fresh, "d").to_vec1::<f64>().unwrap(), [1.5, -2.0]);

    // A conversion that the options of the load ask for must give the dtype of the variable.
    let options = StateOptions::new().load_options(LoadOptions::new().floats_as(Dtype::F32));
    let error = options.load(&path, &fresh).unwrap_err();
    let expected = [
        Mismatch::Dtype { name: "c".into(), expected: Dtype::U8, found: Dtype::I64 },
        Mismatch::Dtype { name: "d".into(), expected: Dtype::F64, found: Dtype::BF16 },
    ];
    assert_eq!(mismatches(&error), expected);
}

#[test]
fn a_value_that_its_variable_cannot_hold_sets_nothing() {
    let (_dir, path) = place("a.safetensors");
    let large = TensorBuf::from_vec(vec![2], vec![1.0_f64, 1e300]).unwrap();
    let small = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    save_bufs(&path, &[("a", small), ("z", large)], &quick());

    let fresh = map([("a", zeros(DType::F32)), ("z", zeros(DType::F32))]);
    let refuse = ConvertOptions::new().overflow(Overflow::Error);
    let options =
        StateOptions::new().cast(true).load_options(LoadOptions::new().convert_options(refuse));
    let before = values(&fresh);
    let error = options.load(&path, &fresh).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("z"), path.to_str()));
    assert_eq!(values(&fresh), before);

    // An integer that is too large is an error in any case.
    let integers = map([("a", zeros(DType::F32)), ("z", zeros(DType::U8))]);
    let before = values(&integers);
    let error = StateOptions::new().cast(true).load(&path, &integers).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, .. }), "{error}");
    assert_eq!(values(&integers), before);

    // By default a float becomes infinity, as in PyTorch.
    StateOptions::new().cast(true).load(&path, &fresh).unwrap();
    assert_eq!(get(&fresh, "z").to_vec1::<f32>().unwrap(), [1.0, f32::INFINITY]);
}

#[test]
fn a_dtype_without_a_conversion_is_a_difference() {
    let (_dir, path) = place("a.safetensors");
    // C64 converts to nothing but pairs of floats.
    let complex = safetensors_core::TensorView::new(Dtype::C64, &[2], &[0; 16]).unwrap();
    let complex = TensorBuf::from_view(&complex).unwrap();
    save_bufs(&path, &[("a", complex)], &quick());
    let pairs = map([("a", Var::ones((2, 2), DType::BF16, &Device::Cpu).unwrap())]);
    StateOptions::new().cast(true).load(&path, &pairs).unwrap();
    assert_eq!(get(&pairs, "a").to_vec2::<bf16>().unwrap(), [[bf16::ZERO; 2]; 2]);

    let asked = LoadOptions::new().all_as(Dtype::F8_E8M0);
    let options = StateOptions::new().load_options(asked);
    let error = options.load(&path, &pairs).unwrap_err();
    assert!(matches!(mismatches(&error), [Mismatch::Dtype { .. }]), "{error}");
}

#[test]
fn missing_and_extra_tensors_are_reported_where_they_are_allowed() {
    let (_dir, path) = place("a.safetensors");
    let buf = || TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    save_bufs(&path, &[("b", buf()), ("y", buf()), ("x", buf())], &quick());
    let fresh = map([("c", var(&[2], 1)), ("b", var(&[2], 2)), ("a", var(&[2], 3))]);
    let options = StateOptions::new().allow_missing(true).allow_extra(true);
    let loaded = options.load(&path, &fresh).unwrap();
    assert_eq!([loaded.missing, loaded.extra], [["a", "c"], ["x", "y"]]);
    assert_eq!(get(&fresh, "b").to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(get(&fresh, "a").to_vec1::<f32>().unwrap(), var(&[2], 3).to_vec1::<f32>().unwrap());
}

#[test]
fn only_needed_tensors_are_read() {
    let (_dir, path) = place("a.safetensors");
    let large = TensorBuf::from_vec(vec![1 << 20], vec![1_u8; 1 << 20]).unwrap();
    let small = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    save_bufs(&path, &[("a", small), ("large", large)], &quick());
    let read = Arc::new(AtomicU64::new(0));
    let total = read.clone();
    let load = LoadOptions::new().progress(move |progress| {
        total.store(progress.bytes_done, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    let options = StateOptions::new().allow_extra(true).load_options(load);
    options.load(&path, &map([("a", zeros(DType::F32))])).unwrap();
    assert_eq!(read.load(Ordering::Relaxed), 8);
}
