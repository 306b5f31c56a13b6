//! A file that does not fit is an error that names the file, the tensor, and the expected value.
//! The module and the old file stay unchanged.

use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::{LinearConfig, Lstm, LstmConfig};
use burn::tensor::DType;
use safetensors_burn::burn_pack::Tensor as PackTensor;
use safetensors_burn::{
    ApplyError, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext,
    PyTorchToBurnAdapter, StoreError, save,
};
use safetensors_core::{Error, ErrorKind, SaveOptions};

use super::*;

/// Loads a file. Expects an error and an unchanged module.
fn refused<L: Module + ModuleDisplay>(path: &Path, layer: L) -> Error {
    let mut net = Net { layer };
    let before = state(&net);
    let error = net.load_from(&mut CheckpointStore::from_file(path).pytorch(true)).unwrap_err();
    assert_eq!(before, state(&net));
    assert_eq!(error.file(), path.to_str());
    error
}

fn lstm() -> Lstm {
    LstmConfig::new(3, 5, true).init(&Device::default())
}

/// A file of the LSTM in which one tensor is replaced or removed.
fn changed(dir: &TempDir, name: &str, data: Option<TensorData>) -> PathBuf {
    let path = dir.path().join("changed.safetensors");
    let mut tensors = layer_of(&fixture("lstm"));
    tensors.remove(name);
    tensors.extend(data.map(|data| (name.to_owned(), data)));
    save(&path, &tensors, &SaveOptions::new()).unwrap();
    path
}

#[test]
fn a_tensor_that_cannot_be_split_is_an_error() {
    let dir = dir();
    let name = "layer.weight_hh_l0";
    // Too few rows for the gates, no equal parts, no matrix.
    for shape in [&[16, 5][..], &[19, 5], &[100], &[20, 5, 1], &[]] {
        let path = changed(&dir, name, Some(TensorData::zeros::<f32, _>(shape.to_vec())));
        let error = refused(&path, lstm());
        assert_eq!(error.tensor(), Some(name), "{shape:?}");
        let ApplyError::ShapeMismatch { path: parameter, expected, found } = source(&error) else {
            panic!("{error:?}")
        };
        assert_eq!(parameter, "layer.input_gate.hidden_transform.weight");
        assert_eq!((&expected[..], &found[..]), (&[20, 5][..], shape));
    }
    // A matrix that is transposed already.
    let path = changed(&dir, name, Some(TensorData::zeros::<f32, _>([5, 20])));
    let error = refused(&path, lstm());
    let expected = StoreError::Transposed { expected: [20, 5], found: [5, 20], is_adapted: true };
    assert_eq!(source::<StoreError>(&error).to_string(), expected.to_string());

    // Like burn-store: tensors that do not fit are listed, the rest is loaded.
    let path = changed(&dir, name, Some(TensorData::zeros::<f32, _>([16, 5])));
    let mut net = Net { layer: lstm() };
    let mut store = CheckpointStore::from_file(&path).pytorch(true).validate(false);
    let result = net.load_from(&mut store).unwrap();
    assert_eq!((result.errors.len(), result.applied.len()), (4, 12));
}

#[test]
fn a_tensor_of_another_kind_is_an_error() {
    let dir = dir();
    let integers = TensorData::zeros::<i32, _>([20]);
    let path = changed(&dir, "layer.bias_ih_l0", Some(integers));
    let error = refused(&path, lstm());
    assert_eq!(error.tensor(), Some("layer.bias_ih_l0"));
    assert!(matches!(source(&error), ApplyError::DTypeMismatch { .. }), "{error}");
}

#[test]
fn a_missing_tensor_is_named_once_as_pytorch_names_it() {
    let dir = dir();
    let path = changed(&dir, "layer.weight_hh_l0", None);
    let error = refused(&path, lstm());
    let StoreError::Missing { names } = source(&error) else { panic!("{error:?}") };
    assert_eq!(names, &["layer.weight_hh_l0"]);

    let mut net = Net { layer: lstm() };
    let before = net.layer.cell_gate.hidden_transform.weight.to_data();
    let mut store = CheckpointStore::from_file(&path).pytorch(true).allow_partial(true);
    let result = net.load_from(&mut store).unwrap();
    assert_eq!((result.missing.len(), result.applied.len()), (4, 12));
    assert_eq!(net.layer.cell_gate.hidden_transform.weight.to_data(), before);
}

#[test]
fn parts_that_the_module_lacks_are_not_dropped_silently() {
    let device = Device::default();
    // An LSTM without a forget gate, and an attention without a bias of the key.
    let error = refused(
        &fixture("lstm"),
        LstmConfig::new(3, 5, true).with_input_forget(true).init(&device),
    );
    assert_eq!(error.tensor(), Some("layer.bias_hh_l0"));
    let StoreError::OtherParts { expected: 4, found } = source(&error) else { panic!("{error:?}") };
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], "layer.input_gate.hidden_transform.bias");

    let attention = || MultiHeadAttentionConfig::new(8, 2).with_key_bias(false).init(&device);
    let error = refused(&fixture("attention"), attention());
    assert_eq!(error.tensor(), Some("layer.in_proj_bias"));

    // PyTorch has no tensor for two biases, so saving is an error too.
    let (_dir, path) = place("saved.safetensors");
    std::fs::write(&path, "old").unwrap();
    let net = Net { layer: attention() };
    let store = || CheckpointStore::from_file(&path).pytorch(true).overwrite(true);
    let error = net.save_into(&mut store()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("layer.in_proj_bias"), path.to_str()));
    let StoreError::OtherParts { expected: 3, found } = source(&error) else { panic!("{error:?}") };
    assert_eq!(found, &["layer.query.bias", "layer.value.bias"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    // As separate tensors it can be saved.
    net.save_into(&mut store().fused_attention(false)).unwrap();
    Net { layer: attention() }.load_from(&mut store()).unwrap();
}

#[test]
fn a_filter_chooses_parameters_on_loading_and_tensors_on_saving() {
    let mut net = Net { layer: lstm() };
    let before = net.layer.forget_gate.clone().unwrap().input_transform.weight.to_data();
    let mut store = CheckpointStore::from_file(fixture("lstm"))
        .pytorch(true)
        .with_regex("input_gate|cell_gate");
    let result = net.load_from(&mut store).unwrap();
    assert_eq!((result.applied.len(), result.skipped.len()), (8, 8));
    let after = net.layer.forget_gate.clone().unwrap().input_transform.weight.to_data();
    assert_eq!(before, after);

    let (_dir, path) = place("saved.safetensors");
    let store = |pattern| CheckpointStore::from_file(&path).pytorch(true).with_regex(pattern);
    let error = net.save_into(&mut store("input_gate|cell_gate")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NothingSelected { found: 16 }), "{error}");
    assert!(!path.exists());
    net.save_into(&mut store("weight")).unwrap();
    assert!(layer_of(&path).into_keys().eq(["layer.weight_hh_l0", "layer.weight_ih_l0"]));
}

#[test]
fn parts_of_unlike_dtypes_or_shapes_are_not_joined() {
    let (_dir, path) = place("saved.safetensors");
    let device = Device::default();
    let mut net = Net { layer: lstm() };
    net.layer.output_gate.input_transform = LinearConfig::new(3, 6).init(&device);
    let error = net.save_into(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("layer.bias_ih_l0"), path.to_str()));
    let text = error.to_string();
    for part in ["layer.output_gate.input_transform.bias", "[6]", "[5]"] {
        assert!(text.contains(part), "{text}");
    }

    net.layer = lstm();
    let linear = &mut net.layer.output_gate.input_transform;
    linear.weight = linear.weight.clone().map(|weight| weight.cast(DType::F16));
    let error = net.save_into(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap_err();
    assert_eq!(error.tensor(), Some("layer.weight_ih_l0"));
    assert!(matches!(source(&error), StoreError::UnlikeParts { .. }), "{error}");
    assert!(!path.exists());
}

/// Names the parameters of norms as older versions of PyTorch's models do.
#[derive(Clone)]
struct OldNames;

impl ModuleAdapter for OldNames {
    fn adapt(&self, mut tensor: PackTensor, _: ModuleContext<'_>) -> PackTensor {
        tensor.name = tensor.name.replace("gamma", "scale");
        tensor
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

#[test]
fn a_parameter_that_an_adapter_renames_is_saved_as_the_adapter_leaves_it() {
    let (_dir, path) = place("saved.safetensors");
    let net = Net { layer: burn::nn::LayerNormConfig::new(4).init(&Device::default()) };
    let mut store = CheckpointStore::from_file(&path).pytorch(true).with_to_adapter(OldNames);
    net.save_into(&mut store).unwrap();
    assert_eq!(layer_of(&path).into_keys().collect::<Vec<_>>(), ["layer.bias", "layer.scale"]);
}

#[test]
fn an_adapter_that_transposes_too_is_an_error() {
    // Without it, a square weight would be transposed twice, and nothing would show it.
    let net = || Net { layer: LinearConfig::new(4, 4).init(&Device::default()) };
    let path = fixture("linear_square");
    let store = || CheckpointStore::from_file(&path).pytorch(true);
    let loaded = net().load_from(&mut store().with_from_adapter(PyTorchToBurnAdapter)).unwrap_err();
    let dir = dir();
    let new = dir.path().join("saved.safetensors");
    let mut store = CheckpointStore::from_file(&new).pytorch(true);
    store = store.with_to_adapter(FloatCastAdapter::to(DType::F64).chain(BurnToPyTorchAdapter));
    let saved = net().save_into(&mut store).unwrap_err();
    for (error, path) in [(loaded, &path), (saved, &new)] {
        assert!(matches!(source(&error), StoreError::TransposedTwice), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    assert!(!new.exists());
}
