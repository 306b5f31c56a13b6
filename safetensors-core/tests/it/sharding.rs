//! Saving in shards: the rules of `huggingface_hub`, against its own outcomes.

use safetensors_core::checkpoint::store::Store;
use safetensors_core::checkpoint::{MaxShardSize, save_sharded_to};
use serde_json::{Value, json};

use crate::support::*;

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_same_sizes_as_huggingface_hub() {
    let sizes = fixture("sizes.json");
    for (text, expected) in sizes.as_object().unwrap() {
        let found = text.parse::<MaxShardSize>();
        // In Python a plain number of bytes is an `int` and not text.
        let expected = text.trim().parse().ok().or(expected.as_u64());
        assert_eq!(found.as_ref().ok().map(|size| size.0), expected, "{text:?}: {found:?}");
    }
    assert!(sizes.as_object().unwrap().values().any(Value::is_null));
}

/// Saves U8 tensors by name, with these numbers of elements, filled with a value.
fn save_bytes(
    directory: &Path,
    tensors: &[(&str, usize, u8)],
    options: &ShardOptions,
) -> Vec<String> {
    let data: Vec<_> =
        tensors.iter().map(|&(name, len, value)| (name, [len], vec![value; len])).collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::from_slice(shape, bytes).unwrap()));
    save_sharded(directory, views, options).unwrap().files
}

fn limit(bytes: u64) -> ShardOptions {
    ShardOptions::new().max_shard_size(bytes.into()).save_options(SaveOptions::new().durable(false))
}

fn read(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let bufs = checkpoint.read_all(&LoadOptions::new()).unwrap();
    checkpoint
        .tensors()
        .zip(bufs)
        .map(|(tensor, buf)| (tensor.name().into(), buf.bytes().to_vec()))
        .collect()
}

#[test]
fn several_files_and_their_index() {
    let (directory, path) = place("new/model");
    let options = limit(10).save_options(
        SaveOptions::new().metadata([("license", "mit"), ("nöte", "a\"\\\n\u{7f}𝄞")]),
    );
    let files = save_bytes(
        &path,
        &[("z", 6, 1), ("b\té", 30, 2), ("a", 4, 3), ("c", 1, 4), ("empty", 0, 5)],
        &options,
    );
    let expected = [1, 2, 3].map(|i| format!("model-0000{i}-of-00003.safetensors"));
    assert_eq!(files, expected);
    assert_eq!(
        names_in(&path),
        Vec::from_iter(files.iter().cloned().chain(["model.safetensors.index.json".into()]))
    );

    // The result of `json.dumps(index, indent=2, sort_keys=True) + "\n"` in Python.
    let index = fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
    let expected = r#"{
  "metadata": {
    "license": "mit",
    "n\u00f6te": "a\"\\\n\u007f\ud834\udd1e",
    "total_size": 41
  },
  "weight_map": {
    "a": "model-00002-of-00003.safetensors",
    "b\t\u00e9": "model-00001-of-00003.safetensors",
    "c": "model-00003-of-00003.safetensors",
    "empty": "model-00003-of-00003.safetensors",
    "z": "model-00002-of-00003.safetensors"
  }
}
"#;
    assert_eq!(index, expected);

    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.index_total_size(), Some(41));
    assert_eq!(checkpoint.metadata()["license"], "mit");
    assert_eq!(checkpoint.metadata()["nöte"], "a\"\\\n\u{7f}𝄞");
    for shard in checkpoint.files() {
        let metadata: Vec<_> = shard.safetensors().metadata().iter().collect();
        assert_eq!(metadata, [(&"format".to_owned(), &"pt".to_owned())]);
    }
    assert_eq!(checkpoint.unindexed().count(), 0);
    let read = read(&path);
    assert_eq!((read["z"].as_slice(), read["b\té"].as_slice()), (&[1; 6][..], &[2; 30][..]));

    // Equal tensors give equal bytes.
    let again = directory.path().join("again");
    save_bytes(
        &again,
        &[("z", 6, 1), ("b\té", 30, 2), ("a", 4, 3), ("c", 1, 4), ("empty", 0, 5)],
        &options,
    );
    for name in names_in(&path) {
        assert_eq!(
            fs::read(path.join(&name)).unwrap(),
            fs::read(again.join(&name)).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn one_file_needs_no_index() {
    let directory = tempdir().unwrap();
    let options = limit(10).save_options(SaveOptions::new().metadata([("license", "mit")]));
    assert_eq!(
        save_bytes(directory.path(), &[("a", 4, 1), ("b", 6, 2)], &options),
        ["model.safetensors"]
    );
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(
        checkpoint
            .metadata()
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>(),
        ["format=pt", "license=mit"]
    );
    assert_eq!((checkpoint.index_path(), checkpoint.index_total_size()), (None, None));

    let options = limit(10).save_options(SaveOptions::new().metadata([("format", "np")]));
    save_bytes(directory.path(), &[("a", 4, 1)], &options);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().metadata()["format"], "np");
    save_bytes(directory.path(), &[("a", 4, 1), ("b", 8, 1)], &options);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert!(
        checkpoint.files().iter().all(|shard| shard.safetensors().metadata()["format"] == "np")
    );
}

#[test]
fn a_save_without_tensors_writes_one_file() {
    let directory = tempdir().unwrap();
    for before in [&[][..], &[("a", 4, 1), ("b", 8, 1)]] {
        save_bytes(directory.path(), before, &limit(10));
        assert_eq!(save_bytes(directory.path(), &[], &limit(10)), ["model.safetensors"]);
        assert_eq!(names_in(directory.path()), ["model.safetensors"]);
        assert!(Checkpoint::open(directory.path()).unwrap().is_empty());
    }
}

#[test]
fn files_of_an_earlier_save_are_gone_and_no_others() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let others = [
        "config.json",
        "model-00001-of-00003.safetensors.backup",
        "model-0001-of-0003.safetensors",
        "model.fp16.safetensors",
        "model.safetensors.bak",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ];
    for other in others {
        fs::write(path.join(other), "x").unwrap();
    }
    let after = |files: &[&str]| {
        let mut names: Vec<_> = others.iter().chain(files).map(|name| (*name).to_owned()).collect();
        names.sort();
        assert_eq!(names_in(path), names);
    };
    // As in the published test: files that are not part of a checkpoint.
    for stale in
        ["model.safetensors", "model.safetensors.index.json", "model-00001-of-00003.safetensors"]
    {
        fs::write(path.join(stale), "").unwrap();
    }
    save_bytes(path, &[("a", 4, 1)], &limit(10));
    after(&["model.safetensors"]);
    let index = "model.safetensors.index.json";
    for (value, tensors) in [(1, 3_usize), (2, 2), (3, 1), (4, 3), (5, 3), (6, 1), (7, 2)] {
        let names = ["a", "b", "c"];
        let tensors: Vec<_> = names[..tensors].iter().map(|name| (*name, 6, value)).collect();
        let files = save_bytes(path, &tensors, &limit(10));
        let mut expected: Vec<_> = files.iter().map(String::as_str).collect();
        expected.extend(Some(index).filter(|_| tensors.len() > 1));
        after(&expected);
        // Opened by the index or the file, because the directory also has other files.
        let opened = path.join(if tensors.len() > 1 { index } else { "model.safetensors" });
        assert!(read(&opened).values().all(|bytes| *bytes == [value; 6]));
        assert_eq!(read(&opened).len(), tensors.len());
    }
}

#[test]
fn several_checkpoints_in_one_directory() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let fp16 = limit(10).file_pattern("model.fp16{suffix}.safetensors".parse().unwrap());
    save_bytes(path, &[("a", 6, 1), ("b", 6, 1)], &limit(10));
    save_bytes(path, &[("a", 6, 2), ("b", 6, 2)], &fp16);
    save_bytes(path, &[("a", 6, 3), ("b", 6, 3)], &limit(10));
    assert_eq!(read(path)["a"], [3; 6], "the standard name goes first");
    assert_eq!(read(&path.join("model.fp16.safetensors.index.json"))["b"], [2; 6]);
    save_bytes(path, &[("a", 6, 4)], &fp16);
    assert_eq!(read(&path.join("model.fp16.safetensors"))["a"], [4; 6]);
    assert_eq!(read(path)["b"], [3; 6]);
    assert_eq!(names_in(path).len(), 4);
}

#[test]
fn destinations_that_are_refused() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    save_bytes(path, &[("a", 6, 1)], &limit(10));
    for name in ["model-00002-of-00002.safetensors", "model.safetensors.index.json"] {
        fs::create_dir(path.join(name)).unwrap();
        let bytes = [2_u8; 6];
        let view = TensorView::from_slice(&[6], &bytes).unwrap();
        let error = refused!(
            save_sharded(path, [("a", view), ("b", view)], &limit(10)),
            ErrorKind::NotAFile { found: "a directory" }
        );
        assert_eq!(error.file(), path.join(name).to_str());
        fs::remove_dir(path.join(name)).unwrap();
        assert_eq!((read(path)["a"].as_slice(), names_in(path).len()), (&[1; 6][..], 1));
    }
    // The directory is a file.
    let file = write(path, "file", "");
    let error =
        save_sharded(&file, [("a", TensorView::from_slice(&[1], &[1_u8]).unwrap())], &limit(10))
            .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.file() == file.to_str(), "{error}");
}

#[test]
fn tensors_that_cannot_be_saved() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    save_bytes(path, &[("a", 6, 1), ("b", 6, 1)], &limit(10));
    let before = names_in(path);
    let bytes = [2_u8; 6];
    let view = TensorView::from_slice(&[6], &bytes).unwrap();
    // The duplicates go into two shards, so no header has both.
    let error = save_sharded(path, [("a", view), ("a", view)], &limit(10)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::DuplicateTensor) && error.tensor() == Some("a"),
        "{error}"
    );
    let error = save_sharded(path, [("a", view), ("__metadata__", view)], &limit(10)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::ReservedName) && error.tensor() == Some("__metadata__"),
        "{error}"
    );
    // The error names the file that was to be written, not the temporary one.
    assert_eq!(error.file(), path.join("model-00002-of-00002.safetensors").to_str());
    assert_eq!((names_in(path), read(path)["a"].as_slice()), (before, &[1; 6][..]));
}

/// In the Hub's cache, directories have links to files that several revisions share.
#[cfg(unix)]
#[test]
fn links_are_replaced_and_not_followed() {
    let directory = tempdir().unwrap();
    let (blobs, snapshot) = (directory.path().join("blobs"), directory.path().join("snapshot"));
    save_bytes(&blobs, &[("a", 6, 1), ("b", 6, 1)], &limit(10));
    fs::create_dir(&snapshot).unwrap();
    for name in names_in(&blobs) {
        std::os::unix::fs::symlink(Path::new("../blobs").join(&name), snapshot.join(&name))
            .unwrap();
    }
    let before = names_in(&blobs);
    for tensors in [&[("a", 6, 2), ("b", 6, 2)][..], &[("a", 6, 2)]] {
        assert_eq!(read(&snapshot).len(), 2);
        save_bytes(&snapshot, tensors, &limit(10));
        assert_eq!(read(&snapshot)["a"], [2; 6]);
        assert_eq!((read(&blobs)["a"].as_slice(), names_in(&blobs)), (&[1; 6][..], before.clone()));
    }
    assert_eq!(names_in(&snapshot), ["model.safetensors"]);
}

/// One shard of several, without the others and the index, is part of a checkpoint and must not
/// pass for one.
#[test]
fn a_lone_shard_is_no_checkpoint() {
    let (directory, path) = place("model-00001-of-00002.safetensors");
    save(&path, [("a", TensorView::from_slice(&[1], &[1_u8]).unwrap())], &SaveOptions::new())
        .unwrap();
    refused!(
        Checkpoint::open(directory.path()),
        ErrorKind::NoCheckpoint { found, .. } if found.len() == 1
    );
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 1);
}

#[test]
fn tensors_that_no_index_mentions() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let data = [7_u8];
    for (file, names) in
        [("s1.safetensors", &["a", "b", "x"][..]), ("s2.safetensors", &["b", "c", "y"])]
    {
        let views = names.iter().map(|name| (name, TensorView::from_slice(&[1], &data).unwrap()));
        write(path, file, serialize(views, &SaveOptions::new()).unwrap());
    }
    let weight_map = json!({"a": "s1.safetensors", "b": "s2.safetensors", "c": "s2.safetensors"});
    for (metadata, total_size) in [
        (json!({"total_size": 3}), Some(3)),
        (json!({"total_size": 3.0}), Some(3)),
        (json!({"total_size": u64::MAX}), Some(u64::MAX)),
        (json!({"total_size": 3.5}), None),
        (json!({"total_size": -3}), None),
        (json!({"total_size": 1e30}), None),
        (json!({"total_size": "3"}), None),
        (json!({"total_size": {"total_size": [3]}, "x": [[1], {"a": null}], "y": true}), None),
        (json!({}), None),
        (json!(null), None),
        (json!([{"total_size": 3}]), None),
        (json!("x"), None),
    ] {
        let index = json!({"metadata": metadata, "weight_map": weight_map, "more": [1, {}]});
        write(path, "model.safetensors.index.json", index.to_string());
        let checkpoint = Checkpoint::open(path).unwrap();
        let unindexed: Vec<_> = checkpoint
            .unindexed()
            .map(|(file, tensor)| {
                (file.path().file_name().unwrap().to_str().unwrap(), tensor.name())
            })
            .collect();
        assert_eq!(
            unindexed,
            [("s1.safetensors", "b"), ("s1.safetensors", "x"), ("s2.safetensors", "y")]
        );
        assert_eq!(checkpoint.index_total_size(), total_size, "{index}");
    }
    let index = json!({"weight_map": weight_map}).to_string();
    let twice = index.replacen('{', r#"{"metadata":{"k":"1","k":2},"#, 1);
    write(path, "model.safetensors.index.json", twice);
    let error = Checkpoint::open(path).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::BadIndex { .. }) && error.to_string().contains("\"k\""),
        "{error}"
    );
}

/// Many shards are opened at once; the error names the first, as if they had been opened one
/// after the other.
#[test]
fn the_first_of_many_broken_shards() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let names: Vec<_> = (0..30).map(|i| format!("t{i:02}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), 8, 1)).collect();
    let files = save_bytes(path, &tensors, &limit(10));
    assert_eq!(files.len(), 30);
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!(checkpoint.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), names);
    for broken in [29, 17, 5] {
        fs::write(path.join(&files[broken]), "short").unwrap();
        let error = refused!(Checkpoint::open(path), ErrorKind::TooShort { found: 5 });
        assert_eq!(
            (error.file(), error.tensor()),
            (path.join(&files[broken]).to_str(), Some(&*names[broken]))
        );
    }
}

#[test]
fn files_in_memory_equal_files_on_the_disk() {
    let data: Vec<_> = ["a", "b", "c"].map(|name| (name, [3_u8; 300])).into();
    let tensors = || {
        let view = |bytes| TensorView::from_slice(&[300], bytes).unwrap();
        data.iter().map(move |(name, bytes)| (*name, view(bytes)))
    };
    for size in [300, 700, 5000] {
        let dir = tempdir().unwrap();
        let options = limit(size).metadata([("epoch", "3")]);
        let saved = save_sharded(dir.path(), tensors(), &options).unwrap();
        let mut store = MemoryStore::default();
        let in_memory = save_sharded_to(&mut store, tensors(), &options).unwrap();
        assert_eq!(in_memory, saved);
        let names = store.list(Path::new("")).unwrap().into_iter().map(|entry| entry.name);
        let names: Vec<_> = names.collect();
        assert_eq!(names, names_in(dir.path()));
        for name in names {
            let file = store.open(Path::new(&name)).unwrap();
            assert_eq!(file.as_ref(), fs::read(dir.path().join(name)).unwrap());
        }
    }
    let twice = [("a", TensorView::from_slice(&[1], &[1_u8]).unwrap()); 2];
    let mut store = MemoryStore::default();
    refused!(save_sharded_to(&mut store, twice, &limit(1)), ErrorKind::DuplicateTensor);
}
