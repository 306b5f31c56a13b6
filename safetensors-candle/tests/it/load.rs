//! The memory of elements that are loaded, and devices that do not take them.

use crate::common::{patterned, place, save_bufs};
use candle_core::Device;
use safetensors_candle::Candle;
use safetensors_core::framework::Framework;
use safetensors_core::{Dtype, ErrorKind, TensorBuf};

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
    assert!(text.contains("cannot place F8_E8M0 elements on a CUDA device"), "{text}");
    assert_eq!((error.tensor(), error.file()), (Some("scales"), path.to_str()));
}
