//! Quantised weights and their scales.

use safetensors_core::convert::ScaledWeights;
use safetensors_core::{TensorBuf, serialize};

use super::*;

#[derive(Module, Debug)]
struct Quantised {
    w: Param<Tensor<2>>,
}

fn module() -> Quantised {
    Quantised { w: initialized(Tensor::from_data([[7.0_f32, 7.0]], &Device::default())) }
}

/// A file with the weight `w`, which is 0.5 and 1: the codes of 1 and 2, and their scale.
fn file(path: &Path, scales: &[usize]) {
    let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let weight = TensorBuf::from_view(&weight).unwrap();
    let values = vec![0.5_f32; scales.iter().product()];
    let scales = TensorBuf::from_vec(scales.to_vec(), values).unwrap();
    let tensors = [("w", &weight), ("w_scale_inv", &scales)];
    std::fs::write(path, serialize(tensors, &SaveOptions::new()).unwrap()).unwrap();
}

fn store(path: &Path, options: LoadOptions) -> CheckpointStore {
    CheckpointStore::from_file(path).load_options(options)
}

fn dequantize() -> LoadOptions {
    LoadOptions::new().scaled_weights(ScaledWeights::Dequantize)
}

#[test]
fn weights_are_multiplied_by_their_scales() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    file(&path, &[1, 1]);
    for (options, dtype) in [
        (dequantize(), DType::F32),
        (dequantize().floats_as(Dtype::BF16), DType::BF16),
        (dequantize().all_as(Dtype::F64), DType::F64),
    ] {
        let mut module = module();
        let mut store = store(&path, options);
        let result = module.load_from(&mut store).unwrap();
        assert_eq!((result.applied, result.unused), (vec!["w".to_string()], vec![]));
        let loaded = module.w.to_data();
        assert_eq!(loaded.dtype(), dtype);
        assert_eq!(loaded.iter::<f32>().collect::<Vec<_>>(), [0.5, 1.0]);

        let tensor = store.get_tensor("w").unwrap().unwrap();
        let data = bridge::to_data(tensor).unwrap();
        assert_eq!(data.dtype(), dtype);
        assert_eq!(data.iter::<f32>().collect::<Vec<_>>(), [0.5, 1.0]);
    }
}

#[test]
fn weights_are_not_converted_without_their_scales() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    file(&path, &[1, 1]);
    let refused = LoadOptions::new().floats_as(Dtype::F32);
    let mut module = module();
    let mut store = store(&path, refused.clone());
    let error = module.load_from(&mut store).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    assert_eq!(module.w.to_data(), TensorData::from([[7.0_f32, 7.0]]));
    // Other tensors are not concerned.
    assert_eq!(store.keys().unwrap(), ["w", "w_scale_inv"]);
    let tensor = store.get_tensor("w").unwrap().unwrap();
    let message = bridge::to_data(tensor).unwrap_err().to_string();
    assert!(message.contains("w_scale_inv"), "{message}");
    let scales = store.get_tensor("w_scale_inv").unwrap().unwrap();
    assert_eq!(bridge::to_data(scales).unwrap(), TensorData::from([[0.5_f32]]));

    let raw = refused.scaled_weights(ScaledWeights::Raw);
    let result = module.load_from(&mut self::store(&path, raw)).unwrap();
    assert_eq!(result.unused, ["w_scale_inv"]);
    assert_eq!(module.w.to_data(), TensorData::from([[1.0_f32, 2.0]]));
}

#[test]
fn scales_of_another_shape_are_an_error_of_their_weight() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    file(&path, &[3]);
    let error = module().load_from(&mut store(&path, dequantize())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
    let scales = (Some("w_scale_inv"), path.to_str());
    assert_eq!((error.tensor(), error.file()), scales);
}
