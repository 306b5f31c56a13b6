//! Loads every dtype into candle and saves it again. Also tests widening, refused widening, and
//! errors that name the tensor and the file.

use crate::common::{patterned, read_bufs, save_bufs, save_tensors};
use candle_core::{DType, Device, Tensor};
use half::f16;
use safetensors_candle::Candle;
use safetensors_core::element::{F8E4M3Fnuz, F8E5M2Fnuz};
use safetensors_core::framework::{Framework, Samples, Support};
use safetensors_core::{Dtype, ErrorKind, LoadOptions, TensorBuf, TensorView, Widening};

/// Shapes that every dtype can have: elements of sub-byte dtypes fill whole bytes.
const SHAPES: [&[usize]; 4] = [&[2, 3, 4], &[8], &[0, 3], &[4, 0]];

fn exact() -> LoadOptions {
    LoadOptions::new().widening(Widening::Refuse)
}

#[test]
fn exact_dtypes_come_back_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    for &dtype in Dtype::ALL {
        if Candle::support(dtype) != Support::Exact {
            continue;
        }
        for shape in SHAPES {
            save_bufs(&first, &[("t", patterned(dtype, shape))]);
            let tensors = safetensors_candle::load_with(&first, &Device::Cpu, &exact()).unwrap();
            assert_eq!(tensors["t"].dims(), shape, "{dtype}");
            save_tensors(&second, &[("t", &tensors["t"])]).unwrap();
            assert_eq!(
                std::fs::read(&first).unwrap(),
                std::fs::read(&second).unwrap(),
                "{dtype} {shape:?}"
            );
        }
    }
}

#[test]
fn exact_dtypes_have_their_values() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(
        &path,
        &[
            ("scalar", TensorBuf::from_vec(vec![], vec![-2.5_f64]).unwrap()),
            (
                "half",
                TensorBuf::from_vec(vec![2], vec![f16::from_f32(0.5), f16::INFINITY]).unwrap(),
            ),
            ("short", TensorBuf::from_vec(vec![1, 2], vec![-1_i16, 300]).unwrap()),
        ],
    );
    let tensors = safetensors_candle::load(&path, &Device::Cpu).unwrap();
    assert_eq!(tensors["scalar"].to_scalar::<f64>().unwrap(), -2.5);
    assert_eq!(tensors["half"].to_vec1::<f16>().unwrap(), [f16::from_f32(0.5), f16::INFINITY]);
    assert_eq!(tensors["short"].to_vec2::<i16>().unwrap(), [[-1, 300]]);
}

#[test]
fn widened_dtypes_keep_their_values_and_are_refused_if_exact() {
    let dir = tempfile::tempdir().unwrap();
    let (path, again) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let mut count = 0;
    for &dtype in Dtype::ALL {
        let Support::Widened(to) = Candle::support(dtype) else { continue };
        count += 1;
        for shape in SHAPES {
            let buf = patterned(dtype, shape);
            save_bufs(&path, &[("t", buf.clone())]);
            let tensors = safetensors_candle::load(&path, &Device::Cpu).unwrap();
            save_tensors(&again, &[("t", &tensors["t"])]).unwrap();
            let wide = safetensors_core::convert::widen(buf, to).unwrap();
            let read = &read_bufs(&again)["t"];
            assert_eq!(
                (read.dtype(), read.shape(), read.bytes()),
                (to, wide.shape(), wide.bytes()),
                "{dtype}"
            );

            let error = safetensors_candle::load_with(&path, &Device::Cpu, &exact()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::WouldWiden { framework: "candle", .. }),
                "{error}"
            );
            assert_eq!((error.tensor(), error.file()), (Some("t"), path.to_str()));
        }
    }
    assert_eq!(count, 8);
}

#[test]
fn widened_values_are_what_they_mean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(
        &path,
        &[
            ("bool", TensorBuf::from_vec(vec![2], vec![true, false]).unwrap()),
            ("i8", TensorBuf::from_vec(vec![2], vec![-128_i8, 5]).unwrap()),
            ("u16", TensorBuf::from_vec(vec![1], vec![u16::MAX]).unwrap()),
            ("u64", TensorBuf::from_vec(vec![1], vec![i64::MAX as u64]).unwrap()),
            (
                "e4m3fnuz",
                TensorBuf::from_vec(vec![2], vec![F8E4M3Fnuz(0x40), F8E4M3Fnuz(0x80)]).unwrap(),
            ),
            ("e5m2fnuz", TensorBuf::from_vec(vec![1], vec![F8E5M2Fnuz(0x40)]).unwrap()),
        ],
    );
    let tensors = safetensors_candle::load(&path, &Device::Cpu).unwrap();
    assert_eq!(tensors["bool"].to_vec1::<u8>().unwrap(), [1, 0]);
    assert_eq!(tensors["i8"].to_vec1::<i16>().unwrap(), [-128, 5]);
    assert_eq!(tensors["u16"].to_vec1::<u32>().unwrap(), [65_535]);
    assert_eq!(tensors["u64"].to_vec1::<i64>().unwrap(), [i64::MAX]);
    let fnuz = tensors["e4m3fnuz"].to_vec1::<f16>().unwrap();
    assert!(fnuz[0] == f16::ONE && fnuz[1].is_nan());
    assert_eq!(tensors["e5m2fnuz"].to_vec1::<f16>().unwrap(), [f16::ONE]);
}

#[test]
fn a_u64_that_does_not_fit_names_tensor_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(&path, &[("seeds", TensorBuf::from_vec(vec![2], vec![1, 1_u64 << 63]).unwrap())]);
    let error = safetensors_candle::load(&path, &Device::Cpu).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, to: Dtype::I64, .. }),
        "{error}"
    );
    let message = error.to_string();
    assert!(message.contains("\"seeds\"") && message.contains("a.safetensors"), "{message}");
}

#[test]
fn a_byte_that_is_no_bool_names_tensor_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let view = TensorView::new(Dtype::BOOL, &[2], &[1, 2]).unwrap();
    safetensors_core::save(&path, [("flags", view)], &Default::default()).unwrap();
    let error = safetensors_candle::load(&path, &Device::Cpu).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 1, found: 2 }), "{error}");
    assert!(error.to_string().contains("\"flags\"") && error.file() == path.to_str(), "{error}");
}

#[test]
fn misaligned_views_are_copied_into_place() {
    let bytes: Vec<u8> = [0_u8]
        .into_iter()
        .chain([1.0_f64, 2.0].iter().flat_map(|value| value.to_le_bytes()))
        .collect();
    let view = TensorView::new(Dtype::F64, &[2], &bytes[1..]).unwrap();
    let tensor = Candle::from_view(&view, &Device::Cpu, Widening::Refuse).unwrap();
    assert_eq!(tensor.to_vec1::<f64>().unwrap(), [1.0, 2.0]);
}

#[test]
fn elements_are_moved_not_copied() {
    let buf = TensorBuf::from_vec(vec![1000], vec![1.0_f32; 1000]).unwrap();
    let address = buf.bytes().as_ptr();
    let tensor = Candle::from_exact(buf, &Device::Cpu).unwrap();
    let (storage, _) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(candle_core::CpuStorage::F32(values)) = &*storage else {
        panic!("{storage:?}")
    };
    assert_eq!(values.as_ptr().cast(), address);
}

#[test]
fn shards_load_as_one() {
    let dir = tempfile::tempdir().unwrap();
    save_bufs(&dir.path().join("a.safetensors"), &[("x", patterned(Dtype::F32, &[3]))]);
    save_bufs(&dir.path().join("b.safetensors"), &[("y", patterned(Dtype::I64, &[2]))]);
    let index = r#"{"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#;
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let tensors = safetensors_candle::load(dir.path(), &Device::Cpu).unwrap();
    assert_eq!((tensors["x"].dtype(), tensors["y"].dtype()), (DType::F32, DType::I64));
}

/// Without the `cuda` feature, candle has a CUDA device that accepts no tensor.
#[cfg(not(feature = "cuda"))]
#[test]
fn a_device_that_cannot_hold_a_dtype_is_an_error_that_names_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(&path, &[("scales", patterned(Dtype::F8_E8M0, &[4]))]);
    let error =
        safetensors_candle::load(&path, &Device::Cuda(candle_core::CudaDevice)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Framework { framework: "candle", .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("\"scales\"")
            && text.contains("cannot place F8_E8M0 elements on a CUDA device"),
        "{text}"
    );
    assert_eq!(error.file(), path.to_str());
}

#[test]
fn loaded_tensors_compute() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    save_bufs(
        &path,
        &[("w", TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap())],
    );
    let tensors = safetensors_candle::load(&path, &Device::Cpu).unwrap();
    let product =
        tensors["w"].matmul(&Tensor::new(&[[1.0_f32], [1.0]], &Device::Cpu).unwrap()).unwrap();
    assert_eq!(product.to_vec2::<f32>().unwrap(), [[3.0], [7.0]]);
}

#[test]
fn samples_of_a_directory_are_stacked() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..3_u8 {
        let x = TensorBuf::from_vec(vec![2], vec![f32::from(i); 2]).unwrap();
        let flag = TensorBuf::from_vec(vec![1], vec![i == 1]).unwrap();
        save_bufs(&dir.path().join(format!("{i}.safetensors")), &[("x", x), ("flag", flag)]);
    }
    let samples = Samples::<Candle>::open(dir.path(), Device::Cpu).unwrap();
    let all = samples.for_each_batch([2, 0, 1], 3, |batch| {
        let (x, flag) = (&batch.tensors["x"], &batch.tensors["flag"]);
        assert_eq!(x.to_vec2::<f32>()?, [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]);
        // candle has no booleans.
        assert_eq!(flag.to_vec2::<u8>()?, [[0], [0], [1]]);
        Ok::<(), Box<dyn std::error::Error>>(())
    });
    all.unwrap();
}
