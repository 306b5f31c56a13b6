//! Tests parameters that a module has under several paths, and tensors that share bytes.

use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use safetensors_burn::{
    BurnToPyTorchAdapter, CheckpointStore, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter, load,
    save, share_tensor,
};
use safetensors_core::tied::Tied;
use safetensors_core::{Checkpoint, ErrorKind, Metadata, SaveOptions, Widening, serialize};

use crate::place;

#[derive(Module, Debug)]
struct Language {
    embed: Param<Tensor<2>>,
    body: Linear,
    head: Param<Tensor<2>>,
}

impl Language {
    /// A model of random weights. Its head and its embedding are one parameter.
    fn new() -> Self {
        let device = Device::default();
        let embed: Param<Tensor<2>> =
            Param::from_tensor(Tensor::random([5, 3], Distribution::Default, &device));
        let head = embed.clone();
        assert_eq!(embed.id, head.id);
        Self { embed, body: LinearConfig::new(3, 3).init(&device), head }
    }

    fn state(&self) -> [TensorData; 4] {
        let bias = self.body.bias.as_ref().unwrap();
        [self.embed.to_data(), self.body.weight.to_data(), bias.to_data(), self.head.to_data()]
    }
}

/// Returns the names of the tensors in a checkpoint, and its metadata without the entries of every
/// save.
fn written(path: &Path) -> (Vec<String>, Metadata) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut metadata = checkpoint.metadata().clone();
    CheckpointStore::default_metadata().keys().for_each(|key| _ = metadata.remove(key));
    metadata.remove("safetensors_bridge.param_ids");
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name().to_owned()).collect();
    names.sort_unstable();
    (names, metadata)
}

fn entry(key: &str, value: &str) -> Metadata {
    Metadata::from([(key.to_owned(), value.to_owned())])
}

#[test]
fn a_tied_parameter_is_saved_once_and_loads_under_both_paths() {
    let (dir, path) = place("model.safetensors");
    let trained = Language::new();
    trained.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    let names = ["body.bias", "body.weight", "embed"].map(Into::into);
    assert_eq!(written(&path), (names.into(), entry("head", "embed")));

    let mut store = CheckpointStore::from_file(&path).param_ids(true);
    assert_eq!(store.keys().unwrap(), ["body.bias", "body.weight", "embed", "head"]);
    let head = store.get_tensor("head").unwrap().unwrap();
    assert_eq!(burn_store::bridge::to_data(head).unwrap(), trained.head.to_data());

    let mut fresh = Language::new();
    let result = fresh.load_from(&mut store).unwrap();
    assert_eq!(result.applied.len(), 4);
    assert!(result.is_success() && result.missing.is_empty(), "{result:?}");
    assert!(result.unused.is_empty(), "{result:?}");
    assert_eq!(fresh.state(), trained.state());
    // The loaded parameter is still tied, and saved once.
    let again = dir.path().join("again.safetensors");
    fresh.save_into(&mut CheckpointStore::from_file(&again)).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), std::fs::read(again).unwrap());
}

#[test]
fn options_choose_the_name_of_a_tied_tensor() {
    let (_dir, path) = place("model.safetensors");
    let model = Language::new();
    let save = |store: CheckpointStore| {
        let mut store = store;
        model.save_into(&mut store).unwrap();
        written(&path)
    };
    let store = || CheckpointStore::from_file(&path).overwrite(true);
    let (names, metadata) =
        save(store().save_options(SaveOptions::new().tied(Tied::new().prefer(["head"]))));
    assert!(names.contains(&"head".into()) && metadata == entry("embed", "head"), "{names:?}");
    let (names, metadata) = save(store().save_options(SaveOptions::new()));
    assert_eq!((names.len(), metadata), (4, Metadata::new()));
    // A path that the filter leaves out is not tied.
    assert_eq!(save(store().with_full_path("head")), (vec!["head".into()], Metadata::new()));
    // The metadata has the names of the file, not of the module.
    let (names, metadata) = save(store().with_key_remapping("^embed$", "wte.weight"));
    assert!(names.contains(&"head".into()) && metadata == entry("wte.weight", "head"), "{names:?}");
}

/// For example, an agent and the slow copy that it learns from have one id but two parameters.
#[test]
fn clones_with_the_same_ids_are_saved_apart_once_they_differ() {
    let (_dir, path) = place("model.safetensors");
    let mut model = Language::new();
    model.head = model.head.map(|head| head * 0.5);
    assert_eq!(model.head.id, model.embed.id);
    model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(written(&path).0.len(), 4);
    let mut fresh = Language::new();
    fresh.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(fresh.state(), model.state());

    // Equal values without equal ids are not tied.
    model.head = Param::from_tensor(model.embed.val());
    model.save_into(&mut CheckpointStore::from_file(&path).overwrite(true)).unwrap();
    assert_eq!(written(&path).0.len(), 4);
}

/// The adapter transposes a linear layer's weight for PyTorch, but not a bare parameter.
#[test]
fn tied_parameters_that_an_adapter_changes_are_saved_apart() {
    let (_dir, path) = place("model.safetensors");
    let mut model = Language::new();
    model.head = model.body.weight.clone();
    model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!(written(&path).1, entry("head", "body.weight"));
    let store = CheckpointStore::from_file(&path).overwrite(true);
    model.save_into(&mut store.with_to_adapter(BurnToPyTorchAdapter)).unwrap();
    let names = ["body.bias", "body.weight", "embed", "head"].map(Into::into);
    assert_eq!(written(&path), (names.into(), Metadata::new()));

    // The file has one tensor for two parameters. The adapter transposes one of them.
    let file = load(&path).unwrap();
    let tensors = file.iter().filter(|(name, _)| *name != "head");
    let options = SaveOptions::new().metadata([("head", "body.weight")]);
    save(&path, tensors, &options).unwrap();
    let mut fresh = Language::new();
    fresh.head = Param::from_tensor(Tensor::zeros([3, 3], &Device::default()));
    let store = CheckpointStore::from_file(&path).with_from_adapter(PyTorchToBurnAdapter);
    fresh.load_from(&mut { store }).unwrap();
    assert_eq!(fresh.body.weight.to_data(), model.body.weight.to_data());
    assert_eq!(fresh.head.to_data(), model.body.weight.val().transpose().to_data());
}

#[test]
fn other_names_of_a_tensor_are_neither_missing_nor_unused() {
    let (_dir, path) = place("model.safetensors");
    let trained = Language::new();
    let [embed, weight, bias, _] = trained.state();
    let tensors =
        [("kept", &embed), ("body.weight", &weight), ("body.bias", &bias), ("extra", &bias)];
    let aliases = [("embed", "kept"), ("head", "kept"), ("third", "kept"), ("fourth", "extra")];
    let options = SaveOptions::new().metadata(aliases);
    save(&path, tensors, &options).unwrap();
    let mut fresh = Language::new();
    let result = fresh.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    assert_eq!((result.applied.len(), &result.unused[..]), (4, &["extra".to_owned()][..]));
    assert_eq!(fresh.state(), trained.state());

    // The error for a wrong shape names the path of the parameter, and the file.
    let options = SaveOptions::new().metadata([("embed", "kept"), ("head", "body.bias")]);
    save(&path, tensors, &options).unwrap();
    let error = fresh.load_from(&mut CheckpointStore::from_file(&path)).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("head"), path.to_str()), "{error}");
    assert_eq!(fresh.state(), trained.state());

    // Rules may give one name to all names of a tensor, but not to two tensors.
    let mut store = CheckpointStore::from_file(&path).with_key_remapping("^kept$", "embed");
    assert_eq!(store.keys().unwrap(), ["body.bias", "body.weight", "embed", "extra", "head"]);
    let mut store = CheckpointStore::from_file(&path).with_key_remapping("^head$", "extra");
    let error = store.keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("extra"), path.to_str()));
}

#[test]
fn shared_data_of_the_same_bytes_is_saved_once() {
    let (_dir, path) = place("model.safetensors");
    let view = safetensors_core::TensorView::from_slice(&[2], &[1_i64, 2]).unwrap();
    let file = bytes::Bytes::from(serialize([("w", view)], &SaveOptions::new()).unwrap());
    let archive = Arc::new(Checkpoint::from_source(file, "a file").unwrap());
    let [first, second] = [(); 2].map(|()| share_tensor(&archive, "w", Widening::Refuse).unwrap());
    let shared = first.as_bytes().as_ptr() == second.as_bytes().as_ptr();
    let options = SaveOptions::new().tied(Tied::new());
    save(&path, [("a", &first), ("b", &second)], &options).unwrap();
    assert_eq!(written(&path).0.len(), if shared { 1 } else { 2 });
}
