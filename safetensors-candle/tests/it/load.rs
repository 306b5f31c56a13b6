//! The meaning of widened values, and the memory of elements that are loaded.

use crate::common::{patterned, place, save_bufs};
use candle_core::Device;
use half::f16;
use safetensors_candle::Candle;
use safetensors_core::element::{F8E4M3Fnuz, F8E5M2Fnuz};
use safetensors_core::framework::Framework;
use safetensors_core::{Dtype, ErrorKind, TensorBuf};

#[test]
fn widened_values_are_what_they_mean() {
    let (_dir, path) = place("a.safetensors");
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

/// Without the `cuda` feature, candle has a CUDA device that accepts no tensor.
#[cfg(not(feature = "cuda"))]
#[test]
fn a_device_that_cannot_hold_a_dtype_is_an_error_that_names_the_tensor() {
    let (_dir, path) = place("a.safetensors");
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
