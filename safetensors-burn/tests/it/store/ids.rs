//! The ids of parameters are saved, and given back where that is asked for.

use super::*;

const KEY: &str = "safetensors_bridge.param_ids";

/// Returns the ids of the parameters. burn's running statistics, which no optimizer changes, keep
/// the ids that they were made with.
fn ids(module: &impl Module) -> Vec<(String, u64)> {
    let mut tensors = module.collect(None, None, false);
    tensors.retain(|tensor| !tensor.name.contains("running"));
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor.param_id.unwrap())).collect()
}

fn metadata(store: &CheckpointStore) -> Metadata {
    let file = Checkpoint::from_source(store.get_bytes().unwrap(), "memory").unwrap();
    file.metadata().clone()
}

/// Loads a module with the ids of the file.
fn load_with_ids(module: &mut impl Module, store: CheckpointStore) -> CheckpointStore {
    let mut store = store.param_ids(true);
    module.load_from(&mut store).unwrap();
    store
}

fn in_memory(module: &impl Module, store: CheckpointStore) -> CheckpointStore {
    let mut store = store;
    module.save_into(&mut store).unwrap();
    store
}

#[test]
fn ids_come_back_and_the_same_module_gives_the_same_bytes() {
    let model = Model::new(2);
    let store = in_memory(&model, CheckpointStore::from_bytes(None));
    let recorded: serde_json::Map<_, _> = serde_json::from_str(&metadata(&store)[KEY]).unwrap();
    assert_eq!(recorded.len(), PATHS.len());
    assert_eq!(recorded["steps"].as_u64(), Some(model.steps.id.val()));

    let mut other = Model::new(7);
    assert_ne!(ids(&model), ids(&other));
    load_with_ids(&mut other, store);
    assert_eq!(ids(&model), ids(&other));

    let model = LinearConfig::new(3, 2).init(&Device::default());
    let mut other = LinearConfig::new(3, 2).init(&Device::default());
    let store = in_memory(&model, CheckpointStore::from_bytes(None));
    let store = load_with_ids(&mut other, store);
    for module in [&model, &other] {
        let again = in_memory(module, CheckpointStore::from_bytes(None));
        assert_eq!(store.get_bytes().unwrap(), again.get_bytes().unwrap());
    }
}

#[test]
fn ids_follow_their_tensors_under_other_names_and_in_shards() {
    let dir = dir();
    let model = Model::new(2);
    let path = dir.path().join("sharded");
    let mut out = CheckpointStore::from_file(&path)
        .max_shard_size(64.into())
        .with_to_adapter(BurnToPyTorchAdapter)
        .with_key_remapping("^", "model.");
    model.save_into(&mut out).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let recorded: serde_json::Map<_, _> =
        serde_json::from_str(&checkpoint.metadata()[KEY]).unwrap();
    assert_eq!(recorded["model.norm.weight"].as_u64(), Some(model.norm.gamma.id.val()));

    let mut other = Model::new(7);
    let back = CheckpointStore::from_file(&path)
        .with_from_adapter(PyTorchToBurnAdapter)
        .with_key_remapping(r"^model\.", "");
    load_with_ids(&mut other, back);
    assert_eq!(ids(&model), ids(&other));
    assert_eq!(state(&model), state(&other));
}

/// Two modules that are loaded from one file have no parameter in common.
#[test]
fn a_module_keeps_its_ids_unless_it_takes_the_files() {
    let model = Model::new(2);
    let with = in_memory(&model, CheckpointStore::from_bytes(None));
    let without = in_memory(&model, CheckpointStore::from_bytes(None).clear_metadata());
    assert!(metadata(&without).is_empty());
    for mut store in [with, without, CheckpointStore::from_bytes(None).param_ids(false)] {
        model.save_into(&mut store).unwrap();
        let mut others = [Model::new(7), Model::new(8)];
        let before = others.each_ref().map(ids);
        for other in &mut others {
            other.load_from(&mut store).unwrap();
            assert_eq!(state(&model), state(other));
        }
        assert_eq!(others.each_ref().map(ids), before);
        assert_eq!(store.get_tensor("steps").unwrap().unwrap().param_id, None);
    }
}

/// An optimizer that is resumed would silently find no state.
#[test]
fn ids_that_the_file_does_not_have_are_an_error() {
    let out = CheckpointStore::from_bytes(None).clear_metadata();
    let error = refused(&mut in_memory(&Model::new(2), out).param_ids(true));
    assert!(matches!(source(&error), StoreError::NoParamIds { key: KEY }), "{error}");
    assert_eq!(error.file(), Some("bytes in memory"));

    let out = CheckpointStore::from_bytes(None).clear_metadata().param_ids(true);
    load_with_ids(&mut Model::new(7), in_memory(&Model::new(2), out));
}

#[test]
fn parameters_that_are_not_loaded_keep_their_ids() {
    let model = Model::new(2);
    let store = in_memory(&model, CheckpointStore::from_bytes(None));
    let mut other = Model::new(7);
    let before = ids(&other);
    load_with_ids(&mut other, store.with_regex("^norm"));
    for (((name, after), (_, before)), (_, saved)) in
        ids(&other).iter().zip(&before).zip(&ids(&model))
    {
        let expected = if name.starts_with("norm") { saved } else { before };
        assert_eq!(after, expected, "{name}");
    }
}

#[derive(Module, Debug)]
struct Pair {
    student: Linear,
    teacher: Linear,
}

impl Pair {
    fn new() -> Self {
        let linear = || LinearConfig::new(2, 2).with_bias(false).init(&Device::default());
        Self { student: linear(), teacher: linear() }
    }
}

/// burn would mix up the gradients of two parameters with one id.
#[test]
fn two_parameters_never_get_one_id() {
    let linear = LinearConfig::new(2, 2).with_bias(false).init(&Device::default());
    let bytes = in_memory(&linear, CheckpointStore::from_bytes(None)).get_bytes().unwrap();
    let mut pair = Pair::new();
    let own = pair.teacher.weight.id;
    for part in ["student.", "teacher."] {
        let store = CheckpointStore::from_bytes(Some(bytes.clone()))
            .with_key_remapping("^", part)
            .allow_partial(true);
        load_with_ids(&mut pair, store);
    }
    assert_eq!(pair.student.weight.to_data(), linear.weight.to_data());
    assert_eq!(pair.teacher.weight.to_data(), linear.weight.to_data());
    assert_eq!((pair.student.weight.id, pair.teacher.weight.id), (linear.weight.id, own));

    // The file ties parameters that the module does not tie.
    let mut tied = Pair::new();
    tied.teacher.weight = tied.student.weight.clone();
    let store = in_memory(&tied, CheckpointStore::from_bytes(None));
    assert_eq!(metadata(&store)["teacher.weight"], "student.weight");
    let mut pair = Pair::new();
    let own = pair.teacher.weight.id;
    let store = load_with_ids(&mut pair, store);
    assert_eq!((pair.student.weight.id, pair.teacher.weight.id), (tied.student.weight.id, own));

    // A module that ties them gets the id twice.
    let mut fresh = Pair::new();
    fresh.teacher.weight = fresh.student.weight.clone();
    load_with_ids(&mut fresh, store);
    assert_eq!(fresh.student.weight.id, tied.student.weight.id);
    assert_eq!(fresh.teacher.weight.id, tied.student.weight.id);
}

/// The file has no id for the teacher, so it keeps its own, which the file has for the student.
#[test]
fn no_parameter_gets_an_id_that_another_one_keeps() {
    let mut fresh = Pair::new();
    let own = (fresh.student.weight.id, fresh.teacher.weight.id);
    let record = format!(r#"{{"student.weight":{}}}"#, own.1.val());
    let out = CheckpointStore::from_bytes(None).clear_metadata().metadata(KEY, record);
    load_with_ids(&mut fresh, in_memory(&Pair::new(), out));
    assert_eq!((fresh.student.weight.id, fresh.teacher.weight.id), own);
}

#[test]
fn a_record_of_other_names_is_ignored_and_a_malformed_one_is_an_error() {
    let load = |record: &str| {
        let linear = LinearConfig::new(2, 2).with_bias(false).init(&Device::default());
        let out = CheckpointStore::from_bytes(None).clear_metadata().metadata(KEY, record);
        let mut fresh = LinearConfig::new(2, 2).with_bias(false).init(&Device::default());
        let own = fresh.weight.id;
        let loaded = fresh.load_from(&mut in_memory(&linear, out).param_ids(true));
        (loaded.map(drop), fresh.weight.id == own)
    };
    let (loaded, is_own) = load(r#"{"other":7}"#);
    assert!(loaded.is_ok() && is_own);
    let (loaded, is_own) = load(r#"{"weight":7}"#);
    assert!(loaded.is_ok() && !is_own);
    for record in ["", "[]", "null", r#"{"weight":"7"}"#, r#"{"weight":-1}"#, r#"{"weight":1e30}"#]
    {
        let error = load(record).0.unwrap_err();
        assert!(matches!(source(&error), StoreError::ParamIds { key: KEY, .. }), "{error}");
        assert_eq!(error.file(), Some("bytes in memory"));
    }
}
