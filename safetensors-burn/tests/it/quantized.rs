//! Quantised weights: refused, as numbers, or as they are stored. The suite of all adapters reads
//! every scheme.

use std::fs;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors_burn::{
    Burn, CheckpointStore, ModuleSnapshot, ModuleStore, bridge, share_checkpoint, share_tensor,
};
use safetensors_core::framework::Framework;
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, Limits, LoadOptions, SaveOptions, TensorView, Widening, serialize,
};
use safetensors_testing::quantized::{Quantized, check_error};

#[derive(Module, Debug)]
struct Floats<const D: usize> {
    w: Param<Tensor<D>>,
}

fn floats<const D: usize>(shape: [usize; D]) -> Floats<D> {
    let w = Tensor::full(shape, 7.0, &Device::default());
    Floats { w: Param::initialized(ParamId::new(), w) }
}

fn options(quantized: QuantizedWeights) -> LoadOptions {
    LoadOptions::new().quantized(quantized)
}

fn same(what: &str, found: &TensorData, expected: &TensorData) {
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert!(found.as_bytes() == expected.as_bytes(), "{what}");
}

#[test]
fn sharing_refuses_codes_and_shares_plain_tensors() {
    for fixture in Quantized::kinds() {
        let opened =
            Checkpoint::open_by(fixture.model(), &Limits::default(), |path| Ok(fs::read(path)?));
        let checkpoint = Arc::new(opened.unwrap());
        let weights = checkpoint.quantized_weights().unwrap();
        let what = &*fixture.name;
        let error = share_checkpoint(&checkpoint, Widening::Lossless).unwrap_err();
        check_error(what, &error, &weights[0]);
        for weight in &weights {
            for name in [&weight.name, &weight.tensors[0]] {
                let error = share_tensor(&checkpoint, name, Widening::Lossless).unwrap_err();
                check_error(what, &error, weight);
            }
        }
        let is_codes = |name: &str| weights.iter().any(|weight| weight.tensors[0] == name);
        for plain in checkpoint.tensors().filter(|tensor| !is_codes(tensor.name())) {
            share_tensor(&checkpoint, plain.name(), Widening::Lossless).unwrap();
        }
    }
}

/// A file with the weight `w`, which is 0.5 and 1: the codes of 1 and 2, and their scale.
fn bytes(scales: usize) -> Vec<u8> {
    let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let (shape, values) = ([scales], vec![0.5_f32; scales]);
    let scales = TensorView::from_slice(&shape, &values).unwrap();
    serialize([("w", codes), ("w_scale", scales)], &SaveOptions::new()).unwrap()
}

fn store(scales: usize, options: LoadOptions) -> CheckpointStore {
    CheckpointStore::from_bytes(Some(bytes(scales))).load_options(options)
}

#[test]
fn numbers_are_rounded_to_the_dtype_of_the_load_and_leave_no_scales() {
    for (options, dtype) in [
        (options(Numbers), DType::F32),
        (options(Numbers).floats_as(Dtype::BF16), DType::BF16),
        (options(Numbers).all_as(Dtype::F64), DType::F64),
    ] {
        let (mut module, mut store) = (floats([1, 2]), store(1, options));
        assert!(module.load_from(&mut store).unwrap().unused.is_empty());
        let tensor = store.get_tensor("w").unwrap().unwrap();
        for loaded in [module.w.to_data(), bridge::to_data(tensor).unwrap()] {
            assert_eq!(loaded.dtype(), dtype);
            assert_eq!(loaded.iter::<f32>().collect::<Vec<_>>(), [0.5, 1.0]);
        }
    }
}

#[test]
fn a_store_lists_codes_and_reads_the_other_tensors() {
    let mut refusing = store(1, options(Refuse));
    assert_eq!(refusing.keys().unwrap(), ["w", "w_scale"]);
    let codes = refusing.get_tensor("w").unwrap().unwrap();
    let message = bridge::to_data(codes).unwrap_err().to_string();
    assert!(message.contains("QuantizedWeights::Numbers"), "{message}");
    let scales = refusing.get_tensor("w_scale").unwrap().unwrap();
    assert_eq!(bridge::to_data(scales).unwrap(), TensorData::from([0.5_f32]));
    let result = floats([1, 2]).load_from(&mut store(1, options(Stored))).unwrap();
    assert_eq!(result.unused, ["w_scale"]);
}

#[test]
fn scales_of_another_shape_are_an_error_of_their_weight() {
    for quantized in [Refuse, Numbers] {
        let error = floats([1, 2]).load_from(&mut store(3, options(quantized))).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
        assert!(error.to_string().contains("w_scale"), "{error}");
    }
    // Codes are no mismatch of a parameter, which these options would pass over.
    let mut module = floats([1, 2]);
    let mut partly = store(1, options(Refuse)).allow_partial(true).validate(false);
    let error = module.load_from(&mut partly).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
    assert_eq!(module.w.to_data(), TensorData::from([[7.0_f32; 2]]));
}

#[derive(Module, Debug)]
struct Model {
    layer: Linear,
}

#[test]
fn the_error_of_a_quantised_pytorch_layer_suggests_how_to_load_it() {
    let fixture = Quantized::named("gptq-v1-4bits");
    let numbers = fixture.open().dequantized().unwrap();
    let weight = &fixture.open().quantized_weights().unwrap()[0];
    let expected = numbers.tensor("layer.weight").unwrap().read().unwrap();
    let &[outputs, inputs] = expected.shape() else { panic!() };
    let new = || {
        let layer = LinearConfig::new(inputs, outputs).with_bias(false);
        Model { layer: layer.init(&Device::default()) }
    };
    let store = |quantized| {
        let store = CheckpointStore::from_file(fixture.model()).pytorch(true);
        store.load_options(options(quantized))
    };
    for mut refused in [store(Refuse), store(Refuse).allow_partial(true), store(Stored)] {
        check_error("GPTQ", &new().load_from(&mut refused).unwrap_err(), weight);
    }
    let result = new().load_from(&mut store(Stored).allow_partial(true)).unwrap();
    assert!(result.applied.is_empty());

    let mut model = new();
    model.load_from(&mut store(Numbers)).unwrap();
    let loaded = model.layer.weight.val().transpose().to_data();
    same("layer.weight", &loaded, &Burn::from_exact(expected, &()).unwrap());
}
