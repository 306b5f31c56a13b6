//! The shards that an index names: tensors and metadata that they have, lack, and share.

use std::io;

use super::{write_index, write_shard};
use crate::support::*;

/// A checkpoint of two shards: `a` and `c` in the first, `b` in the second.
fn two_shards() -> TempDir {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "s1.safetensors", &[("a", 1), ("c", 3)]);
    write_shard(directory.path(), "s2.safetensors", &[("b", 2)]);
    let map = [("a", "s1.safetensors"), ("b", "s2.safetensors"), ("c", "s1.safetensors")];
    write_index(directory.path(), "model.safetensors.index.json", &map);
    directory
}

/// The names and first bytes of all tensors.
fn read_all(path: &Path) -> Vec<(String, u8)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let bufs = checkpoint.read_all(&LoadOptions::new()).unwrap();
    checkpoint
        .tensors()
        .zip(bufs)
        .map(|(tensor, buf)| (tensor.name().to_owned(), buf.bytes()[0]))
        .collect()
}

#[test]
fn shards_are_one_set_of_tensors() {
    let directory = two_shards();
    assert_eq!(read_all(directory.path()), [("a".into(), 1), ("c".into(), 3), ("b".into(), 2)]);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!((checkpoint.len(), checkpoint.files().len()), (3, 2));
    assert_eq!(
        checkpoint.tensor("b").unwrap().file(),
        Some(&*directory.path().join("s2.safetensors"))
    );
    for tensor in checkpoint.tensors() {
        let shard = &checkpoint.files()[tensor.file_index()];
        assert_eq!(tensor.file(), Some(shard.path()), "{}", tensor.name());
    }
}

#[test]
fn metadata_of_all_shards_the_first_first() {
    let directory = tempdir().unwrap();
    for (name, tensor, metadata) in [
        ("s1.safetensors", "a", r#"{"format":"pt","only 1":"x"}"#),
        ("s2.safetensors", "b", r#"{"format":"np","only 2":"y"}"#),
    ] {
        let entry = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        let header = format!(r#"{{"__metadata__":{metadata},"{tensor}":{entry}}}"#);
        write(directory.path(), name, crate::support::file(header, 1));
    }
    write_index(
        directory.path(),
        "model.safetensors.index.json",
        &[("b", "s2.safetensors"), ("a", "s1.safetensors")],
    );
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let metadata: Vec<_> =
        checkpoint.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(metadata, [("format", "pt"), ("only 1", "x"), ("only 2", "y")]);
}

#[test]
fn a_missing_shard_names_the_shard_and_a_tensor() {
    let directory = two_shards();
    let shard = directory.path().join("s2.safetensors");
    fs::remove_file(&shard).unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert_eq!(io_kind(&error), io::ErrorKind::NotFound, "{error}");
    assert_eq!((error.file(), error.tensor()), (shard.to_str(), Some("b")));
    let problem = "tensor \"b\": the shard is missing; the index needs it for 1 tensor";
    assert!(error.to_string().ends_with(problem), "{error}");
}

/// An error in a shard's own header names the shard, and the tensor only if the header does.
#[test]
fn a_malformed_shard_names_the_shard() {
    let directory = two_shards();
    let shard = write(directory.path(), "s2.safetensors", crate::support::file("[]", 0));
    let error = refused!(Checkpoint::open(directory.path()), ErrorKind::NotAnObject { .. });
    assert_eq!((error.file(), error.tensor()), (shard.to_str(), None));

    write(directory.path(), "s2.safetensors", crate::support::file(r#"{"x":{}}"#, 0));
    let error = refused!(Checkpoint::open(directory.path()), ErrorKind::MissingField { .. });
    assert_eq!((error.file(), error.tensor()), (shard.to_str(), Some("x")));
}

#[test]
fn a_tensor_that_its_shard_lacks_names_both() {
    let directory = two_shards();
    let map = [("a", "s1.safetensors"), ("b", "s1.safetensors")];
    let index = write_index(directory.path(), "model.safetensors.index.json", &map);
    let error = refused!(
        Checkpoint::open(directory.path()),
        ErrorKind::NotInShard { shard } if shard == "s1.safetensors"
    );
    assert_eq!((error.file(), error.tensor()), (index.to_str(), Some("b")));
    assert!(
        error.to_string().contains("\"b\"") && error.to_string().contains("\"s1.safetensors\""),
        "{error}"
    );
}

#[test]
fn the_index_decides_between_two_shards_with_one_tensor() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "s1.safetensors", &[("a", 1), ("both", 10)]);
    write_shard(directory.path(), "s2.safetensors", &[("b", 2), ("both", 20)]);
    for (shard, value) in [("s1.safetensors", 10), ("s2.safetensors", 20)] {
        let map = [("a", "s1.safetensors"), ("b", "s2.safetensors"), ("both", shard)];
        write_index(directory.path(), "model.safetensors.index.json", &map);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(checkpoint.len(), 3);
        assert_eq!(checkpoint.tensor("both").unwrap().read().unwrap().bytes(), [value]);
        assert_eq!(checkpoint.tensors().filter(|tensor| tensor.name() == "both").count(), 1);
    }
}

#[test]
fn tensors_that_are_not_in_the_map_are_invisible() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "s.safetensors", &[("a", 1), ("hidden", 9), ("z", 3)]);
    let map = [("a", "s.safetensors"), ("z", "s.safetensors")];
    let index = write_index(directory.path(), "model.safetensors.index.json", &map);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.len(), 2);
    assert!(checkpoint.get("hidden").is_none());
    assert_eq!(read_all(directory.path()), [("a".into(), 1), ("z".into(), 3)]);
    let error = refused!(checkpoint.tensor("hidden"), ErrorKind::TensorNotFound);
    assert_eq!((error.file(), error.tensor()), (index.to_str(), Some("hidden")));
}

#[test]
fn a_shard_that_is_not_a_file() {
    let directory = two_shards();
    let shard = directory.path().join("s2.safetensors");
    fs::remove_file(&shard).unwrap();
    fs::create_dir(&shard).unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    if cfg!(unix) {
        assert!(matches!(error.kind(), ErrorKind::NotAFile { found: "a directory" }), "{error}");
    }
    assert_eq!((error.file(), error.tensor()), (shard.to_str(), Some("b")));
}
