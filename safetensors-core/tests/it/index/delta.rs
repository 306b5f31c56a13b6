//! The index of a delta, which only `open_delta_in` opens.

use std::path::Path;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::{Checkpoint, Error, ErrorKind, Limits, ShardOptions, TensorView};
use tempfile::tempdir;

use super::{write_index, write_shard};
use crate::support::write;

const SHARD: &str = "model-00000-of-00001.safetensors";

/// Writes an index with this metadata beside a shard with the tensor `a`.
fn write_delta(directory: &Path, metadata: &str) {
    write_shard(directory, SHARD, &[("a", 1)]);
    let index = format!(r#"{{"metadata":{metadata},"weight_map":{{"a":"{SHARD}"}}}}"#);
    write(directory, "model.safetensors.index.json", index);
}

fn open_delta(path: &Path) -> Result<usize, Error> {
    let (files, metadata) = Checkpoint::open_delta_in(LocalStore, path, &Limits::default())?;
    assert!(metadata.contains_key("delta_encoding"));
    files.check_unchanged().map(|()| files.len())
}

#[test]
fn a_delta_opens_as_no_checkpoint() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"base_version":"000007","delta_encoding":"xor"}"#);
    let index = directory.path().join("model.safetensors.index.json");
    assert_eq!(open_delta(directory.path()).unwrap(), 1);
    assert_eq!(open_delta(&index).unwrap(), 1);
    let refused = [
        Checkpoint::open(directory.path()).unwrap_err(),
        Checkpoint::open(&index).unwrap_err(),
        Checkpoint::open_whole(directory.path()).unwrap_err(),
        CheckpointPath::Index(index.clone()).files().unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error.kind(), ErrorKind::IsDelta { base } if base == "000007"), "{error}");
        assert_eq!(error.file(), index.to_str());
    }
}

#[test]
fn a_value_of_any_type_makes_a_delta() {
    let directory = tempdir().unwrap();
    for value in ["\"\"", "1", "false", "{}", "[]"] {
        write_delta(directory.path(), &format!(r#"{{"delta_encoding":{value}}}"#));
        let error = Checkpoint::open(directory.path()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::IsDelta { .. }), "{value}: {error}");
    }
    // Python reads this as no entry.
    write_delta(directory.path(), r#"{"delta_encoding":null}"#);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 1);
}

#[test]
fn a_delta_may_change_nothing_and_a_checkpoint_may_not_be_empty() {
    let directory = tempdir().unwrap();
    let name = "model.safetensors.index.json";
    write(directory.path(), name, r#"{"metadata":{"delta_encoding":"xor"},"weight_map":{}}"#);
    assert_eq!(open_delta(directory.path()).unwrap(), 0);
    write(directory.path(), name, r#"{"metadata":{},"weight_map":{}}"#);
    let error = open_delta(directory.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadIndex { .. }), "{error}");
}

#[test]
fn a_checkpoint_is_no_delta() {
    let directory = tempdir().unwrap();
    let file = write_shard(directory.path(), "model.safetensors", &[("a", 1)]);
    for path in [directory.path(), &file] {
        let error = open_delta(path).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotADelta), "{error}");
        assert_eq!(error.file(), file.to_str());
    }
    std::fs::rename(&file, directory.path().join(SHARD)).unwrap();
    let index = write_index(directory.path(), "model.safetensors.index.json", &[("a", SHARD)]);
    let error = open_delta(directory.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotADelta), "{error}");
    assert_eq!(error.file(), index.to_str());
}

#[test]
fn a_checkpoint_may_be_saved_where_a_delta_lies() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"delta_encoding":"xor"}"#);
    let options = ShardOptions::new().max_shard_size(1.into());
    let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &[1_u8]).unwrap()));
    safetensors_core::save_sharded(directory.path(), tensors, &options).unwrap();
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 2);
}
