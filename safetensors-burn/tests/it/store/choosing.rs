//! Tests which tensors are loaded and saved, and under which names.

use super::*;

#[test]
fn filters_choose_parameters_on_both_ways() {
    let (dir, path) = place("model.safetensors");
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
    let in_linear: fn(&str, &str) -> bool =
        |path, within| within.ends_with("Struct:Linear") && path.ends_with("bias");
    assert_eq!(saved_names(store().with_predicate(in_linear)), ["encoder.bias"]);

    // A file of only the norm is complete for a store that selects only the norm.
    saved_names(store().with_regex("^norm"));
    let mut other = Model::new(7);
    let error = other.load_from(&mut store()).unwrap_err();
    assert!(matches!(source(&error), StoreError::Missing { names } if names.len() == 10));
    assert_eq!(other.load_from(&mut store().with_regex("^norm")).unwrap().applied.len(), 2);

    // A filter that matches nothing is an error, as on saving, also if parameters may be missing.
    let before = state(&other);
    let mut typo = store().with_regex("^nrm").allow_partial(true);
    let error = other.load_from(&mut typo).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NothingSelected { found: 12 }), "{error}");
    let advice = "12 tensors is selected; on loading, filters see the paths in the module";
    assert!(error.to_string().ends_with(advice), "{error}");
    assert_eq!(state(&other), before);
}

#[test]
fn names_are_remapped_on_both_ways() {
    let (_dir, path) = place("model.safetensors");
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
}

#[test]
fn filters_on_saving_see_the_names_that_the_adapter_makes() {
    let model = Model::new(2);
    let saved_names = |store: CheckpointStore| {
        let mut store = store;
        model.save_into(&mut store).map(|()| store.keys().unwrap())
    };
    let store = || CheckpointStore::from_bytes(None).with_to_adapter(BurnToPyTorchAdapter);
    assert_eq!(saved_names(store().with_regex(r"^norm\.weight$")).unwrap(), ["norm.weight"]);
    assert_eq!(saved_names(store().with_full_path("norm.bias")).unwrap(), ["norm.bias"]);
    let in_norm: fn(&str, &str) -> bool =
        |name, within| within == "Struct:Model.Struct:LayerNorm" && name.ends_with("weight");
    assert_eq!(saved_names(store().with_predicate(in_norm)).unwrap(), ["norm.weight"]);
    // The path in the module is not such a name.
    let error = saved_names(store().with_full_path("norm.gamma")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NothingSelected { found: 12 }), "{error}");
    // Rules for names come after the filter.
    let renamed = store().with_full_path("norm.bias").with_key_remapping("^norm", "ln");
    let mut renamed = renamed;
    model.save_into(&mut renamed).unwrap();
    let file = Checkpoint::from_source(renamed.get_bytes().unwrap(), "memory").unwrap();
    assert!(file.tensors().map(|tensor| tensor.name()).eq(["ln.bias"]));

    // On loading, filters see the paths in the module.
    let mut whole = store();
    model.save_into(&mut whole).unwrap();
    let mut other = Model::new(7);
    let mut store = whole.with_from_adapter(PyTorchToBurnAdapter).with_full_path("norm.gamma");
    assert_eq!(other.load_from(&mut store).unwrap().applied, ["norm.gamma"]);
}

#[test]
fn a_bad_pattern_is_an_error_each_time_the_store_is_used() {
    let stores: [fn(CheckpointStore) -> CheckpointStore; 4] = [
        |store| store.with_regex("("),
        |store| store.with_regexes(["fine", "("]).with_regex("["),
        |store| store.with_key_remapping("(", "").match_all(),
        |store| store.map_indices_contiguous(true).map_indices_contiguous_except("("),
    ];
    let model = Model::new(2);
    for bad in stores {
        let mut store = CheckpointStore::from_bytes(None);
        model.save_into(&mut store).unwrap();
        let before = store.get_bytes().unwrap();
        let mut store = bad(store);
        let errors = [
            model.save_into(&mut store).unwrap_err(),
            refused(&mut store),
            store.keys().unwrap_err(),
            store.get_tensor("steps").err().unwrap(),
            store.get_all_tensors().err().unwrap(),
        ];
        for error in errors {
            let StoreError::Pattern(problem) = source(&error) else { panic!("{error}") };
            assert!(problem.to_string().contains("unclosed group"), "{problem}");
        }
        assert_eq!(store.get_bytes().unwrap(), before);
    }
}
