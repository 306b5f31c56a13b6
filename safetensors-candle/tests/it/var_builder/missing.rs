//! Names that a model asks for and the checkpoint does not have, and names that it does not ask
//! for.

use candle_core::{DType, Device, Error};
use safetensors_candle::{CheckpointBackend, var_builder, var_builder_from};
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::{Checkpoint, ShardOptions, TensorBuf, save_sharded};

use super::spy::{backend, builder, sorted, weight};
use crate::common::{place, save_bufs, without_backtrace};

fn one() -> TensorBuf {
    TensorBuf::from_vec(vec![1], vec![1_f32]).unwrap()
}

/// Returns the text of candle's error for a missing tensor.
#[track_caller]
fn missing(error: Error) -> String {
    match without_backtrace(error) {
        Error::CannotFindTensor { path } => path,
        error => panic!("{error}"),
    }
}

#[test]
fn the_error_of_a_missing_name_has_the_file_and_similar_names() {
    let (_dir, path) = place("model.safetensors");
    let names =
        ["model.embed_tokens.weight", "model.layers.0.fc.weight", "model.layers.1.fc.weight"];
    save_bufs(&path, &names.map(|name| (name, one())));
    let builder = var_builder(&path, DType::F32, &Device::Cpu).unwrap();
    let file = path.display();

    let error = missing(builder.pp("model").get(1, "embed_token.weight").unwrap_err());
    let meant = r#"did you mean "model.embed_tokens.weight"?"#;
    assert_eq!(error, format!("model.embed_token.weight in {file}; {meant}"));
    let error = missing(builder.get_unchecked("embed_tokens.weight").unwrap_err());
    assert!(error.ends_with(meant), "{error}");
    // The layer with the same number, and none with another one.
    let error = missing(builder.get(1, "model.layers.1.fc1.weight").unwrap_err());
    assert!(!error.contains("did you mean"), "{error}");
    let error = missing(builder.get(1, "model.layer.1.fc.weight").unwrap_err());
    assert!(error.ends_with(r#"did you mean "model.layers.1.fc.weight"?"#), "{error}");
    let error = missing(builder.get(1, "lm_head.weight").unwrap_err());
    assert_eq!(error, format!("lm_head.weight in {file}"));
}

#[test]
fn the_error_names_the_index_or_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let options = ShardOptions::new().max_shard_size(MaxShardSize(4));
    save_sharded(dir.path(), [("a.weight", one()), ("b.weight", one())], &options).unwrap();
    let builder = var_builder(dir.path(), DType::F32, &Device::Cpu).unwrap();
    let error = missing(builder.get(1, "c").unwrap_err());
    assert!(error.ends_with("model.safetensors.index.json"), "{error}");

    let files = ["x.safetensors", "y.safetensors"].map(|name| dir.path().join(name));
    save_bufs(&files[0], &[("x", one())]);
    save_bufs(&files[1], &[("y", one())]);
    let builder =
        var_builder_from(Checkpoint::open_files(&files).unwrap(), DType::F32, &Device::Cpu);
    let error = missing(builder.get(1, "zebra").unwrap_err());
    assert!(files.iter().all(|file| error.contains(file.to_str().unwrap())), "{error}");
}

#[test]
fn hidden_names_are_missing_and_are_not_suggested() {
    let (backend, _) = backend(&[weight("fc.weight", 1), weight("fc.bias", 1)]);
    let backend = backend.filter(|name| name != "fc.weight");
    let builder = builder(&backend);
    assert!(!builder.contains_tensor("fc.weight") && builder.contains_tensor("fc.bias"));
    let error = missing(builder.get(1, "fc.weight").unwrap_err());
    assert_eq!(error, "fc.weight in spied");
    // A second filter hides more and brings nothing back.
    let backend = backend.filter(|name| name != "fc.bias");
    assert_eq!(backend.unused().count(), 0);
    assert!(!backend.var_builder(DType::F32, &Device::Cpu).contains_tensor("fc.bias"));
}

#[test]
fn unused_tensors_were_never_requested() {
    let tensors = sorted(&[("a".into(), 1), ("b".into(), 2), ("c".into(), 3), ("d".into(), 4)]);
    let (backend, _) = backend(&tensors);
    let unused = |backend: &CheckpointBackend<'_>| -> Vec<String> {
        backend.unused().map(|tensor| tensor.name().to_string()).collect()
    };
    assert_eq!(unused(&backend), ["a", "b", "c", "d"]);
    let builder = builder(&backend);
    assert!(builder.contains_tensor("a"));
    builder.get(2, "b").unwrap();
    builder.get_unchecked("d").unwrap();
    // A request for another shape gets nothing.
    assert!(builder.get(2, "c").is_err());
    assert_eq!(unused(&backend), ["a", "c"]);
    // Other options are another count; clones have one.
    let other = backend.clone().read_ahead(0);
    assert_eq!(unused(&other).len(), 4);
    assert_eq!(unused(&backend.clone()), ["a", "c"]);
}
