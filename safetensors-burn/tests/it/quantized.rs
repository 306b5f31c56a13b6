//! Quantised weights: refused, as numbers, or as they are stored, by every way to load.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use safetensors_burn::{
    Burn, CheckpointStore, ModuleSnapshot, ModuleStore, bridge, load_with, share_checkpoint,
    share_tensor,
};
use safetensors_core::framework::{self, Framework};
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, Limits, LoadOptions, Result, SaveOptions, TensorView, Widening,
    serialize,
};
use safetensors_testing::quantized::{Case, Quantized, check_error};

#[derive(Module, Debug)]
struct Floats<const D: usize> {
    w: Param<Tensor<D>>,
}

#[derive(Module, Debug)]
struct Integers<const D: usize> {
    w: Param<Tensor<D, Int>>,
}

fn floats<const D: usize>(shape: [usize; D]) -> Floats<D> {
    let w = Tensor::full(shape, 7.0, &Device::default());
    Floats { w: Param::initialized(ParamId::new(), w) }
}

/// Loads a parameter of this shape and of the kind of this dtype.
fn load_parameter(
    store: &mut CheckpointStore,
    dtype: Dtype,
    shape: &[usize],
) -> Result<TensorData> {
    fn load<const D: usize>(
        store: &mut CheckpointStore,
        is_float: bool,
        shape: &[usize],
    ) -> Result<TensorData> {
        let shape: [usize; D] = shape.try_into().unwrap();
        if is_float {
            let mut module = floats(shape);
            let loaded = module.load_from(store);
            loaded
                .inspect_err(|_| assert!(module.w.to_data().iter::<f32>().all(|it| it == 7.0)))?;
            return Ok(module.w.to_data());
        }
        let w = Tensor::<D, Int>::zeros(shape, &Device::default());
        let mut module = Integers { w: Param::initialized(ParamId::new(), w) };
        module.load_from(store)?;
        Ok(module.w.to_data())
    }
    match shape.len() {
        2 => load::<2>(store, dtype.is_float(), shape),
        3 => load::<3>(store, dtype.is_float(), shape),
        _ => load::<4>(store, dtype.is_float(), shape),
    }
}

/// The store with a tensor of the file as the parameter `w`.
fn with_parameter(
    store: CheckpointStore,
    name: &str,
    quantized: QuantizedWeights,
) -> CheckpointStore {
    let pattern = format!("^{}$", name.replace('.', r"\."));
    store.with_key_remapping(pattern, "w").load_options(options(quantized))
}

fn options(quantized: QuantizedWeights) -> LoadOptions {
    LoadOptions::new().quantized(quantized)
}

/// Loads a tensor of this name, dtype and shape.
type Way = fn(&Path, &str, Dtype, &[usize], QuantizedWeights) -> Result<TensorData>;

const WAYS: &[(&str, Way)] = &[
    ("load_with", |path, name, _, _, quantized| {
        Ok(load_with(path, &options(quantized))?.remove(name).unwrap())
    }),
    ("framework::load", |path, name, _, _, quantized| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let mut all = framework::load::<Burn>(&checkpoint, &(), &options(quantized))?;
        Ok(all.remove(name).unwrap())
    }),
    ("CheckpointStore", |path, name, dtype, shape, quantized| {
        let store = CheckpointStore::from_file(path);
        load_parameter(&mut with_parameter(store, name, quantized), dtype, shape)
    }),
    ("CheckpointStore, partly", |path, name, dtype, shape, quantized| {
        let store = CheckpointStore::from_file(path).allow_partial(true).validate(false);
        load_parameter(&mut with_parameter(store, name, quantized), dtype, shape)
    }),
    ("CheckpointStore::from_checkpoint", |path, name, dtype, shape, quantized| {
        let store = CheckpointStore::from_checkpoint(Checkpoint::open(path).unwrap());
        load_parameter(&mut with_parameter(store, name, quantized), dtype, shape)
    }),
];

fn same(what: &str, found: &TensorData, expected: &TensorData) {
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert!(found.as_bytes() == expected.as_bytes(), "{what}");
}

#[test]
fn every_way_refuses_codes_or_loads_the_numbers_or_the_codes_of_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    let mut kinds = Quantized::kinds();
    let four = Case::all().into_iter().find(|case| case.about == "F4, `X.weight_scale`");
    kinds.push(four.unwrap().write(dir.path()));
    for fixture in kinds {
        let (path, stored) = (fixture.model(), fixture.open());
        let numbers = fixture.open().dequantized().unwrap();
        for weight in stored.quantized_weights().unwrap() {
            let codes = stored.tensor(&weight.tensors[0]).unwrap();
            let data = |buf| Burn::from_buf(buf, &(), Widening::Lossless).unwrap();
            let number = data(numbers.tensor(&weight.name).unwrap().read().unwrap());
            let code = data(codes.read().unwrap());
            for (way, load) in WAYS {
                let what = format!("{} of {}, {way}", weight.name, fixture.name);
                let of_weight = (&*weight.name, Dtype::F32, &weight.shape[..]);
                let of_codes = (codes.name(), codes.dtype(), codes.shape());
                for (name, dtype, shape) in [of_weight, of_codes] {
                    let error = load(&path, name, dtype, shape, Refuse).unwrap_err();
                    check_error(&what, &error, &weight);
                }
                let (name, dtype, shape) = of_weight;
                same(&what, &load(&path, name, dtype, shape, Numbers).unwrap(), &number);
                let (name, dtype, shape) = of_codes;
                same(&what, &load(&path, name, dtype, shape, Stored).unwrap(), &code);
            }
        }
    }
}

#[test]
fn shares_refuse_codes_and_share_what_is_plain() {
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
}

#[derive(Module, Debug)]
struct Model {
    layer: Linear,
}

#[test]
fn a_layer_of_pytorch_that_is_stored_under_other_names_says_how_to_load_it() {
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
