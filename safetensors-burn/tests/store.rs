//! Modules to files and from files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use burn::module::{Initializer, Module, Param, ParamId, Parameter};
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use safetensors_burn::{
    ApplyError, BurnToPyTorchAdapter, CheckpointStore, FloatCastAdapter, ModuleSnapshot, ModuleStore, PathFilter,
    PyTorchToBurnAdapter, StoreError, load, save,
};
use safetensors_core::{Checkpoint, Dtype, Error, ErrorKind, SaveOptions, TensorView, Widening};
use tempfile::TempDir;

#[derive(Module, Debug)]
struct Model {
    encoder: Linear,
    layers: Vec<Linear>,
    norm: LayerNorm,
    batch: BatchNorm,
    steps: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
}

fn initialized<T: Parameter>(value: T) -> Param<T> {
    Param::initialized(ParamId::new(), value)
}

impl Model {
    /// A model of random weights, and of other steps and mask than any other seed's.
    fn new(seed: i64) -> Self {
        let device = Device::default();
        Self {
            encoder: LinearConfig::new(3, 4).init(&device),
            layers: (0..2).map(|_| LinearConfig::new(4, 4).with_bias(false).init(&device)).collect(),
            norm: LayerNormConfig::new(4).init(&device),
            batch: BatchNormConfig::new(4).init(&device),
            steps: initialized(Tensor::from_data(TensorData::from([seed, seed + 1]), (&device, DType::I64))),
            mask: initialized(Tensor::from_data(TensorData::from([[seed % 2 == 0, true]]), &device)),
        }
    }
}

const PATHS: [&str; 12] = [
    "batch.beta",
    "batch.gamma",
    "batch.running_mean",
    "batch.running_var",
    "encoder.bias",
    "encoder.weight",
    "layers.0.weight",
    "layers.1.weight",
    "mask",
    "norm.beta",
    "norm.gamma",
    "steps",
];

/// Everything that a module holds, by path.
fn state(module: &impl Module) -> Vec<(String, TensorData)> {
    let tensors = module.collect(None, None, false);
    tensors.into_iter().map(|tensor| (tensor.name.clone(), data_of(&tensor))).collect()
}

fn data_of(tensor: &burn_store::burn_pack::Tensor) -> TensorData {
    burn_store::bridge::to_data(tensor).unwrap()
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn saved(dir: &TempDir, module: &impl Module) -> CheckpointStore {
    let path = dir.path().join("model.safetensors");
    module.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    CheckpointStore::from_file(path)
}

/// The typed error inside an [`ErrorKind::Framework`].
fn source<T: std::error::Error + 'static>(error: &Error) -> &T {
    let ErrorKind::Framework { framework: "burn", source } = error.kind() else { panic!("{error:?}") };
    source.downcast_ref().unwrap_or_else(|| panic!("{source}"))
}

#[test]
fn a_module_comes_back_bit_for_bit() {
    let dir = dir();
    let model = Model::new(2);
    let mut store = saved(&dir, &model);
    assert_eq!(store.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    let ids: Vec<_> = other.collect(None, None, false).iter().map(|tensor| tensor.param_id).collect();
    assert_ne!(state(&model), state(&other));
    let result = other.load_from(&mut store).unwrap();
    assert_eq!(state(&model), state(&other));
    let mut applied = result.applied.clone();
    applied.sort_unstable();
    assert_eq!(applied, PATHS);
    assert!(result.skipped.is_empty() && result.missing.is_empty() && result.unused.is_empty() && result.is_success());
    // The module keeps its own parameter ids.
    let after: Vec<_> = other.collect(None, None, false).iter().map(|tensor| tensor.param_id).collect();
    assert_eq!(ids, after);
}

#[test]
fn files_say_pt_and_have_plain_dtypes() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    Model::new(1).save_into(&mut CheckpointStore::from_file(&path).metadata("title", "Test")).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let metadata: Vec<_> = checkpoint.metadata().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(metadata, [("format", "pt"), ("title", "Test")]);
    assert_eq!(checkpoint.tensor("mask").unwrap().dtype(), Dtype::BOOL);
    assert_eq!(checkpoint.tensor("steps").unwrap().dtype(), Dtype::I64);
    assert_eq!(checkpoint.tensor("encoder.weight").unwrap().shape(), [3, 4]);

    let mut store = CheckpointStore::from_file(&path).save_options(SaveOptions::new());
    Model::new(1).save_into(&mut store).unwrap();
    assert!(Checkpoint::open(&path).unwrap().metadata().is_empty());
}

#[test]
fn a_sharded_checkpoint_loads_from_its_directory_and_its_index() {
    let dir = dir();
    let model = Model::new(4);
    let tensors = state(&model);
    let (first, second) = tensors.split_at(5);
    let mut map = Vec::new();
    for (file, shard) in [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)] {
        save(dir.path().join(file), shard.iter().map(|(name, data)| (name, data)), &SaveOptions::new()).unwrap();
        map.extend(shard.iter().map(|(name, _)| format!("{name:?}:{file:?}")));
    }
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(","))).unwrap();
    for path in [dir.path(), &index] {
        let mut other = Model::new(9);
        other.load_from(&mut CheckpointStore::from_file(path)).unwrap();
        assert_eq!(state(&model), state(&other));
    }
    // A tensor that does not fit is named together with the shard that it lies in.
    let (name, others) = (first[0].0.as_str(), &first[1..]);
    let wrong = TensorData::from([1.0_f32]);
    let shard = dir.path().join("model-00001-of-00002.safetensors");
    let tensors = others.iter().map(|(name, data)| (name.as_str(), data)).chain([(name, &wrong)]);
    save(&shard, tensors, &SaveOptions::new()).unwrap();
    let error = refused(&mut CheckpointStore::from_file(dir.path()));
    assert!(matches!(source(&error), ApplyError::ShapeMismatch { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some(name), shard.to_str()));
    // Saving would put tensors in the index's place.
    let error = model.save_into(&mut CheckpointStore::from_file(&index)).unwrap_err();
    assert!(matches!(source(&error), StoreError::IndexDestination), "{error}");
    assert!(error.file().unwrap().ends_with("index.json"));
    assert!(matches!(
        model.save_into(&mut CheckpointStore::from_file(dir.path())).unwrap_err().kind(),
        ErrorKind::NotAFile { .. }
    ));
}

/// Loads into a fresh model, expects failure, and expects the model to be as it was.
fn refused(store: &mut CheckpointStore) -> Error {
    let mut model = Model::new(11);
    let before = state(&model);
    let error = model.load_from(store).unwrap_err();
    assert_eq!(before, state(&model));
    error
}

/// A file of a model's tensors, of which one is replaced, removed or added.
fn changed(path: &Path, name: &str, data: Option<TensorData>) {
    let mut tensors = state(&Model::new(5));
    tensors.retain(|(other, _)| other != name);
    tensors.extend(data.map(|data| (name.to_owned(), data)));
    save(path, tensors.iter().map(|(name, data)| (name, data)), &SaveOptions::new()).unwrap();
}

#[test]
fn a_wrong_shape_is_an_error_and_the_module_stays_as_it_was() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    changed(&path, "norm.gamma", Some(TensorData::from([1.0_f32, 2.0])));
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert_eq!((error.tensor(), error.file()), (Some("norm.gamma"), path.to_str()));
    let ApplyError::ShapeMismatch { path: tensor, expected, found } = source(&error) else { panic!("{error:?}") };
    assert_eq!((tensor.as_str(), &expected[..], &found[..]), ("norm.gamma", &[4][..], &[2][..]));

    let mut model = Model::new(11);
    let before = state(&model);
    let result = model.load_from(&mut CheckpointStore::from_file(&path).validate(false)).unwrap();
    assert!(matches!(result.errors.as_slice(), [ApplyError::ShapeMismatch { path, .. }] if path == "norm.gamma"));
    assert_eq!(result.applied.len(), PATHS.len() - 1);
    for ((name, before), (_, after)) in before.iter().zip(state(&model)) {
        // Beta, mean and variance are the same in every fresh model.
        if name == "norm.gamma" {
            assert_eq!(*before, after);
        }
        if name == "steps" || name.ends_with("weight") {
            assert_ne!(*before, after, "{name}");
        }
    }
}

#[test]
fn a_wrong_kind_is_an_error() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    for (name, data) in [
        ("steps", TensorData::from([1.0_f32, 2.0])),
        ("encoder.bias", TensorData::from([1_i32, 2, 3, 4])),
        ("mask", TensorData::from([[1_i64, 0]])),
    ] {
        changed(&path, name, Some(data));
        let error = refused(&mut CheckpointStore::from_file(&path));
        assert_eq!(error.tensor(), Some(name));
        assert!(matches!(source(&error), ApplyError::DTypeMismatch { .. }), "{error}");
    }
    // Booleans that another library stored as bytes are booleans.
    changed(&path, "mask", Some(TensorData::from([[1_u8, 0]])));
    let mut model = Model::new(2);
    model.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(model.mask.to_data(), TensorData::from([[true, false]]));
    // Other integers are not: nothing says which of them would be true.
    changed(&path, "mask", Some(TensorData::from([[0_u8, 2]])));
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert_eq!(error.tensor(), Some("mask"));
    assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, to: Dtype::BOOL, .. }), "{error}");
}

#[test]
fn missing_and_unused_tensors() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    changed(&path, "encoder.bias", None);
    let error = refused(&mut CheckpointStore::from_file(&path));
    let StoreError::Missing { names } = source(&error) else { panic!("{error:?}") };
    assert_eq!(names, &["encoder.bias"]);
    assert_eq!(error.file(), path.to_str());
    assert!(source::<StoreError>(&error).to_string().contains("encoder.bias"));

    let mut model = Model::new(3);
    let bias = model.encoder.bias.as_ref().unwrap().to_data();
    let result = model.load_from(&mut CheckpointStore::from_file(&path).allow_partial(true)).unwrap();
    assert_eq!(result.missing, [("encoder.bias".into(), "Struct:Model.Struct:Linear".into())]);
    assert_eq!(model.encoder.bias.as_ref().unwrap().to_data(), bias);
    assert_eq!(model.steps.to_data(), TensorData::from([5_i64, 6]));

    changed(&path, "extra", Some(TensorData::from([1_u8])));
    let result = Model::new(3).load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(result.unused, ["extra"]);
}

#[test]
fn filters_choose_parameters_on_both_ways() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let (model, mut other) = (Model::new(2), Model::new(7));
    let mut store = saved(&dir, &model).with_regex(r"^layers\.\d\.").unwrap().with_full_path("steps");
    let result = other.load_from(&mut store).unwrap();
    assert_eq!(result.applied, ["layers.0.weight", "layers.1.weight", "steps"]);
    assert_eq!(result.skipped.len(), PATHS.len() - 3);
    assert!(result.missing.is_empty() && result.unused.is_empty());
    assert_eq!(other.layers[1].weight.to_data(), model.layers[1].weight.to_data());
    assert_eq!(other.steps.to_data(), model.steps.to_data());
    assert_ne!(other.encoder.weight.to_data(), model.encoder.weight.to_data());

    let saved_names = |store: CheckpointStore| {
        let mut store = store;
        model.save_into(&mut store).unwrap();
        store.keys().unwrap()
    };
    let store = || CheckpointStore::from_file(&path);
    assert_eq!(saved_names(store().with_regex("^norm").unwrap()), ["norm.beta", "norm.gamma"]);
    assert_eq!(saved_names(store().with_full_paths(["mask", "steps"])), ["mask", "steps"]);
    assert_eq!(saved_names(store().filter(PathFilter::from_paths(["mask"]))), ["mask"]);
    let in_linear: fn(&str, &str) -> bool = |path, within| within.ends_with("Struct:Linear") && path.ends_with("bias");
    assert_eq!(saved_names(store().with_predicate(in_linear)), ["encoder.bias"]);
    assert_eq!(saved_names(store().with_regex("^norm").unwrap().match_all()), PATHS);

    // A file of the norm alone is complete for a store that asks for nothing else.
    saved_names(store().with_regex("^norm").unwrap());
    let mut other = Model::new(7);
    assert!(
        matches!(source(&other.load_from(&mut store()).unwrap_err()), StoreError::Missing { names } if names.len() == 10)
    );
    assert_eq!(other.load_from(&mut store().with_regex("^norm").unwrap()).unwrap().applied.len(), 2);

    let error = store().with_regex("(").err().unwrap();
    assert!(matches!(source(&error), StoreError::Pattern(_)), "{error}");
}

#[test]
fn names_are_remapped_on_both_ways() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let model = Model::new(2);
    let mut out = CheckpointStore::from_file(&path)
        .with_key_remapping(r"^layers\.(\d+)\.", "blocks.$1.inner.")
        .and_then(|store| store.with_key_remapping("^blocks", "transformer.blocks"))
        .unwrap();
    model.save_into(&mut out).unwrap();
    let names: Vec<_> = load(&path).unwrap().into_keys().collect();
    assert!(names.contains(&"transformer.blocks.1.inner.weight".into()), "{names:?}");

    let mut back = CheckpointStore::from_file(&path)
        .with_key_remapping(r"^transformer\.blocks\.(\d+)\.inner\.", "layers.$1.")
        .unwrap();
    assert_eq!(back.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    other.load_from(&mut back).unwrap();
    assert_eq!(state(&model), state(&other));

    let mut clash = CheckpointStore::from_file(&path).with_key_remapping(r"blocks\.\d", "blocks").unwrap();
    let error = clash.keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("transformer.blocks.inner.weight"), path.to_str()));
    let mut clash = CheckpointStore::from_file(&path).with_key_remapping(r"^layers\.\d", "layers").unwrap();
    let error = model.save_into(&mut clash).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert!(matches!(
        source(&CheckpointStore::from_file(&path).with_key_remapping("[", "").err().unwrap()),
        StoreError::Pattern(_)
    ));
}

#[test]
fn tensors_can_be_fetched_without_a_module() {
    let dir = dir();
    let model = Model::new(2);
    let mut store = saved(&dir, &model);
    let steps = store.get_tensor("steps").unwrap().unwrap();
    assert_eq!((steps.dtype, &steps.shape[..], steps.byte_len()), (DType::I64, &[2][..], 16));
    assert_eq!(data_of(steps), model.steps.to_data());
    // Again: a store reads when it is asked to, as often as it is.
    assert_eq!(data_of(steps), model.steps.to_data());
    assert!(store.get_tensor("absent").unwrap().is_none());
    assert_eq!(store.get_all_tensors().unwrap().len(), PATHS.len());
    let error = CheckpointStore::from_file(dir.path().join("absent.safetensors")).keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

#[test]
fn pytorch_layouts_and_names_are_adapted() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let model = Model::new(2);
    model.save_into(&mut CheckpointStore::from_file(&path).with_to_adapter(BurnToPyTorchAdapter)).unwrap();
    let tensors = load(&path).unwrap();
    assert_eq!(tensors["encoder.weight"].shape()[..], [4, 3]);
    assert_eq!(tensors["norm.weight"], model.norm.gamma.to_data());
    let mut other = Model::new(7);
    let mut store = CheckpointStore::from_file(&path).with_from_adapter(PyTorchToBurnAdapter);
    let result = other.load_from(&mut store).unwrap();
    assert!(result.unused.is_empty());
    assert_eq!(state(&model), state(&other));

    // Without the adapter the transposed weight does not fit.
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert_eq!(error.tensor(), Some("encoder.weight"));
}

#[test]
fn a_parameter_takes_the_dtype_of_the_file_or_of_a_cast() {
    #[derive(Module, Debug)]
    struct Vector {
        values: Param<Tensor<1>>,
    }
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let view = TensorView::new(Dtype::F8_E4M3, &[2], &[0x38, 0xb0]).unwrap();
    safetensors_core::save(&path, [("values", view)], &SaveOptions::new()).unwrap();
    let fresh = || Vector { values: Initializer::Zeros.init([2], &Device::default()) };

    let mut vector = fresh();
    vector.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(vector.values.val().dtype(), DType::F16);
    let mut vector = fresh();
    let mut store = CheckpointStore::from_file(&path).with_from_adapter(FloatCastAdapter::to(DType::F32));
    vector.load_from(&mut store).unwrap();
    assert_eq!(vector.values.to_data(), TensorData::from([1.0_f32, -0.5]));

    let error = fresh().load_from(&mut CheckpointStore::from_file(&path).widening(Widening::Exact)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldWiden { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("values"), path.to_str()));
}

#[test]
fn exact_loading_refuses_only_what_is_loaded() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
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
    let store = || CheckpointStore::from_file(&path).widening(Widening::Exact);

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
    assert!(error.to_string().contains("exact loading does not allow"), "{error}");
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
fn enum_variants_may_be_left_out_of_names() {
    #[derive(Module, Debug)]
    enum Block {
        Plain(Linear),
    }
    #[derive(Module, Debug)]
    struct Net {
        block: Block,
    }
    let net = || Net { block: Block::Plain(LinearConfig::new(2, 2).with_bias(false).init(&Device::default())) };
    let dir = dir();
    let path = dir.path().join("net.safetensors");
    let first = net();
    first.save_into(&mut CheckpointStore::from_file(&path).skip_enum_variants(true)).unwrap();
    let mut store = CheckpointStore::from_file(&path).skip_enum_variants(true);
    assert_eq!(store.keys().unwrap(), ["block.weight"]);
    let mut second = net();
    second.load_from(&mut store).unwrap();
    assert_eq!(state(&first), state(&second));
    let error = second.load_from(&mut CheckpointStore::from_file(&path)).unwrap_err();
    assert!(matches!(source(&error), StoreError::Missing { names } if names == &["block.Plain.weight"]), "{error}");
}

#[test]
fn damaged_files_are_errors_and_the_module_stays_as_it_was() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    saved(&dir, &Model::new(2));
    let bytes = std::fs::read(&path).unwrap();

    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert!(matches!(error.kind(), ErrorKind::MissingData { .. }), "{error}");
    assert_eq!(error.file(), path.to_str());

    std::fs::write(&path, &bytes[..5]).unwrap();
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert!(matches!(error.kind(), ErrorKind::TooShort { .. }), "{error}");

    // The mask, the only tensor of bytes, lies at the end.
    let mut invalid = bytes.clone();
    *invalid.last_mut().unwrap() = 2;
    std::fs::write(&path, &invalid).unwrap();
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("mask"), path.to_str()));

    // Cut off after it was opened.
    std::fs::write(&path, &bytes).unwrap();
    let mut store = CheckpointStore::from_file(&path);
    store.keys().unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64 - 100).unwrap();
    let error = refused(&mut store);
    assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.tensor().is_some(), "{error}");
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    #[derive(Module, Debug)]
    struct Quantized {
        weight: Param<Tensor<2>>,
    }
    let dir = dir();
    let mut store = saved(&dir, &Model::new(2));
    let device = Device::default();
    let weight = Tensor::<2>::ones([4, 8], &device).quantize_dynamic(&Default::default());
    let error = Quantized { weight: initialized(weight) }.save_into(&mut store).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnsupportedFrameworkType { .. }), "{error}");
    assert_eq!(error.tensor(), Some("weight"));
    assert_eq!(store.keys().unwrap(), PATHS);
}

#[test]
fn a_panic_of_the_backend_is_an_error_and_the_module_stays_as_it_was() {
    let dir = dir();
    let linear = LinearConfig::new(2, 2).init(&Device::default());
    let mut store = saved(&dir, &linear);
    let mut other = LinearConfig::new(2, 2).init(&Device::default());
    // What a device that lacks the dtype does when it is given the tensor.
    other.weight = other.weight.load_mapper(|_| panic!("no such dtype here"));
    let before = state(&other);
    let error = other.load_from(&mut store).unwrap_err();
    assert!(matches!(source(&error), StoreError::Panicked { message } if message == "no such dtype here"), "{error:?}");
    assert_eq!(error.tensor(), Some("weight"));
    assert_eq!(state(&other), before);
}
