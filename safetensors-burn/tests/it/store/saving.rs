//! The files that a save writes and replaces, and their content.

use safetensors_testing::files::names_in;

use super::*;

/// An adapter that calls a function for each tensor before its data is produced.
#[derive(Clone)]
struct Before<F>(F);

impl<F: Fn() + Clone + Send + Sync + 'static> ModuleAdapter for Before<F> {
    fn adapt(&self, tensor: burn_pack::Tensor, _: ModuleContext<'_>) -> burn_pack::Tensor {
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        let before = self.0.clone();
        bridge::map_data(tensor, name, dtype, shape, move |data| {
            before();
            data
        })
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

#[test]
fn a_file_is_replaced_only_by_option() {
    let (dir, path) = place("model.safetensors");
    let (first, second) = (Model::new(2), Model::new(3));
    first.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    let old = std::fs::read(&path).unwrap();
    let options = [
        CheckpointStore::from_file(&path),
        CheckpointStore::from_file(&path).overwrite(true).overwrite(false),
        // The store's own option counts, not the core's.
        CheckpointStore::from_file(&path).save_options(SaveOptions::new().overwrite(true)),
    ];
    for mut store in options {
        let error = second.save_into(&mut store).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
        // burn-store's words.
        assert!(error.to_string().contains("File already exists"), "{error}");
        assert_eq!(error.file(), path.to_str());
        assert_eq!(std::fs::read(&path).unwrap(), old);
    }
    second.save_into(&mut CheckpointStore::from_file(&path).overwrite(true)).unwrap();
    let mut loaded = Model::new(7);
    loaded.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(state(&loaded), state(&second));
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);
}

#[test]
fn a_panic_of_an_adapter_is_an_error_and_nothing_is_saved_or_loaded() {
    let (dir, path) = place("model.safetensors");
    let model = Model::new(2);
    let panicking = || Before(|| panic!("device readback panicked"));
    let mut store = CheckpointStore::from_file(&path).with_to_adapter(panicking());
    let error = model.save_into(&mut store).unwrap_err();
    assert!(error.to_string().contains("device readback panicked"), "{error}");
    assert!(error.tensor().is_some());
    assert_eq!(names_in(dir.path()), Vec::<String>::new());

    model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    let error = refused(&mut CheckpointStore::from_file(&path).with_from_adapter(panicking()));
    assert!(error.to_string().contains("device readback panicked"), "{error}");
}

#[test]
fn a_save_that_the_filters_leave_empty_is_an_error() {
    let (dir, path) = place("model.safetensors");
    let mut store = CheckpointStore::from_file(&path).with_regex("^encodr");
    let error = Model::new(2).save_into(&mut store).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NothingSelected { found: 12 }), "{error}");
    assert_eq!(error.file(), path.to_str());
    assert_eq!(names_in(dir.path()), Vec::<String>::new());

    // A module without parameters is saved as it is.
    #[derive(Module, Debug)]
    struct Nothing {
        relu: burn::nn::Relu,
    }
    Nothing { relu: burn::nn::Relu::new() }
        .save_into(&mut CheckpointStore::from_file(&path))
        .unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 0);
}

#[test]
fn metadata_is_added_and_cleared() {
    let metadata = |store: CheckpointStore| {
        let mut store = store;
        LinearConfig::new(2, 2).init(&Device::default()).save_into(&mut store).unwrap();
        let file = Checkpoint::from_source(store.get_bytes().unwrap(), "memory").unwrap();
        let mut metadata = file.metadata().clone();
        metadata.remove("safetensors_bridge.param_ids");
        metadata
    };
    let store = || CheckpointStore::from_bytes(None);
    let mut default = CheckpointStore::default_metadata();
    assert_eq!(metadata(store()), default);
    // No value is taken for the name of a tensor.
    let mut renamed = store().with_key_remapping("^weight$", env!("CARGO_PKG_VERSION"));
    LinearConfig::new(2, 2).init(&Device::default()).save_into(&mut renamed).unwrap();
    let file = Checkpoint::from_source(renamed.get_bytes().unwrap(), "memory").unwrap();
    assert_eq!(file.aliases().count(), 0);
    default.insert("title".into(), "b".into());
    assert_eq!(metadata(store().metadata("title", "a").metadata("title", "b")), default);
    assert_eq!(metadata(store().metadata("title", "a").clear_metadata()), Metadata::new());
    let given = SaveOptions::new().metadata([("x", "y")]);
    let found = metadata(store().save_options(given).clear_metadata().metadata("only", "this"));
    assert_eq!(found, Metadata::from([("only".to_owned(), "this".to_owned())]));
}
