//! Quantised weights and their scales, loaded into variables.

use candle_core::{DType, Device, Var};
use candle_nn::VarMap;
use safetensors_candle::train::StateOptions;
use safetensors_core::convert::ScaledWeights;
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, Error, ErrorKind, LoadOptions};
use tempfile::TempDir;

use super::support::{extra, fp8, get, map, mismatches, quick, save_bufs, scale, values};

fn dequantize() -> LoadOptions {
    LoadOptions::new().scaled_weights(ScaledWeights::Dequantize)
}

/// Variables of these dtypes, all of shape `[2]`, or `[]` for scales.
fn variables<const N: usize>(dtypes: [(&'static str, DType); N]) -> VarMap {
    map(dtypes.map(|(name, dtype)| {
        let shape: &[usize] = if name.contains("_scale") { &[] } else { &[2] };
        (name, Var::zeros(shape, dtype, &Device::Cpu).unwrap())
    }))
}

/// A file with the weight `w`, which is 0.5 and 1, and its scale.
fn file() -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(&path, &[("w", fp8()), ("w_scale", scale())], &quick());
    (dir, path)
}

/// A load that must fail and set nothing.
fn fails(path: &std::path::Path, variables: &VarMap, options: &StateOptions) -> Error {
    let before = values(variables);
    let error = options.load(path, variables).unwrap_err();
    assert_eq!(values(variables), before, "{error}");
    error
}

#[test]
fn a_weight_is_dequantised_into_a_variable_and_its_scales_are_not_extra() {
    let (_dir, path) = file();
    for cast in [false, true] {
        let options = StateOptions::new().cast(cast).load_options(dequantize());
        let fresh = variables([("w", DType::F32)]);
        let loaded = options.load(&path, &fresh).unwrap();
        assert_eq!(get(&fresh, "w").to_vec1::<f32>().unwrap(), [0.5, 1.0]);
        assert_eq!((loaded.missing, loaded.extra), (vec![], vec![]));
    }
    for dtype in [DType::BF16, DType::F64] {
        let fresh = variables([("w", dtype)]);
        let options = StateOptions::new().cast(true).load_options(dequantize());
        options.load(&path, &fresh).unwrap();
        let wide = get(&fresh, "w").to_dtype(DType::F32).unwrap();
        assert_eq!(wide.to_vec1::<f32>().unwrap(), [0.5, 1.0]);
    }
}

#[test]
fn scales_may_be_variables_of_their_own() {
    let (_dir, path) = file();
    let both = variables([("w", DType::F32), ("w_scale", DType::F32)]);
    let options = StateOptions::new().cast(true).load_options(dequantize());
    options.load(&path, &both).unwrap();
    assert_eq!(get(&both, "w").to_vec1::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!(get(&both, "w_scale").to_scalar::<f32>().unwrap(), 0.5);

    // The codes and the scales, as the file has them.
    let raw = variables([("w", DType::F8E4M3), ("w_scale", DType::F32)]);
    for options in [options, StateOptions::new()] {
        options.load(&path, &raw).unwrap();
        let codes = get(&raw, "w").to_dtype(DType::F32).unwrap();
        assert_eq!(codes.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(get(&raw, "w_scale").to_scalar::<f32>().unwrap(), 0.5);
    }
}

#[test]
fn scales_that_are_not_applied_are_extra() {
    let (_dir, path) = file();
    // The variable gets the codes, which are worth nothing without their scale.
    let codes = variables([("w", DType::F8E4M3)]);
    let options = StateOptions::new().cast(true).load_options(dequantize());
    assert_eq!(mismatches(&fails(&path, &codes, &options)), [extra("w_scale")]);
    // Neither is needed.
    let other = variables([]);
    assert_eq!(mismatches(&fails(&path, &other, &options)), [extra("w"), extra("w_scale")]);
}

#[test]
fn a_dequantised_weight_needs_a_variable_of_its_dtype() {
    let (_dir, path) = file();
    for (dtype, expected) in [(DType::F8E4M3, Dtype::F8_E4M3), (DType::BF16, Dtype::BF16)] {
        let fresh = variables([("w", dtype)]);
        let error = fails(&path, &fresh, &StateOptions::new().load_options(dequantize()));
        let different = Mismatch::Dtype { name: "w".into(), expected, found: Dtype::F32 };
        assert_eq!(mismatches(&error), [different]);
    }
}

#[test]
fn a_weight_is_not_converted_without_its_scales() {
    let (_dir, path) = file();
    let fresh = variables([("w", DType::F32), ("w_scale", DType::F32)]);
    let options = StateOptions::new().cast(true);
    let error = fails(&path, &fresh, &options);
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));

    let raw = LoadOptions::new().scaled_weights(ScaledWeights::Raw);
    options.load_options(raw).load(&path, &fresh).unwrap();
    assert_eq!(get(&fresh, "w").to_vec1::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn wrong_scales_are_an_error_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let fresh = variables([("w", DType::F32)]);
    let options = StateOptions::new().load_options(dequantize());
    let wrong = safetensors_core::TensorBuf::from_vec(vec![3], vec![0.5_f32; 3]).unwrap();
    save_bufs(&path, &[("w", fp8()), ("w_scale", wrong)], &quick());
    let error = fails(&path, &fresh, &options);
    assert!(matches!(error.kind(), ErrorKind::WrongScales { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));

    let integers = safetensors_core::TensorBuf::from_vec(vec![1], vec![1_u8]).unwrap();
    save_bufs(&path, &[("w", fp8()), ("w_scale", integers)], &quick());
    let error = fails(&path, &fresh, &options);
    assert!(matches!(error.kind(), ErrorKind::WrongDtype { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w_scale"), path.to_str()));
}
