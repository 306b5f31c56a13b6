//! Tests which tensors are loaded and saved, and under which names.

use super::*;

#[test]
fn filters_choose_parameters_on_both_ways() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let (model, mut other) = (Model::new(2), Model::new(7));
    let mut store = saved(&dir, &model).with_regex(r"^layers\.\d\.").with_full_path("steps");
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
    let store = || CheckpointStore::from_file(&path).overwrite(true);
    assert_eq!(saved_names(store().with_regex("^norm")), ["norm.beta", "norm.gamma"]);
    assert_eq!(saved_names(store().with_full_paths(["mask", "steps"])), ["mask", "steps"]);
    assert_eq!(saved_names(store().filter(PathFilter::from_paths(["mask"]))), ["mask"]);
    let in_linear: fn(&str, &str) -> bool =
        |path, within| within.ends_with("Struct:Linear") && path.ends_with("bias");
    assert_eq!(saved_names(store().with_predicate(in_linear)), ["encoder.bias"]);
    assert_eq!(saved_names(store().with_regex("^norm").match_all()), PATHS);

    // A file of only the norm is complete for a store that selects only the norm.
    saved_names(store().with_regex("^norm"));
    let mut other = Model::new(7);
    assert!(
        matches!(source(&other.load_from(&mut store()).unwrap_err()), StoreError::Missing { names } if names.len() == 10)
    );
    assert_eq!(other.load_from(&mut store().with_regex("^norm")).unwrap().applied.len(), 2);
}

#[test]
fn names_are_remapped_on_both_ways() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    let model = Model::new(2);
    let mut out = CheckpointStore::from_file(&path)
        .with_key_remapping(r"^layers\.(\d+)\.", "blocks.$1.inner.")
        .with_key_remapping("^blocks", "transformer.blocks");
    model.save_into(&mut out).unwrap();
    let names: Vec<_> = load(&path).unwrap().into_keys().collect();
    assert!(names.contains(&"transformer.blocks.1.inner.weight".into()), "{names:?}");

    let mut back = CheckpointStore::from_file(&path)
        .with_key_remapping(r"^transformer\.blocks\.(\d+)\.inner\.", "layers.$1.");
    assert_eq!(back.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    other.load_from(&mut back).unwrap();
    assert_eq!(state(&model), state(&other));

    let mut clash = CheckpointStore::from_file(&path).with_key_remapping(r"blocks\.\d", "blocks");
    let error = clash.keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!(
        (error.tensor(), error.file()),
        (Some("transformer.blocks.inner.weight"), path.to_str())
    );
    let mut clash = CheckpointStore::from_file(&path)
        .overwrite(true)
        .with_key_remapping(r"^layers\.\d", "layers");
    let error = model.save_into(&mut clash).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
}

#[test]
fn tensors_can_be_fetched_without_a_module() {
    let dir = dir();
    let model = Model::new(2);
    let mut store = saved(&dir, &model);
    let steps = store.get_tensor("steps").unwrap().unwrap();
    assert_eq!((steps.dtype, &steps.shape[..], steps.byte_len()), (DType::I64, &[2][..], 16));
    assert_eq!(data_of(steps), model.steps.to_data());
    // The store reads the tensor again at each request.
    assert_eq!(data_of(steps), model.steps.to_data());
    assert!(store.get_tensor("absent").unwrap().is_none());
    assert_eq!(store.get_all_tensors().unwrap().len(), PATHS.len());
    let error =
        CheckpointStore::from_file(dir.path().join("absent.safetensors")).keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}
