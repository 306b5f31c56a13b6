//! The epoch of another model, or of another optimizer, is refused before anything changes, for any
//! record that is restored first.

use burn::module::Param;
use burn::module::ParamGroup;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdanConfig, LambConfig, LionConfig, MuonConfig,
    RmsPropConfig, SgdConfig,
};
use burn::tensor::Int;
use safetensors_core::Dtype;
use safetensors_core::error::Mismatch;

use super::*;

#[derive(Module, Debug)]
pub(super) struct Net {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
}

impl Net {
    pub(super) fn new(dtype: DType) -> Self {
        Self::of_shape([3, 5], dtype)
    }

    pub(super) fn of_shape(shape: [usize; 2], dtype: DType) -> Self {
        let device = Device::default().autodiff();
        let matrix = Tensor::from_data(TensorData::ones::<f32, _>(shape), (&device, dtype));
        let vector = Tensor::from_data(TensorData::ones::<f32, _>([4]), (&device, dtype));
        Self { matrix: Param::from_tensor(matrix), vector: Param::from_tensor(vector) }
    }

    pub(super) fn steps(mut self, optimizer: &mut ModuleOptimizer) -> Self {
        for _ in 0..2 {
            let loss =
                self.matrix.val().powi_scalar(2).sum() + self.vector.val().powi_scalar(2).sum();
            let grads = GradientsParams::from_grads(loss.backward(), &self);
            self = optimizer.step(0.1, self, grads);
        }
        self
    }
}

/// Saves epoch 1.
fn save(epochs: &Epochs, model: impl Module, optimizer: OptimizerRecord) {
    save_records(&epochs.checkpointers_without_module(), 1, model, optimizer);
}

/// Restores each record of epoch 1 for a module. Returns the error, which all must give.
fn refused(epochs: &Epochs, module: &impl Module) -> Error {
    let (model, optimizer, scheduler) = epochs.checkpointers(module);
    let error = unwrap_error(scheduler.restore(1));
    assert_eq!(unwrap_error(model.restore(1)).to_string(), error.to_string());
    assert_eq!(unwrap_error(optimizer.restore(1)).to_string(), error.to_string());
    error
}

/// Returns the differences that an error lists about a file of epoch 1.
fn mismatches(epochs: &Epochs, module: &impl Module, file: &str) -> Vec<Mismatch> {
    let error = refused(epochs, module);
    assert_eq!(error.file(), epochs.path(1).join(file).to_str(), "{error}");
    match error.kind() {
        ErrorKind::Mismatches { mismatches } => mismatches.clone(),
        _ => panic!("{error}"),
    }
}

/// Returns the record of an optimizer with other tensors and scalars.
fn changed(
    record: OptimizerRecord,
    tensor: impl FnMut(PackTensor) -> PackTensor,
    scalar: impl Fn(&str, Scalar) -> Option<Scalar>,
) -> OptimizerRecord {
    let reader = Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
    let (scalars, texts) = (reader.scalars().clone(), reader.metadata().clone());
    let mut writer = Writer::new(reader.into_tensors().unwrap().into_iter().map(tensor).collect());
    for (name, value) in scalars {
        if let Some(value) = scalar(&name, value) {
            writer = writer.with_scalar(&name, value);
        }
    }
    for (key, path) in texts {
        writer = writer.with_metadata(&key, &path);
    }
    OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
}

fn unchanged(_: &str, scalar: Scalar) -> Option<Scalar> {
    Some(scalar)
}

/// An optimizer of burn, with all the state that it can have.
pub(super) type Optimizers = Vec<(&'static str, ModuleOptimizer)>;

pub(super) fn optimizers() -> Optimizers {
    let momentum = || MomentumConfig::new();
    // Muon is only for matrices.
    let muon = AdamWConfig::new().init();
    let matrix = ParamGroup::from_predicate("matrix");
    let muon = muon.with_group(matrix, MuonConfig::new().build(), None);
    vec![
        ("AdaGrad", AdaGradConfig::new().init()),
        ("Adafactor", AdafactorConfig::new().init()),
        ("Adam", AdamConfig::new().with_amsgrad(true).init()),
        ("AdamW", AdamWConfig::new().init()),
        ("Adan", AdanConfig::new().init()),
        ("LAMB", LambConfig::new().init()),
        ("Lion", LionConfig::new().init()),
        ("Muon", muon),
        ("RMSprop", RmsPropConfig::new().with_centered(true).init()),
        ("SGD", SgdConfig::new().with_momentum(Some(momentum())).init()),
    ]
}

#[derive(Module, Debug)]
struct Counted {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1, Int>>,
}

/// A parameter without a value has its device's dtype.
#[test]
fn another_kind_of_number_is_a_mismatch_without_a_value_too() {
    let (_dir, epochs) = empty();
    let device = Device::default();
    let linear = LinearConfig::new(3, 5).init(&device);
    assert!(!linear.weight.is_initialized());
    let counts = Tensor::<1, Int>::from_data([1, 2, 3, 4, 5], &device);
    let found = dtype_of(&counts.to_data());
    let weight = Param::from_tensor(Tensor::zeros([3, 5], &device));
    let bias = Param::initialized(burn::module::ParamId::new(), counts);
    save(&epochs, Counted { weight, bias }, OptimizerRecord::default());
    let expected = Mismatch::Dtype { name: "bias".into(), expected: Dtype::F32, found };
    assert_eq!(mismatches(&epochs, &linear, "model.safetensors"), [expected]);
    assert!(!linear.weight.is_initialized());
}

fn dtype_of(data: &TensorData) -> Dtype {
    match data.dtype() {
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        other => panic!("{other:?}"),
    }
}

/// The model is equal, and the state has other shapes.
#[test]
fn the_optimizer_of_another_model_is_refused() {
    let (_dir, epochs) = empty();
    let mut optimizer = AdamWConfig::new().init();
    Net::of_shape([5, 3], DType::F32).steps(&mut optimizer);
    let net = Net::new(DType::F32);
    save(&epochs, net.clone(), optimizer.to_record());
    let shape = |i| Mismatch::Shape {
        name: format!("matrix.momentum.moment_{i}"),
        expected: vec![3, 5],
        found: vec![5, 3],
    };
    assert_eq!(mismatches(&epochs, &net, "optimizer.safetensors"), [shape(1), shape(2)]);

    // Of other parameters.
    let (_dir, epochs) = empty();
    let training = Training::trained(1);
    save(&epochs, net.clone(), training.optimizer.to_record());
    let extra = ["first.bias", "first.weight", "layers.0.weight"];
    let mut found = mismatches(&epochs, &net, "optimizer.safetensors");
    found.sort_by_key(|mismatch| mismatch.to_string());
    assert_eq!(found, extra.map(|name| Mismatch::Extra { name: name.into() }));
}

/// Each tensor of each of burn's optimizers is compared, so this fails if burn renames one.
#[test]
fn a_state_of_another_shape_or_dtype_is_refused() {
    for (optimizer_name, mut optimizer) in optimizers() {
        let net = Net::new(DType::F32).steps(&mut optimizer);
        let (_dir, epochs) = empty();
        save(&epochs, net.clone(), optimizer.to_record());
        let restored = epochs.checkpointers(&net).1.restore(1).unwrap();
        assert_eq!(content(restored), content(optimizer.to_record()), "{optimizer_name}");

        let count = optimizer.to_record().len();
        assert!(count >= 2, "{optimizer_name}");
        let other_shape = |tensor: PackTensor| {
            let (name, dtype, shape, id, bytes) = tensor.into_parts().unwrap();
            let shape: Vec<usize> = match &shape[..] {
                [len] => vec![*len, 1],
                [rows, columns] => vec![*columns, *rows],
                other => panic!("{other:?}"),
            };
            PackTensor::new(name, dtype, shape, id, bytes)
        };
        save(&epochs, net.clone(), changed(optimizer.to_record(), other_shape, unchanged));
        let found = mismatches(&epochs, &net, "optimizer.safetensors");
        let is_shape = |m: &Mismatch| matches!(m, Mismatch::Shape { .. });
        assert!(found.len() == count && found.iter().all(is_shape), "{optimizer_name}: {found:?}");

        // All tensors as F64.
        let wider = |tensor: PackTensor| {
            let (name, dtype, shape, id, bytes) = tensor.into_parts().unwrap();
            let data = TensorData::from_bytes(bytes, shape.clone(), dtype).convert::<f64>();
            PackTensor::new(name, DType::F64, shape, id, data.into_bytes())
        };
        save(&epochs, net.clone(), changed(optimizer.to_record(), wider, unchanged));
        let found = mismatches(&epochs, &net, "optimizer.safetensors");
        let is_dtype = |m: &Mismatch| {
            matches!(m, Mismatch::Dtype { expected: Dtype::F32, found: Dtype::F64, .. })
        };
        assert!(found.len() == count && found.iter().all(is_dtype), "{found:?}");
    }
}

/// Adafactor keeps its state as F32.
#[test]
fn the_state_of_a_parameter_of_half_precision_may_be_f32() {
    for mut optimizer in [AdafactorConfig::new().init(), AdamWConfig::new().init()] {
        let net = Net::new(DType::BF16).steps(&mut optimizer);
        let (_dir, epochs) = empty();
        save(&epochs, net.clone(), optimizer.to_record());
        let restored = epochs.checkpointers(&net).1.restore(1).unwrap();
        assert_eq!(content(restored), content(optimizer.to_record()));
    }
}

/// burn makes the state of this many dimensions.
#[test]
fn a_state_with_another_number_of_dimensions_is_refused() {
    let mut optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let net = Net::new(DType::F32).steps(&mut optimizer);
    let key = format!("{}.__rank", net.matrix.id.val());
    for (rank, found) in [
        (Some(Scalar::UInt(3)), Some("3")),
        (Some(Scalar::UInt(u64::MAX)), Some("18446744073709551615")),
        (Some(Scalar::Bool(true)), Some("true")),
        (None, None),
    ] {
        let (_dir, epochs) = empty();
        let scalar = |name: &str, scalar| if name == key { rank } else { Some(scalar) };
        save(&epochs, net.clone(), changed(optimizer.to_record(), |tensor| tensor, scalar));
        let expected = Mismatch::Metadata {
            key: "matrix.__rank".into(),
            expected: "the number of dimensions of the parameter",
            found: found.map(Into::into),
        };
        assert_eq!(mismatches(&epochs, &net, "optimizer.safetensors"), [expected]);
    }
}

/// burn panics for such a tensor, or passes it over.
#[test]
fn a_tensor_without_the_id_that_its_name_begins_with() {
    let mut optimizer = AdamWConfig::new().init();
    let net = Net::new(DType::F32).steps(&mut optimizer);
    for other in [None, Some(net.vector.id.val())] {
        let (_dir, epochs) = empty();
        let name = format!("{}.momentum.moment_1", net.matrix.id.val());
        let tensor = |mut tensor: PackTensor| {
            if tensor.name == name {
                tensor.param_id = other;
            }
            tensor
        };
        save(&epochs, net.clone(), changed(optimizer.to_record(), tensor, unchanged));
        let found = mismatches(&epochs, &net, "optimizer.safetensors");
        assert_eq!(found, [Mismatch::Extra { name }]);
    }
}

/// A step of AdamW. Returns the module after it, and the record.
fn stepped<M: Module>(module: M, loss: impl Fn(&M) -> Tensor<1>) -> (M, OptimizerRecord) {
    let mut optimizer = AdamWConfig::new().init();
    let grads = GradientsParams::from_grads(loss(&module).backward(), &module);
    let module = optimizer.step(0.1, module, grads);
    (module, optimizer.to_record())
}

#[derive(Module, Debug)]
struct Two {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
}

fn weight() -> Param<Tensor<2>> {
    Param::from_tensor(Tensor::ones([2, 2], &Device::default().autodiff()))
}

/// Two parameters were saved, and are one in this model.
#[test]
fn the_states_of_parameters_that_are_one_in_the_model() {
    let two = Two { a: weight(), b: weight() };
    let (two, state) = stepped(two, |two| (two.a.val() * two.b.val()).sum());
    let (_dir, epochs) = empty();
    save(&epochs, two, state);
    let one = weight();
    let tied = Two { a: one.clone(), b: one };
    let expected = Mismatch::Tied { name: "b".into(), other: "a".into() };
    assert_eq!(mismatches(&epochs, &tied, "optimizer.safetensors"), [expected]);
}

/// A new model has two parameters where the saved one had one under two paths. burn gives both the
/// saved id, so they are one again.
#[test]
fn parameters_that_were_tied_are_tied_again() {
    let one = weight();
    let (saved, state) = stepped(Two { a: one.clone(), b: one }, |two| {
        two.a.val().powi_scalar(2).sum() + two.b.val().powi_scalar(3).sum()
    });
    let (_dir, epochs) = empty();
    save(&epochs, saved, state);
    let new = Two { a: weight(), b: weight() };
    let id = new.a.id;
    assert_ne!(id, new.b.id);
    let (model, optimizer, _) = epochs.checkpointers(&new);
    let state = content(optimizer.restore(1).unwrap());
    assert!(!state.0.is_empty() && state.0.iter().all(|tensor| tensor.3 == Some(id.val())));
    let restored = new.load_record(model.restore(1).unwrap());
    assert_eq!((restored.a.id, restored.b.id), (id, id));
}

/// The function of a parameter that makes it smaller when it is saved.
#[test]
fn a_parameter_that_is_saved_in_another_dtype() {
    #[derive(Module, Debug)]
    struct Halved {
        weight: Param<Tensor<2>>,
    }
    let device = Device::default().autodiff();
    let halved = |weight: Param<Tensor<2>>| {
        let weight = weight.save_mapper(|value| value.cast(DType::F16));
        Halved { weight: weight.load_mapper(|value| value.cast(DType::F32)) }
    };
    let value = || Param::from_tensor(Tensor::<2>::ones([2, 3], &device));
    let (saved, state) =
        stepped(halved(value()), |halved| halved.weight.val().powi_scalar(2).sum());
    let (_dir, epochs) = empty();
    save(&epochs, saved, state);
    let ones = burn::module::Initializer::Ones;
    for new in [halved(value()), halved(ones.init([2, 3], &device))] {
        let (model, optimizer, _) = epochs.checkpointers(&new);
        assert_eq!(optimizer.restore(1).unwrap().len(), 2);
        let restored = new.load_record(model.restore(1).unwrap());
        assert_eq!(restored.weight.val().dtype(), DType::F32);
    }
    // Without the functions, the file has another dtype than the module.
    let expected =
        Mismatch::Dtype { name: "weight".into(), expected: Dtype::F32, found: Dtype::F16 };
    let plain = Halved { weight: value() };
    assert_eq!(mismatches(&epochs, &plain, "model.safetensors"), [expected]);
}

/// The optimizers that keep no state by parameter.
#[test]
fn a_state_that_belongs_to_no_parameter_is_restored() {
    let writer = Writer::new(vec![pack("history_s.0", None)]).with_scalar("k", Scalar::Int(-1));
    let bytes = writer.into_bytes().unwrap();
    let (_dir, epochs) = empty();
    let net = Net::new(DType::F32);
    save(&epochs, net.clone(), optimizer_record(&bytes));
    let restored = epochs.checkpointers(&net).1.restore(1).unwrap();
    assert_eq!(content(restored), content(optimizer_record(&bytes)));
}
