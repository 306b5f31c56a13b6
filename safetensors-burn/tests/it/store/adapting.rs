//! Tests layouts, dtypes, and parameters in unusual states.

use std::ops::ControlFlow;

use safetensors_core::load::{ExpertLayout, ExpertOptions};
use safetensors_testing::experts::Mixture;

use super::*;

/// Multiplies the parameters of linear layers. It uses only names that this crate re-exports.
#[derive(Clone)]
struct Scale(f32);

impl ModuleAdapter for Scale {
    fn adapt(&self, tensor: burn_pack::Tensor, context: ModuleContext<'_>) -> burn_pack::Tensor {
        if context.module_type() != Some("Struct:Linear") {
            return tensor;
        }
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        let factor = self.0;
        bridge::map_data(tensor, name, dtype, shape, move |data| {
            let values: Vec<f32> = data.iter::<f32>().map(|value| value * factor).collect();
            TensorData::new(values, data.shape())
        })
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

#[test]
fn an_adapter_of_ones_own_is_chained() {
    let (_dir, path) = place("model.safetensors");
    let model = Model::new(2);
    let adapter: ChainAdapter =
        Scale(2.0).chain(IdentityAdapter).chain(FloatCastAdapter::to(DType::F64));
    model.save_into(&mut CheckpointStore::from_file(&path).with_to_adapter(adapter)).unwrap();

    let tensors = load(&path).unwrap();
    let scaled = |data: TensorData, factor: f64| {
        let values: Vec<f64> = data.iter::<f64>().map(|value| value * factor).collect();
        TensorData::new(values, data.shape())
    };
    assert_eq!(tensors["encoder.weight"], scaled(model.encoder.weight.to_data(), 2.0));
    assert_eq!(tensors["norm.gamma"], scaled(model.norm.gamma.to_data(), 1.0));

    let mut other = Model::new(7);
    let back = FloatCastAdapter::to(DType::F32).chain(Scale(0.5));
    other.load_from(&mut CheckpointStore::from_file(&path).with_from_adapter(back)).unwrap();
    assert_eq!(state(&model), state(&other));
}

#[test]
fn a_parameter_takes_the_dtype_of_the_file_or_of_a_cast() {
    #[derive(Module, Debug)]
    struct Vector {
        values: Param<Tensor<1>>,
    }
    let (_dir, path) = place("model.safetensors");
    let view = TensorView::new(Dtype::F8_E4M3, &[2], &[0x38, 0xb0]).unwrap();
    safetensors_core::save(&path, [("values", view)], &SaveOptions::new()).unwrap();
    let fresh = || Vector { values: Initializer::Zeros.init([2], &Device::default()) };

    let mut vector = fresh();
    vector.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(vector.values.val().dtype(), DType::F16);
    let mut vector = fresh();
    let mut store =
        CheckpointStore::from_file(&path).with_from_adapter(FloatCastAdapter::to(DType::F32));
    vector.load_from(&mut store).unwrap();
    assert_eq!(vector.values.to_data(), TensorData::from([1.0_f32, -0.5]));
}

#[test]
fn exact_loading_ignores_dtypes_of_unused_tensors() {
    let (_dir, path) = place("model.safetensors");
    let linear = LinearConfig::new(1, 1).init(&Device::default());
    let mut tensors = state(&linear);
    tensors.retain(|(name, _)| name == "weight");
    let weight = tensors[0].1.as_bytes();
    let views = [
        ("weight", TensorView::new(Dtype::F32, &[1, 1], weight).unwrap()),
        ("bias", TensorView::new(Dtype::F8_E4M3, &[1], &[0x38]).unwrap()),
        ("unused", TensorView::new(Dtype::F4, &[2], &[0x21]).unwrap()),
    ];
    safetensors_core::save(&path, views, &SaveOptions::new()).unwrap();
    let store = || {
        CheckpointStore::from_file(&path)
            .load_options(LoadOptions::new().widening(Widening::Refuse))
    };

    let mut other = LinearConfig::new(1, 1).init(&Device::default());
    let result = other.load_from(&mut store().with_full_path("weight")).unwrap();
    assert_eq!((result.applied, result.unused), (vec!["weight".into()], vec!["unused".into()]));
    assert_eq!(other.weight.to_data(), tensors[0].1);

    let error = other.load_from(&mut store()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldWiden { dtype: Dtype::F8_E4M3, .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("bias"), path.to_str()));
    let mut store = store();
    assert_eq!(store.keys().unwrap(), ["bias", "unused", "weight"]);
    let error = store.get_tensor("unused").unwrap().unwrap().to_bytes().unwrap_err();
    assert!(error.to_string().contains("which the options refuse"), "{error}");
}

#[test]
fn a_column_layout_is_saved_as_pytorch_has_it_and_loads_more_than_once() {
    let dir = dir();
    let config = LinearConfig::new(3, 5).with_layout(LinearLayout::Col);
    let linear = config.init(&Device::default());
    let mut store = saved(&dir, &linear);
    assert_eq!(store.get_tensor("weight").unwrap().unwrap().shape[..], [5, 3]);
    let mut other = config.init(&Device::default());
    for _ in 0..2 {
        other.load_from(&mut store).unwrap();
        assert_eq!(other.weight.to_data(), linear.weight.to_data());
    }
}

#[test]
fn parameters_without_a_value_are_not_initialized_to_be_loaded() {
    let dir = dir();
    let linear = LinearConfig::new(3, 5).init(&Device::default());
    let mut store = saved(&dir, &linear);
    let never = |shape: [usize; 2]| {
        let device = Device::default();
        let init = |_: &Device, _| -> Tensor<2> { panic!("initialized") };
        Param::uninitialized(ParamId::new(), init, device, true, shape.into())
    };
    let mut other = LinearConfig::new(3, 5).init(&Device::default());
    other.weight = never([3, 5]);
    other.load_from(&mut store).unwrap();
    assert_eq!(other.weight.to_data(), linear.weight.to_data());
    other.weight = never([5, 3]);
    let error = other.load_from(&mut store).unwrap_err();
    assert_eq!(error.tensor(), Some("weight"));
}

#[test]
fn enum_variants_may_be_omitted_from_names() {
    #[derive(Module, Debug)]
    enum Block {
        Plain(Linear),
    }
    #[derive(Module, Debug)]
    struct Net {
        block: Block,
    }
    let net = || Net {
        block: Block::Plain(LinearConfig::new(2, 2).with_bias(false).init(&Device::default())),
    };
    let (_dir, path) = place("net.safetensors");
    let first = net();
    first.save_into(&mut CheckpointStore::from_file(&path).skip_enum_variants(true)).unwrap();
    let mut store = CheckpointStore::from_file(&path).skip_enum_variants(true);
    assert_eq!(store.keys().unwrap(), ["block.weight"]);
    let mut second = net();
    second.load_from(&mut store).unwrap();
    assert_eq!(state(&first), state(&second));
    let error = second.load_from(&mut CheckpointStore::from_file(&path)).unwrap_err();
    let StoreError::Missing { names } = source(&error) else { panic!("{error}") };
    assert_eq!(names, &["block.Plain.weight"]);
}

#[test]
fn load_options_convert_and_cancel() {
    let (_dir, path) = place("model.safetensors");
    let original = Model::new(7);
    original.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    let expected = state(&original);
    let floats = || {
        CheckpointStore::from_file(&path)
            .load_options(LoadOptions::new().threads(2).floats_as(Dtype::F64))
    };

    // The store reports the dtype and length of the tensor that it returns.
    let mut store = floats();
    for (name, tensor) in store.get_all_tensors().unwrap() {
        let is_float =
            expected.iter().any(|(other, data)| other == name && data.dtype() == DType::F32);
        assert_eq!(tensor.dtype == DType::F64, is_float, "{name}");
        assert_eq!(data_of(tensor).bytes().len(), tensor.byte_len(), "{name}");
    }
    let cancelled = LoadOptions::new().progress(|_| ControlFlow::Break(()));
    let error = refused(&mut CheckpointStore::from_file(&path).load_options(cancelled));
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
}

#[derive(Module, Debug)]
struct Stacks {
    gate_up_proj: Param<Tensor<3>>,
    down_proj: Param<Tensor<3>>,
}

#[derive(Module, Debug)]
struct Mlp {
    experts: Stacks,
}

/// A module with stacks finds them in a file of single experts.
#[test]
fn stacked_experts_load_from_a_file_with_single_ones() {
    let fixture = Mixture::named("qwen3_moe");
    let device = Device::default();
    let zeros = |shape: [usize; 3]| initialized(Tensor::zeros(shape, &device));
    let mut mlp =
        Mlp { experts: Stacks { gate_up_proj: zeros([3, 12, 8]), down_proj: zeros([3, 8, 6]) } };
    let options = LoadOptions::new()
        .floats_as(Dtype::F32)
        .experts(ExpertLayout::Stacked, ExpertOptions::new());
    let mut store = CheckpointStore::from_file(&fixture.split)
        .load_options(options)
        .prefix("model.layers.1.mlp.");
    mlp.load_from(&mut store).unwrap();
    let stacked = Checkpoint::open(&fixture.stacked).unwrap();
    for (name, found) in [
        ("gate_up_proj", mlp.experts.gate_up_proj.to_data()),
        ("down_proj", mlp.experts.down_proj.to_data()),
    ] {
        let name = format!("model.layers.1.mlp.experts.{name}");
        let options = LoadOptions::new().all_as(Dtype::F32);
        let expected = stacked.tensor(&name).unwrap().read_with(&options).unwrap();
        assert_eq!(
            found.try_to_vec::<f32>().unwrap(),
            expected.as_slice::<f32>().unwrap(),
            "{name}"
        );
    }
}
