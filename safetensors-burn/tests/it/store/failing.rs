//! A failed load leaves the module as it was, and a failed save leaves the file as it was.

use super::*;

#[test]
fn a_wrong_shape_is_an_error_and_the_module_stays_as_it_was() {
    let (_dir, path) = place("model.safetensors");
    changed(&path, "norm.gamma", Some(TensorData::from([1.0_f32, 2.0])));
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert_eq!((error.tensor(), error.file()), (Some("norm.gamma"), path.to_str()));
    let ApplyError::ShapeMismatch { path: tensor, expected, found } = source(&error) else {
        panic!("{error:?}")
    };
    assert_eq!((tensor.as_str(), &expected[..], &found[..]), ("norm.gamma", &[4][..], &[2][..]));

    let mut model = Model::new(11);
    let before = state(&model);
    let result = model.load_from(&mut CheckpointStore::from_file(&path).validate(false)).unwrap();
    let [ApplyError::ShapeMismatch { path: found, .. }] = &result.errors[..] else { panic!() };
    assert_eq!(found, "norm.gamma");
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
    let (_dir, path) = place("model.safetensors");
    let bools = Model::new(1).mask.val().dtype();
    for (name, dtype, data) in [
        ("steps", DType::I64, TensorData::from([1.0_f32, 2.0])),
        ("encoder.bias", DType::F32, TensorData::from([1_i32, 2, 3, 4])),
        ("mask", bools, TensorData::from([[1_i64, 0]])),
    ] {
        changed(&path, name, Some(data));
        let error = refused(&mut CheckpointStore::from_file(&path));
        assert_eq!(error.tensor(), Some(name));
        let ApplyError::DTypeMismatch { expected, .. } = source(&error) else { panic!("{error}") };
        assert_eq!(*expected, dtype, "{error}");
    }
    // The bytes 0 and 1, as another library stores booleans, are accepted.
    changed(&path, "mask", Some(TensorData::from([[1_u8, 0]])));
    let mut model = Model::new(2);
    model.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(model.mask.to_data(), TensorData::from([[true, false]]));
    // Other integers are refused, because it is not known which of them mean true.
    changed(&path, "mask", Some(TensorData::from([[0_u8, 2]])));
    let error = refused(&mut CheckpointStore::from_file(&path));
    assert_eq!(error.tensor(), Some("mask"));
    let ErrorKind::DoesNotFit { index: 1, to, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(*to, Dtype::BOOL);
}

#[test]
fn missing_and_unused_tensors_are_errors_unless_allowed() {
    let (_dir, path) = place("model.safetensors");
    changed(&path, "encoder.bias", None);
    let error = refused(&mut CheckpointStore::from_file(&path));
    let StoreError::Missing { names } = source(&error) else { panic!("{error:?}") };
    assert_eq!(names, &["encoder.bias"]);
    assert_eq!(error.file(), path.to_str());
    assert!(source::<StoreError>(&error).to_string().contains("encoder.bias"));

    let mut model = Model::new(3);
    let bias = model.encoder.bias.as_ref().unwrap().to_data();
    let result =
        model.load_from(&mut CheckpointStore::from_file(&path).allow_partial(true)).unwrap();
    assert_eq!(result.missing, [("encoder.bias".into(), "Struct:Model.Struct:Linear".into())]);
    assert_eq!(model.encoder.bias.as_ref().unwrap().to_data(), bias);
    assert_eq!(model.steps.to_data(), TensorData::from([5_i64, 6]));

    changed(&path, "extra", Some(TensorData::from([1_u8])));
    let result = Model::new(3).load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(result.unused, ["extra"]);
}

#[test]
fn a_file_that_is_cut_off_after_it_was_opened() {
    let dir = dir();
    let mut store = saved(&dir, &Model::new(2));
    store.keys().unwrap();
    let file = std::fs::File::options().write(true).open(dir.path().join("model.safetensors"));
    let file = file.unwrap();
    file.set_len(file.metadata().unwrap().len() - 100).unwrap();
    let error = refused(&mut store);
    assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.tensor().is_some(), "{error}");
    // Anew, its header is refused.
    let error = refused(&mut CheckpointStore::from_file(dir.path().join("model.safetensors")));
    assert!(matches!(error.kind(), ErrorKind::MissingData { .. }), "{error}");
    assert!(error.file().is_some_and(|file| file.ends_with("model.safetensors")), "{error}");
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    #[derive(Module, Debug)]
    struct Quantized {
        weight: Param<Tensor<2>>,
    }
    let dir = dir();
    let mut store = saved(&dir, &Model::new(2)).overwrite(true);
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
    // A device that lacks the dtype panics in this way when it receives the tensor.
    other.weight = other.weight.load_mapper(|_| panic!("no such dtype here"));
    let before = state(&other);
    let error = other.load_from(&mut store).unwrap_err();
    let StoreError::Panicked { message } = source(&error) else { panic!("{error}") };
    assert_eq!(message, "no such dtype here");
    assert_eq!(error.tensor(), Some("weight"));
    assert_eq!(state(&other), before);
}

/// Fails in the last step, which loads the mask.
#[test]
fn a_failed_load_in_steps_names_the_loaded_parameters() {
    let (dir, path) = place("model.safetensors");
    saved(&dir, &Model::new(2));
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 2;
    std::fs::write(&path, &bytes).unwrap();
    refused(&mut CheckpointStore::from_file(&path));

    let (saved, mut model) = (Model::new(2), Model::new(11));
    let mask = model.mask.to_data();
    let mut store = CheckpointStore::from_file(&path).max_extra_memory(1);
    let error = model.load_from(&mut store).unwrap_err();
    let StoreError::PartlyLoaded { loaded: 11, total: 12, source: cause } = source(&error) else {
        panic!("{error}")
    };
    assert!(matches!(cause.kind(), ErrorKind::InvalidBool { .. }), "{cause}");
    assert_eq!((error.tensor(), error.file()), (Some("mask"), path.to_str()));
    assert!(error.to_string().contains("11 of 12 parameters"), "{error}");
    assert_eq!(model.steps.to_data(), saved.steps.to_data());
    assert_eq!(model.mask.to_data(), mask);

    // Values count with the bytes that they take, here twice the file's.
    let in_one = || CheckpointStore::from_file(&path).max_extra_memory(400);
    refused(&mut in_one());
    let widened = in_one().load_options(LoadOptions::new().floats_as(Dtype::F64));
    let error = Model::new(11).load_from(&mut { widened }).unwrap_err();
    assert!(matches!(source(&error), StoreError::PartlyLoaded { .. }), "{error}");

    // The header is checked before the first step.
    changed(&path, "steps", Some(TensorData::from([1_i64])));
    let error = refused(&mut CheckpointStore::from_file(&path).max_extra_memory(1));
    assert!(matches!(source(&error), ApplyError::ShapeMismatch { .. }), "{error}");
}

#[test]
fn steps_of_any_size_load_the_same() {
    let dir = dir();
    let model = Model::new(2);
    saved(&dir, &model);
    for bytes in [0, 1, 40, 100, 1 << 40] {
        let path = dir.path().join("model.safetensors");
        let mut store = CheckpointStore::from_file(path).max_extra_memory(bytes);
        let mut other = Model::new(7);
        let result = other.load_from(&mut store).unwrap();
        assert_eq!(result.applied.len(), PATHS.len());
        assert_eq!(state(&model), state(&other), "{bytes}");
    }
}

#[test]
fn a_shape_that_fits_transposed_hints_at_the_adapter() {
    let (_dir, path) = place("model.safetensors");
    let model = Model::new(2);
    let mut out = CheckpointStore::from_file(&path).with_to_adapter(BurnToPyTorchAdapter);
    model.save_into(&mut out).unwrap();
    let store = || CheckpointStore::from_file(&path).allow_partial(true);
    let error = refused(&mut store());
    let StoreError::Transposed { expected: [3, 4], found: [4, 3], is_adapted: false } =
        source(&error)
    else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("pytorch(true)"), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("encoder.weight"), path.to_str()));
    let result = Model::new(3).load_from(&mut store().validate(false)).unwrap();
    let [ApplyError::ShapeMismatch { path: found, .. }] = &result.errors[..] else { panic!() };
    assert_eq!(found, "encoder.weight");

    // The adapter is useless for a file of burn's own layout.
    let mut out = CheckpointStore::from_file(&path).overwrite(true);
    model.save_into(&mut out).unwrap();
    let error = refused(&mut store().with_from_adapter(PyTorchToBurnAdapter));
    assert!(matches!(source(&error), StoreError::Transposed { is_adapted: true, .. }), "{error}");
    // Other shapes are not transposed.
    changed(&path, "encoder.weight", Some(TensorData::from([[1.0_f32; 5]; 3])));
    let error = refused(&mut store());
    assert!(matches!(source(&error), ApplyError::ShapeMismatch { .. }), "{error}");
}
