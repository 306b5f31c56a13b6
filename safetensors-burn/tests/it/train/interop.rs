//! Trainings that go from PyTorch to burn and on, and back.
//!
//! `dev/scripts/optimizer_interop.py` wrote the fixtures, and lets PyTorch go on from the files
//! that these tests save in `SAFETENSORS_INTEROP_DIR`.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout, Lstm, LstmConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamWConfig, GradientsParams, ModuleOptimizer, RmsPropConfig, SgdConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use safetensors_burn::train::{load_pytorch_optimizer, save_pytorch_optimizer};
use safetensors_burn::{CheckpointStore, ModuleSnapshot, load, save};
use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, ErrorKind, SaveOptions};
use safetensors_testing::optimizer::{NAMES, fixture, interop_dir, largest_difference};

use crate::place;

const KINDS: [&str; 4] = ["adamw", "amsgrad", "sgd", "adafactor"];

/// How far losses may be from PyTorch's, as a part of the largest one.
///
/// Both compute in F32, and sums differ in their order: some units in the last place. For Adam, burn
/// also has its betas in F32, where PyTorch has F64: 1 - 0.999 is off by 1.3e-5, and with it each
/// step of the second moment and the correction of its bias.
fn tolerance(kind: &str) -> f64 {
    let has_betas = matches!(kind, "adamw" | "amsgrad");
    if has_betas { 2e-5 } else { 16.0 * f64::from(f32::EPSILON) }
}

#[derive(Module, Debug)]
struct Model {
    fc1: Linear,
    fc2: Linear,
}

fn model(layout: LinearLayout) -> Model {
    let device = Device::default().autodiff();
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).with_layout(layout);
    Model { fc1: linear(3, 5).init(&device), fc2: linear(5, 2).init(&device) }
}

struct Training {
    model: Model,
    optimizer: ModuleOptimizer,
    rate: f64,
}

/// Returns the optimizers of the fixtures.
fn optimizer(kind: &str) -> (ModuleOptimizer, f64) {
    let adamw = AdamWConfig::new().with_epsilon(1e-8);
    let momentum = MomentumConfig::new().with_dampening(0.0).with_nesterov(true);
    match kind {
        "adamw" => (adamw.with_weight_decay(0.1).init(), 0.02),
        "amsgrad" => (adamw.with_weight_decay(0.01).with_amsgrad(true).init(), 0.02),
        "adafactor" => (AdafactorConfig::new().init(), 0.02),
        _ => (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.05),
    }
}

impl Training {
    fn new(kind: &str, layout: LinearLayout) -> Self {
        let (optimizer, rate) = optimizer(kind);
        Self { model: model(layout), optimizer, rate }
    }

    /// A training of PyTorch.
    fn loaded(kind: &str, layout: LinearLayout) -> Self {
        let mut training = Self::new(kind, layout);
        let path = fixture(&format!("{kind}.safetensors"));
        let store = CheckpointStore::from_file(&path).pytorch(true);
        training.model.load_from(&mut store.with_key_remapping(r"^model\.", "")).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let record = load_pytorch_optimizer(&training.model, &checkpoint, &names()).unwrap();
        training.optimizer = training.optimizer.load_record(record);
        training
    }

    /// Returns the losses before each step, as the fixtures have them.
    fn steps(&mut self, count: usize) -> Vec<f32> {
        let device = Device::default().autodiff();
        let mut after = load(fixture("adamw_after.safetensors")).unwrap();
        let x = Tensor::<2>::from_data(after.remove("x").unwrap(), &device);
        let y = Tensor::<2>::from_data(after.remove("y").unwrap(), &device);
        let mut losses = Vec::new();
        for _ in 0..count {
            let output = self.model.fc2.forward(self.model.fc1.forward(x.clone()).tanh());
            let loss = (output - y.clone()).square().mean();
            losses.push(loss.clone().into_scalar::<f32>());
            let grads = GradientsParams::from_grads(loss.backward(), &self.model);
            self.model = self.optimizer.step(self.rate, self.model.clone(), grads);
        }
        losses
    }
}

fn names() -> PyTorchTraining {
    PyTorchTraining::new().parameters(NAMES)
}

fn floats(data: &TensorData) -> Vec<f32> {
    data.try_to_vec().unwrap()
}

#[test]
fn a_training_of_pytorch_goes_on_with_its_losses() {
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        for layout in [LinearLayout::Row, LinearLayout::Col] {
            let after = load(fixture(&format!("{kind}_after.safetensors"))).unwrap();
            let expected = floats(&after["losses"]);
            let mut training = Training::loaded(kind, layout);
            let losses = training.steps(expected.len());
            let off = largest_difference(&losses, &expected);
            println!("{kind} {layout:?}: {off:e}");
            assert!(off <= tolerance(kind), "{kind}: {off:e}: {losses:?} {expected:?}");

            // The state for PyTorch equals its own after these steps.
            let path = dir.path().join("optimizer.safetensors");
            let record = training.optimizer.to_record();
            save_pytorch_optimizer(&path, &training.model, record, &SaveOptions::new()).unwrap();
            let saved = load(&path).unwrap();
            let states = after.keys().filter(|name| name.starts_with("state."));
            assert!(states.clone().eq(saved.keys()), "{:?}", saved.keys());
            for name in states {
                assert_eq!(saved[name].shape(), after[name].shape(), "{name}");
                let off = largest_difference(&floats(&saved[name]), &floats(&after[name]));
                println!("{kind} {name}: {off:e}");
                assert!(off <= 10.0 * tolerance(kind), "{kind} {name}: {off:e}");
            }
        }
    }
}

/// Without the state, the same weights train otherwise: the comparison above can fail.
#[test]
fn without_the_state_the_losses_are_others() {
    for kind in KINDS {
        let after = load(fixture(&format!("{kind}_after.safetensors"))).unwrap();
        let expected = floats(&after["losses"]);
        let mut training = Training::loaded(kind, LinearLayout::Row);
        training.optimizer = optimizer(kind).0;
        let off = largest_difference(&training.steps(expected.len()), &expected);
        assert!(off > 1000.0 * tolerance(kind), "{kind}: {off:e}");
    }
}

/// `dev/scripts/optimizer_interop.py` goes on from here, and compares the losses.
#[test]
fn a_training_is_saved_for_pytorch() {
    for kind in KINDS {
        let Some(dir) = interop_dir(kind) else { return };
        let mut training = Training::new(kind, LinearLayout::Row);
        training.steps(7);
        let store = CheckpointStore::from_file(dir.join("model.safetensors")).pytorch(true);
        training.model.save_into(&mut store.overwrite(true)).unwrap();
        let (path, record) = (dir.join("optimizer.safetensors"), training.optimizer.to_record());
        save_pytorch_optimizer(path, &training.model, record, &SaveOptions::new()).unwrap();
        let losses = TensorData::from(&training.steps(20)[..]);
        save(dir.join("losses.safetensors"), [("losses", &losses)], &SaveOptions::new()).unwrap();
    }
}

/// A module with parameters that are parts of PyTorch's tensors, a tied one, and a frozen one.
#[derive(Module, Debug)]
struct Mixed {
    rnn: Lstm,
    a: Param<Tensor<1>>,
    b: Param<Tensor<1>>,
    frozen: Linear,
}

fn mixed() -> Mixed {
    let device = Device::default().autodiff();
    let a = Param::from_tensor(Tensor::from_floats([1.0, 2.0], &device));
    let frozen = LinearConfig::new(2, 2).init(&device).no_grad();
    let rnn = LstmConfig::new(3, 4, true).init(&device);
    Mixed { rnn, b: a.clone(), a, frozen }
}

fn stepped(mixed: &Mixed, optimizer: &mut ModuleOptimizer, steps: usize) -> Mixed {
    let device = Device::default().autodiff();
    let mut mixed = mixed.clone();
    for step in 0..steps {
        let x = Tensor::<3>::ones([1, 2, 3], &device) * (step as f32 + 0.5);
        let (output, _) = mixed.rnn.forward(x, None);
        let loss = output.square().mean() + (mixed.a.val() * mixed.a.val()).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &mixed);
        mixed = optimizer.step(0.1, mixed, grads);
    }
    mixed
}

#[test]
fn states_of_parts_and_of_tied_parameters_come_back() {
    let (_dir, path) = place("optimizer.safetensors");
    let mut optimizer = AdamWConfig::new().init();
    let mixed = stepped(&mixed(), &mut optimizer, 3);
    let options = SaveOptions::new();
    save_pytorch_optimizer(&path, &mixed, optimizer.to_record(), &options).unwrap();
    let saved = load(&path).unwrap();
    assert_eq!(saved["state.rnn.weight_ih_l0.exp_avg"].shape()[..], [16, 3]);
    assert_eq!(saved["state.rnn.bias_hh_l0.exp_avg_sq"].shape()[..], [16]);
    assert_eq!(saved["state.a.exp_avg"], saved["state.b.exp_avg"]);
    assert_eq!(floats(&saved["state.a.step"]), [3.0]);
    assert!(!saved.keys().any(|name| name.contains("frozen")), "{:?}", saved.keys());

    let training = PyTorchTraining::new().optimizer("");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let record = load_pytorch_optimizer(&mixed, &checkpoint, &training).unwrap();
    let mut resumed = AdamWConfig::new().init().load_record(record);
    let ends = [&mut optimizer, &mut resumed].map(|optimizer| stepped(&mixed, optimizer, 2));
    let [one, other] = ends.map(|end| {
        let mut store = CheckpointStore::from_bytes(None);
        end.save_into(&mut store).unwrap();
        store.get_bytes().unwrap()
    });
    assert!(one == other, "the same bits");

    // Another optimizer, and a module that the record is not of.
    // Means over the columns of a tensor differ from the means of the gates in it.
    for mut other in [RmsPropConfig::new().init(), AdafactorConfig::new().init()] {
        let trained = stepped(&mixed, &mut other, 1);
        let error = save_pytorch_optimizer(&path, &trained, other.to_record(), &options);
        let ErrorKind::Optimizer { problem } = error.unwrap_err().into_kind() else { panic!() };
        assert!(matches!(problem, OptimizerProblem::UnknownOptimizer { .. }), "{problem}");
    }
    let foreign = model(LinearLayout::Row);
    let error = save_pytorch_optimizer(&path, &foreign, optimizer.to_record(), &options);
    let ErrorKind::Optimizer { problem } = error.unwrap_err().into_kind() else { panic!() };
    assert!(matches!(problem, OptimizerProblem::NoState { .. }), "{problem}");
    assert!(load(&path).unwrap() == saved, "the file is as it was");
}

/// Returns the difference between a changed fixture and the model.
#[track_caller]
fn refused(
    change: impl FnOnce(&mut Vec<(String, TensorData)>),
    names: &PyTorchTraining,
) -> ErrorKind {
    let (_dir, path) = place("training.safetensors");
    let mut tensors = load(fixture("adamw.safetensors")).unwrap().into_iter().collect();
    change(&mut tensors);
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    save(&path, tensors, &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = load_pytorch_optimizer(&model(LinearLayout::Row), &checkpoint, names).unwrap_err();
    assert_eq!(error.file(), path.to_str());
    println!("{error}");
    error.into_kind()
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let missing = |name: &str| Mismatch::Missing { name: format!("optimizer.state.{name}") };
    let extra = |name: &str| Mismatch::Extra { name: format!("optimizer.state.{name}") };
    let mismatches = |kind: ErrorKind| match kind {
        ErrorKind::Mismatches { mismatches } => mismatches,
        other => panic!("{other}"),
    };
    for (part, expected) in [
        ("state.1.exp_avg_sq", "1.exp_avg_sq"),
        ("state.1.step", "1.step"),
        ("state.1.", "fc1.bias.exp_avg"),
    ] {
        let without = |tensors: &mut Vec<(String, TensorData)>| {
            tensors.retain(|(name, _)| !name.contains(part));
        };
        assert_eq!(mismatches(refused(without, &names())), [missing(expected)]);
    }
    let other = PyTorchTraining::new().parameters(["fc1.weight", "fc1.bias", "fc2.weight", "b"]);
    let expected = [missing("fc2.bias.exp_avg"), extra("3.exp_avg"), extra("3.exp_avg_sq")];
    assert_eq!(mismatches(refused(|_| {}, &other)), expected);
    let swapped = PyTorchTraining::new().parameters([NAMES[2], NAMES[1], NAMES[0], NAMES[3]]);
    let found = mismatches(refused(|_| {}, &swapped));
    let (name, expected) = ("optimizer.state.2.exp_avg".to_owned(), vec![5, 3]);
    let shape = Mismatch::Shape { name, expected, found: vec![2, 5] };
    assert!(found.contains(&shape), "{found:?}");
    let half = |tensors: &mut Vec<(String, TensorData)>| {
        let first = tensors.iter_mut().find(|(name, _)| name.ends_with("state.0.exp_avg"));
        let (_, moment) = first.unwrap();
        *moment = moment.clone().convert::<f64>();
    };
    let found = mismatches(refused(half, &names()));
    assert!(matches!(&found[..], [Mismatch::Dtype { .. }]), "{found:?}");
    let other = |tensors: &mut Vec<(String, TensorData)>| {
        tensors.iter_mut().for_each(|(name, _)| *name = name.replace("exp_avg", "exp_inf"));
    };
    let ErrorKind::Optimizer { problem } = refused(other, &names()) else { panic!() };
    assert!(matches!(problem, OptimizerProblem::UnknownOptimizer { .. }), "{problem}");
}
