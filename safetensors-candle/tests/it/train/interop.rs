//! Trainings that go from PyTorch to candle and on, and the state that goes back to PyTorch.
//!
//! `dev/scripts/optimizer_interop.py` wrote the fixtures, and lets PyTorch go on from the files
//! that these tests save in `SAFETENSORS_INTEROP_DIR`.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use safetensors_candle::train::{self, AdamW, StateOptions};
use safetensors_candle::{load, save};
use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, ErrorKind, Metadata, SaveOptions, TensorBuf, serialize};
use safetensors_testing::dcp::save_rows;
use safetensors_testing::optimizer::{NAMES, fixture, interop_dir, largest_difference};

use crate::common::place;

/// How far losses and tensors may be from PyTorch's, as a part of the largest value. Both compute in
/// F32, with factors in F64, and differ only in the order of sums: some units in the last place.
const TOLERANCE: f64 = 16.0 * f32::EPSILON as f64;

struct Training {
    var_map: VarMap,
    layers: [Linear; 2],
    optimizer: AdamW,
}

impl Training {
    fn new(params: ParamsAdamW) -> Self {
        let var_map = VarMap::new();
        let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
        let fc1 = candle_nn::linear(3, 5, builder.pp("fc1")).unwrap();
        let fc2 = candle_nn::linear(5, 2, builder.pp("fc2")).unwrap();
        let optimizer = AdamW::from_var_map(&var_map, params).unwrap();
        Self { var_map, layers: [fc1, fc2], optimizer }
    }

    fn load(&mut self, checkpoint: &Checkpoint<Vec<u8>>, options: &StateOptions) {
        options.load_from(checkpoint, (&self.var_map, &mut self.optimizer)).unwrap();
    }

    /// Returns the losses before each step, as the fixtures have them.
    fn steps(&mut self, count: usize) -> Vec<f32> {
        let after = load(fixture("adamw_after.safetensors"), &Device::Cpu).unwrap();
        let (x, y) = (&after["x"], &after["y"]);
        let mut losses = Vec::new();
        for _ in 0..count {
            let hidden = self.layers[0].forward(x).unwrap().tanh().unwrap();
            let off = self.layers[1].forward(&hidden).unwrap().sub(y).unwrap();
            let loss = off.sqr().unwrap().mean_all().unwrap();
            losses.push(loss.to_scalar().unwrap());
            self.optimizer.backward_step(&loss).unwrap();
        }
        losses
    }
}

fn names() -> StateOptions {
    StateOptions::new().pytorch(PyTorchTraining::new().parameters(NAMES))
}

/// A fixture in memory, with changes to its tensors and its metadata.
fn changed(
    file: &str,
    change: impl FnOnce(&mut Vec<(String, TensorBuf)>, &mut Metadata),
) -> Checkpoint<Vec<u8>> {
    let checkpoint = Checkpoint::open(fixture(file)).unwrap();
    let tensors = checkpoint.tensors().map(|tensor| (tensor.name().into(), tensor.read().unwrap()));
    let (mut tensors, mut metadata) = (tensors.collect(), checkpoint.metadata().clone());
    change(&mut tensors, &mut metadata);
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    let bytes = serialize(tensors, &SaveOptions::new().metadata(metadata)).unwrap();
    Checkpoint::from_source(bytes, "training.safetensors").unwrap()
}

fn unchanged(file: &str) -> Checkpoint<Vec<u8>> {
    changed(file, |_, _| {})
}

#[test]
fn a_training_of_pytorch_goes_on_with_its_losses() {
    let after = load(fixture("adamw_after.safetensors"), &Device::Cpu).unwrap();
    let expected = after["losses"].to_vec1::<f32>().unwrap();
    let mut training = Training::new(ParamsAdamW::default());
    training.load(&unchanged("adamw.safetensors"), &names());
    assert_eq!(training.optimizer.step_count(), 5);
    let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *training.optimizer.params();
    assert_eq!((lr, beta1, beta2, eps, weight_decay), (0.02, 0.9, 0.999, 1e-8, 0.1));
    let losses = training.steps(expected.len());
    let off = largest_difference(&losses, &expected);
    println!("losses: {off:e}");
    assert!(off <= TOLERANCE, "{off:e}: {losses:?} {expected:?}");

    // The state for PyTorch equals its own after these steps.
    let (_dir, path) = place("checkpoint.safetensors");
    train::save(&path, (&training.var_map, &training.optimizer), &SaveOptions::new()).unwrap();
    let saved = load(&path, &Device::Cpu).unwrap();
    for name in NAMES {
        let pairs = [
            (name.to_owned(), format!("model.{name}")),
            (format!("{name}.exp_avg"), format!("state.{name}.exp_avg")),
            (format!("{name}.exp_avg_sq"), format!("state.{name}.exp_avg_sq")),
        ];
        for (ours, theirs) in pairs {
            let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let off = largest_difference(&values(&saved[&ours]), &values(&after[&theirs]));
            println!("{ours}: {off:e}");
            assert!(off <= TOLERANCE, "{ours}: {off:e}");
        }
    }
}

/// Without the state, the same weights train otherwise: the comparison above can fail.
#[test]
fn without_the_state_the_losses_are_others() {
    let after = load(fixture("adamw_after.safetensors"), &Device::Cpu).unwrap();
    let expected = after["losses"].to_vec1::<f32>().unwrap();
    let params = ParamsAdamW { lr: 0.02, weight_decay: 0.1, ..ParamsAdamW::default() };
    let mut training = Training::new(params);
    names().load_from(&unchanged("adamw.safetensors"), &training.var_map).unwrap();
    let off = largest_difference(&training.steps(expected.len()), &expected);
    assert!(off > 1000.0 * TOLERANCE, "{off:e}");
}

/// `dev/scripts/optimizer_interop.py` goes on from here, and compares the losses.
#[test]
fn a_training_is_saved_for_pytorch() {
    let Some(dir) = interop_dir("adamw") else { return };
    let params = ParamsAdamW { lr: 0.02, weight_decay: 0.1, ..ParamsAdamW::default() };
    let mut training = Training::new(params);
    training.steps(7);
    let state = (&training.var_map, &training.optimizer);
    train::save(dir.join("optimizer.safetensors"), state, &SaveOptions::new()).unwrap();
    let losses = training.steps(20);
    let losses = Tensor::new(losses, &Device::Cpu).unwrap();
    save(dir.join("losses.safetensors"), [("losses", &losses)], &SaveOptions::new()).unwrap();
}

/// The tensors by names, as PyTorch's distributed checkpoints have them, and without settings.
#[test]
fn a_state_by_names_needs_no_order() {
    let checkpoint = changed("adamw.safetensors", |tensors, metadata| {
        metadata.clear();
        for (name, _) in tensors {
            for (number, parameter) in NAMES.iter().enumerate() {
                *name = name.replace(&format!("state.{number}."), &format!("state.{parameter}."));
            }
        }
    });
    let options = StateOptions::new().pytorch(PyTorchTraining::new());
    let params = ParamsAdamW { lr: 0.02, weight_decay: 0.1, ..ParamsAdamW::default() };
    let (mut by_name, mut by_number) =
        (Training::new(params.clone()), Training::new(params.clone()));
    by_name.load(&checkpoint, &options);
    by_number.load(&unchanged("adamw.safetensors"), &names());
    let losses = by_name.steps(9);
    assert_eq!(losses, by_number.steps(9));

    // Tensors of two ranks, by the path of their directory.
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &checkpoint);
    let mut by_path = Training::new(params);
    options.load(dir.path(), (&by_path.var_map, &mut by_path.optimizer)).unwrap();
    assert_eq!(losses, by_path.steps(9));
}

/// Returns the error of a load that must not change anything.
#[track_caller]
fn refused(checkpoint: &Checkpoint<Vec<u8>>, options: &StateOptions) -> ErrorKind {
    let mut training = Training::new(ParamsAdamW::default());
    let all = |training: &Training| {
        let bytes = tempfile::NamedTempFile::new().unwrap();
        let state = (&training.var_map, &training.optimizer);
        train::save(bytes.path(), state, &SaveOptions::new()).unwrap();
        std::fs::read(bytes.path()).unwrap()
    };
    let before = all(&training);
    let error = options.load_from(checkpoint, (&training.var_map, &mut training.optimizer));
    let error = error.unwrap_err();
    assert!(error.file().is_some(), "{error}");
    assert!(before == all(&training), "half loaded: {error}");
    println!("{error}");
    error.into_kind()
}

#[track_caller]
fn problem(checkpoint: &Checkpoint<Vec<u8>>, options: &StateOptions) -> OptimizerProblem {
    match refused(checkpoint, options) {
        ErrorKind::Optimizer { problem } => problem,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn mismatches(checkpoint: &Checkpoint<Vec<u8>>, options: &StateOptions) -> Vec<Mismatch> {
    match refused(checkpoint, options) {
        ErrorKind::Mismatches { mismatches } => mismatches,
        other => panic!("{other}"),
    }
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() {
    let whole = unchanged("adamw.safetensors");
    // Two weights that have changed places.
    let training = PyTorchTraining::new().parameters([NAMES[2], NAMES[1], NAMES[0], NAMES[3]]);
    let found = mismatches(&whole, &StateOptions::new().pytorch(training));
    let (expected, other) = (vec![5, 3], vec![2, 5]);
    let name = "optimizer.state.2.exp_avg".into();
    assert!(found.contains(&Mismatch::Shape { name, expected, found: other }), "{found:?}");

    let missing = changed("adamw.safetensors", |tensors, _| {
        tensors.retain(|(name, _)| !name.starts_with("optimizer.state.1.exp_avg_sq"));
    });
    let name = "optimizer.state.1.exp_avg_sq".into();
    assert_eq!(mismatches(&missing, &names()), [Mismatch::Missing { name }]);

    let frozen = changed("adamw.safetensors", |tensors, _| {
        tensors.retain(|(name, _)| !name.starts_with("optimizer.state.1."));
    });
    let kinds = ["exp_avg", "exp_avg_sq"];
    let expected =
        kinds.map(|kind| Mismatch::Missing { name: format!("optimizer.state.fc1.bias.{kind}") });
    assert_eq!(mismatches(&frozen, &names()), expected);
    Training::new(ParamsAdamW::default()).load(&frozen, &names().allow_missing(true));

    // Another optimizer, and another formula, also where the settings do not show it.
    let found = mismatches(&unchanged("sgd.safetensors"), &names());
    let name = "optimizer.state.0.momentum_buffer".into();
    assert!(found.contains(&Mismatch::Extra { name }), "{found:?}");
    let amsgrad = changed("amsgrad.safetensors", |_, metadata| metadata.clear());
    let found = mismatches(&amsgrad, &names().allow_extra(true));
    let name = "optimizer.state.3.max_exp_avg_sq".into();
    assert!(found.contains(&Mismatch::Extra { name }), "{found:?}");
}

#[test]
fn settings_and_steps_that_candle_cannot_have_are_refused() {
    let with_groups = |groups: &str| {
        let groups = groups.to_owned();
        changed("adamw.safetensors", |_, metadata| {
            metadata.insert("optimizer.param_groups".into(), groups);
        })
    };
    let mut training = Training::new(ParamsAdamW::default());
    for (setting, found) in [
        ("amsgrad", r#"[{"amsgrad": true, "params": [0, 1, 2, 3]}]"#),
        ("maximize", r#"[{"maximize": true, "params": [0, 1, 2, 3]}]"#),
        (
            "decoupled_weight_decay",
            r#"[{"decoupled_weight_decay": false, "weight_decay": 0.1, "params": [0, 1, 2, 3]}]"#,
        ),
    ] {
        let found = problem(&with_groups(found), &names());
        let is_it = matches!(found, OptimizerProblem::Setting { setting: s, .. } if s == setting);
        assert!(is_it, "{found}");
    }
    // Before PyTorch 2.7, Adam and AdamW have the same groups.
    let old = r#"[{"lr": 0.02, "weight_decay": 0.1, "params": [0, 1, 2, 3]}]"#;
    let found = problem(&with_groups(old), &names());
    assert!(matches!(found, OptimizerProblem::AdamOrAdamW), "{found}");
    let said = |is_decoupled| {
        let training = PyTorchTraining::new().parameters(NAMES);
        StateOptions::new().pytorch(training.decoupled_weight_decay(is_decoupled))
    };
    let found = problem(&with_groups(old), &said(false));
    assert!(matches!(found, OptimizerProblem::Setting { .. }), "{found}");
    training.load(&with_groups(old), &said(true));
    training.load(&with_groups(&old.replace("0.1", "0.0")), &names());
    assert_eq!(training.optimizer.params().weight_decay, 0.0);
    let with_step = |value: f32| {
        changed("adamw.safetensors", |tensors, _| {
            for (_, step) in tensors.iter_mut().filter(|(name, _)| name.ends_with(".step")) {
                *step = TensorBuf::from_vec(vec![], vec![value]).unwrap();
            }
        })
    };
    // candle counts as far as `i32`.
    for bad in [2.5, 3e9] {
        let found = problem(&with_step(bad), &names());
        assert!(matches!(found, OptimizerProblem::BadStep { .. }), "{found}");
    }
}
