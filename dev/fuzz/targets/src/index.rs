//! The index of a sharded checkpoint, and opening a directory.
//!
//! The first byte selects the files in the directory; the rest is the text of the index. Next to
//! the directory is a file that no index may reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, serialize};
use serde_json::Value;

use crate::input::Input;
use crate::scratch;

/// The shards: a file, and its tensors.
const SHARDS: [(&str, &[&str]); 3] = [
    ("model-00001-of-00002.safetensors", &["a", "b"]),
    ("model-00002-of-00002.safetensors", &["c", ""]),
    ("part/x.safetensors", &["d", "a"]),
];

/// A tensor of the file outside.
const SECRET: &str = "secret";

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let json = input.rest();
    let scratch = scratch::directory();
    let directory = scratch.path().join("checkpoint");
    fs::create_dir_all(directory.join("part")).unwrap();
    fs::write(scratch.path().join("outside.safetensors"), file(&[SECRET])).unwrap();
    for (name, tensors) in SHARDS {
        fs::write(directory.join(name), file(tensors)).unwrap();
    }
    if flags & 1 != 0 {
        fs::write(directory.join("model.safetensors"), file(&["a", "whole"])).unwrap();
    }
    if flags & 2 != 0 {
        let variant = r#"{"weight_map":{"d":"part/x.safetensors"}}"#;
        fs::write(directory.join("model.fp16.safetensors.index.json"), variant).unwrap();
    }
    let stem = if flags & 4 != 0 { "other" } else { "model" };
    let index = directory.join(format!("{stem}.safetensors.index.json"));
    fs::write(&index, json).unwrap();

    if let Some(checkpoint) = opened(&index) {
        let names = weight_map(json);
        assert_eq!(checkpoint.len(), names.len());
        for (name, file) in names {
            let tensor = checkpoint.tensor(&name).unwrap();
            assert_eq!(tensor.name(), name);
            let found = tensor.file().unwrap();
            assert_eq!(fs::canonicalize(found).unwrap(), directory_file(&directory, &file));
        }
        are_its_files_tensors(&checkpoint);
    }
    if let Some(checkpoint) = opened(&directory) {
        are_its_files_tensors(&checkpoint);
    }
}

/// The checkpoint, unless it is refused with an error that can be shown.
fn opened(path: &Path) -> Option<Checkpoint> {
    match Checkpoint::open(path) {
        Ok(checkpoint) => Some(checkpoint),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.chars().any(char::is_control), "{message:?}");
            None
        }
    }
}

/// Returns the content of an accepted index: the tensors, each with its file.
fn weight_map(json: &[u8]) -> BTreeMap<String, String> {
    let index: Value = serde_json::from_slice(json).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let map = index["weight_map"].as_object().unwrap();
    map.iter().map(|(name, file)| (name.clone(), text(file))).collect()
}

/// Returns the path of a shard, which must be one of [`SHARDS`] or the single file.
fn directory_file(directory: &Path, file: &str) -> std::path::PathBuf {
    let known = SHARDS.iter().any(|(name, _)| *name == file) || file == "model.safetensors";
    assert!(known, "a file of another name was opened: {file:?}");
    fs::canonicalize(directory.join(file)).unwrap()
}

/// Each tensor comes from its file, and all methods of the checkpoint can be called.
fn are_its_files_tensors(checkpoint: &Checkpoint) {
    let read = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    assert_eq!(read.len(), checkpoint.len());
    for (tensor, read) in checkpoint.tensors().zip(read) {
        assert_ne!(tensor.name(), SECRET);
        let bytes = fs::read(tensor.file().unwrap()).unwrap();
        let parsed = safetensors_core::SafeTensors::parse(bytes).unwrap();
        assert_eq!(parsed.view(tensor.name()).unwrap().data(), read.bytes());
        assert!(checkpoint.get(tensor.name()).is_some());
    }
    for (alias, tensor) in checkpoint.aliases() {
        assert_ne!(alias, tensor.name());
    }
    let unmapped = checkpoint.unindexed().count();
    let all: usize =
        checkpoint.files().iter().map(|shard| shard.safetensors().header().len()).sum();
    assert_eq!(unmapped + checkpoint.len(), all);
    let _ = (checkpoint.audit(), checkpoint.index_total_size(), checkpoint.metadata());
}

/// Makes a file with one-byte tensors of these names.
fn file(names: &[&str]) -> Vec<u8> {
    let data = [7_u8, 8];
    let tensors = names
        .iter()
        .enumerate()
        .map(|(i, name)| (*name, TensorView::from_slice(&[1], &data[i..=i]).unwrap()));
    serialize(tensors, &SaveOptions::new()).unwrap()
}
