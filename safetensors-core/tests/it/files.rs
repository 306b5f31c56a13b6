//! Checkpoints of several files without an index, and of a single source; positions of tensors.

use safetensors_core::tied::Tied;

use crate::support::*;

/// Saves a file of U8 tensors with the metadata `from: name`.
fn file(dir: &TempDir, name: &str, tensors: &[&str]) -> PathBuf {
    let path = dir.path().join(name);
    let value = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    let metadata = Metadata::from([("from".to_string(), name.to_string())]);
    let options = SaveOptions::new().durable(false).metadata(metadata);
    save(&path, tensors.iter().map(|name| (name, value)), &options).unwrap();
    path
}

#[test]
fn several_files_are_one_checkpoint() {
    let dir = tempdir().unwrap();
    let b = file(&dir, "b.safetensors", &["z", "a"]);
    let a = file(&dir, "a.safetensors", &["m"]);
    let empty = file(&dir, "c.safetensors", &[]);
    let checkpoint = Checkpoint::open_files([&b, &empty, &a]).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(names[0], "m");
    let files: Vec<_> = checkpoint.files().iter().map(|file| file.path()).collect();
    assert_eq!(files, [&a, &b, &empty]);
    assert_eq!(checkpoint.index_path(), None);
    // As with shards, the first file's metadata wins.
    assert_eq!(checkpoint.metadata()["from"], "a.safetensors");
    let z = checkpoint.tensor("z").unwrap();
    assert_eq!((z.file(), z.read().unwrap().into_vec::<u8>().unwrap()), (Some(&*b), vec![7]));
    assert_eq!(checkpoint.unindexed().count(), 0);
    checkpoint.audit().unwrap();

    refused!(checkpoint.tensor("zz"), ErrorKind::TensorNotFound);

    let none: [PathBuf; 0] = [];
    let checkpoint = Checkpoint::open_files(none).unwrap();
    assert!(checkpoint.is_empty() && checkpoint.get("a").is_none());
    assert!(checkpoint.tensor("a").is_err() && checkpoint.metadata().is_empty());
}

#[test]
fn a_name_in_two_files_and_a_file_that_is_missing_are_errors() {
    let dir = tempdir().unwrap();
    let a = file(&dir, "a.safetensors", &["x", "y"]);
    let b = file(&dir, "b.safetensors", &["y"]);
    let error = Checkpoint::open_files([&b, &a]).unwrap_err();
    let is_a = |other: &str| Some(other) == a.to_str();
    assert!(matches!(error.kind(), ErrorKind::InTwoFiles { other } if is_a(other)), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("y"), b.to_str()));
    assert!(error.to_string().contains("another file has a tensor of the same name"), "{error}");

    let gone = dir.path().join("gone.safetensors");
    let error = refused!(Checkpoint::open_files([&a, &gone]), ErrorKind::Io(_));
    assert_eq!(error.file(), gone.to_str());
}

#[test]
fn a_source_has_the_name_that_it_is_given() {
    let value = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    let bytes = serialize([("w", value)], &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::from_source(&bytes[..], "upload").unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().file().unwrap().to_str(), Some("upload"));
    let error = Checkpoint::from_source(&bytes[..20], "upload").unwrap_err();
    assert_eq!(error.file(), Some("upload"));
}

#[test]
fn positions_equal_the_order_of_the_iterator() {
    let dir = tempdir().unwrap();
    let values: Vec<u8> = (0..8).collect();
    let names = ["h.0.w", "h.1.w", "h.2.w", "embed", "head"];
    let view = |i: usize| TensorView::from_slice(&[2], &values[i..i + 2]).unwrap();
    // `head` is `embed`: it is saved as an alias.
    let tensors: Vec<_> = names.iter().zip([0, 2, 4, 6, 6].map(view)).collect();
    let each = || tensors.iter().map(|(name, view)| (name, view));

    let single = dir.path().join("model.safetensors");
    let options = SaveOptions::new().durable(false).tied(Tied::new());
    save(&single, each(), &options).unwrap();
    let sharded = dir.path().join("sharded");
    let size = safetensors_core::checkpoint::MaxShardSize(4);
    save_sharded(&sharded, each(), &ShardOptions::new().save_options(options).max_shard_size(size))
        .unwrap();

    for path in [single, sharded] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!((checkpoint.len(), checkpoint.aliases().count()), (4, 1));
        for (i, tensor) in checkpoint.tensors().enumerate() {
            assert_eq!(checkpoint.position(tensor.name()), Some(i));
            assert_eq!(checkpoint.tensor_at(i).unwrap().name(), tensor.name());
        }
        assert_eq!(checkpoint.position("head"), checkpoint.position("embed"));
        assert_eq!(checkpoint.position("gone"), None);
        assert!(checkpoint.tensor_at(4).is_none() && checkpoint.tensor_at(usize::MAX).is_none());
        // Aliases are suggested, too.
        assert_eq!(checkpoint.tensor("heads").unwrap_err().similar(), ["head"]);
    }
}
