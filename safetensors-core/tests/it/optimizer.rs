//! The state of PyTorch's optimizers: which tensor belongs to which parameter.

use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::optimizer::{OptimizerState, PyTorchTraining};

use crate::support::*;

const GROUPS: &str = "optimizer.param_groups";

/// Makes a checkpoint of tensors with these names, and with this text of groups.
fn checkpoint(names: &[&str], groups: Option<(&str, &str)>) -> Checkpoint<Vec<u8>> {
    let tensor = |name: &&str| {
        let is_step = name.ends_with(".step");
        let shape = if is_step { vec![] } else { vec![1] };
        ((*name).to_owned(), TensorBuf::from_vec(shape, vec![4.0_f32]).unwrap())
    };
    let tensors: Vec<_> = names.iter().map(tensor).collect();
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    let bytes = serialize(tensors, &SaveOptions::new().metadata(groups)).unwrap();
    Checkpoint::from_source(bytes, "training.safetensors").unwrap()
}

/// Two parameters. The first has no state.
const NAMES: [&str; 3] =
    ["optimizer.state.1.exp_avg", "optimizer.state.1.step", "model.norm.running_mean"];

fn problem(result: Result<OptimizerState>) -> OptimizerProblem {
    let error = result.unwrap_err();
    assert_eq!(error.file(), Some("training.safetensors"), "{error}");
    match error.into_kind() {
        ErrorKind::Optimizer { problem } => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn numbers_are_positions_among_the_names() {
    let training = PyTorchTraining::new().parameters(["frozen", "norm.weight"]);
    let groups = r#"[{"lr": 1, "params": [0]}, {"lr": 1, "betas": null, "params": [1]}]"#;
    for groups in [None, Some((GROUPS, groups))] {
        let state = training.state(&checkpoint(&NAMES, groups)).unwrap();
        assert_eq!(state.parameters().map(|(name, _)| name).collect::<Vec<_>>(), ["norm.weight"]);
        let norm = state.get("norm.weight").unwrap();
        assert_eq!(state.tensor("norm.weight", "exp_avg"), "optimizer.state.1.exp_avg");
        assert_eq!(norm.steps(), Some(4));
        assert_eq!(norm.kinds().collect::<Vec<_>>(), ["exp_avg"]);
        assert_eq!(state.tensor("frozen", "exp_avg"), "optimizer.state.frozen.exp_avg");
        assert_eq!(state.steps().unwrap(), Some(4));
        assert_eq!(state.setting::<f64>("lr").unwrap(), groups.map(|_| 1.0));
        assert_eq!(state.setting::<[f64; 2]>("betas").unwrap(), None);
        assert_eq!(state.setting::<f64>("momentum").unwrap(), None);
    }
    assert!(training.is_of_model("model.norm.running_mean"));
    assert!(!training.is_of_model("optimizer.state.1.step") && !training.is_of_model("model"));
    let whole = PyTorchTraining::new().model("").optimizer("optim.adam");
    assert!(whole.is_of_model("a") && !whole.is_of_model("optim.adam.state.0.step"));
    assert_eq!((whole.in_model("a"), training.in_model("a")), ("a".into(), "model.a".into()));
}

#[test]
fn the_file_may_have_the_names() {
    let groups = r#"[{"params": [0, 1], "param_names": ["a.0", "b"]}]"#;
    let file = checkpoint(&NAMES, Some((GROUPS, groups)));
    let state = PyTorchTraining::new().state(&file).unwrap();
    assert!(state.get("b").is_some());
    let named = PyTorchTraining::new().parameters(["c", "d"]).state(&file).unwrap();
    assert!(named.get("d").is_some(), "names of the caller count more");

    // By names, as distributed checkpoints have them, at the root.
    let groups = ("param_groups", r#"[{"params": ["0.weight"], "lr": 0.5}]"#);
    let file = checkpoint(&["state.0.weight.exp_avg", "state.0.weight.step"], Some(groups));
    let root = PyTorchTraining::new().optimizer("");
    let state = root.state(&file).unwrap();
    assert_eq!(state.get("0.weight").unwrap().steps(), Some(4));
    assert_eq!(state.setting::<f64>("lr").unwrap(), Some(0.5));
    let found = problem(root.parameters(["0.weight"]).state(&file));
    assert!(matches!(found, OptimizerProblem::NamesNotNeeded), "{found}");
}

#[test]
fn unclear_parameter_names_are_never_guessed() {
    let file = |groups| checkpoint(&NAMES, Some((GROUPS, groups)));
    let two = || PyTorchTraining::new().parameters(["a", "b"]);
    let found = problem(PyTorchTraining::new().state(&checkpoint(&NAMES, None)));
    assert!(matches!(found, OptimizerProblem::NoNames { found: 2 }), "{found}");
    let found = problem(two().parameters(["c"]).state(&checkpoint(&NAMES, None)));
    let is_it = matches!(found, OptimizerProblem::NumberOfNames { expected: 3, found: 2 });
    assert!(is_it, "{found}");
    let found = problem(two().state(&file(r#"[{"params": [0, 1, 2]}]"#)));
    let is_it = matches!(found, OptimizerProblem::NumberOfNames { expected: 2, found: 3 });
    assert!(is_it, "{found}");
    let twice = PyTorchTraining::new().parameters(["a", "a"]);
    let found = problem(twice.state(&checkpoint(&NAMES, None)));
    assert!(matches!(found, OptimizerProblem::DuplicateName { .. }), "{found}");
    let found = problem(two().optimizer("optim").state(&checkpoint(&NAMES, None)));
    let OptimizerProblem::NoState { expected } = found else { panic!("{found}") };
    assert_eq!(expected, "optim.state.0.exp_avg");

    // Of hostile or other programs.
    for groups in [
        "",
        "{}",
        "[1]",
        r#"[{"lr": 1}]"#,
        r#"[{"params": 2}]"#,
        r#"[{"params": [0]}]"#,
        r#"[{"params": [1, 0]}]"#,
        r#"[{"params": [0, "b"]}]"#,
        r#"[{"params": [0, 1], "lr": 1, "lr": 2}]"#,
        r#"[{"params": [0, 1], "param_names": ["a"]}]"#,
        r#"[{"params": [0, 1], "param_names": ["a", 1]}]"#,
    ] {
        let found = problem(two().state(&file(groups)));
        assert!(matches!(found, OptimizerProblem::BadGroups { .. }), "{groups}: {found}");
    }
    let setting = two().state(&file(r#"[{"params": [0, 1], "lr": "fast"}]"#)).unwrap();
    assert!(setting.setting::<f64>("lr").is_err());
    // A learning rate in a tensor would be lost.
    let tensor = checkpoint(&[NAMES[0], "optimizer.param_groups.0.lr"], None);
    assert!(matches!(problem(two().state(&tensor)), OptimizerProblem::BadGroups { .. }));
    let most = format!("optimizer.state.{}.exp_avg", usize::MAX - 1);
    let found = problem(two().state(&checkpoint(&[&most], None)));
    assert!(matches!(found, OptimizerProblem::NumberOfNames { .. }), "{found}");
    for odd in ["optimizer.state.exp_avg", "optimizer.state..exp_avg", "optimizer.state.0."] {
        let error = two().state(&checkpoint(&[odd], None)).unwrap_err();
        let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!("{error}") };
        assert_eq!(mismatches[..], [Mismatch::Extra { name: odd.into() }]);
    }
}
