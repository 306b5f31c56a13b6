//! GGUF files that were split.

use std::path::{Path, PathBuf};

use safetensors_core::Checkpoint;
use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_formats::{ErrorKind, Options, TensorFile, open_files};

use super::{assert_same, fixture};

const PARTS: [&str; 3] =
    ["split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"];

/// Returns the parts in a separate directory.
fn copies() -> (tempfile::TempDir, [PathBuf; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let paths = PARTS.map(|name| dir.path().join(name));
    for (name, path) in PARTS.iter().zip(&paths) {
        std::fs::copy(fixture("gguf").join(name), path).unwrap();
    }
    (dir, paths)
}

#[test]
fn a_path_to_any_part_opens_all_of_them() {
    let expected = Checkpoint::open(fixture("gguf/split.safetensors")).unwrap();
    for part in PARTS {
        let path = fixture("gguf").join(part);
        let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
        assert_eq!(checkpoint.files().len(), 3);
        assert_same(&checkpoint, &expected);
        let metadata = checkpoint.metadata();
        assert_eq!(metadata["general.name"], "a split model");
        assert!(!metadata.keys().any(|key| key.starts_with("split.")), "{metadata:?}");
    }
}

#[test]
fn parts_come_from_any_store() {
    let store: MemoryStore<Vec<u8>> = PARTS
        .iter()
        .map(|name| (format!("bucket/{name}"), std::fs::read(fixture("gguf").join(name)).unwrap()))
        .collect();
    let path = Path::new("bucket").join(PARTS[1]);
    let files = open_files(store, path, &Options::new()).unwrap();
    let checkpoint = Checkpoint::from_sources(files).unwrap();
    assert_eq!(checkpoint.len(), 3);
}

#[test]
fn a_part_alone_is_no_model() {
    let bytes = std::fs::read(fixture("gguf").join(PARTS[1])).unwrap();
    let error = TensorFile::from_source(bytes, "a file", &Options::new()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::SplitGguf { number: 1, count: 3 })));
    let says =
        "a file: it is part 2 of 3 of a split GGUF file, and no whole model without the others";
    assert_eq!(error.to_string(), says);
}

/// Sets the low byte of a number in the metadata of a part.
fn set(path: &Path, key: &str, value: u8) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(key.len()).position(|part| part == key.as_bytes()).unwrap();
    bytes[at + key.len() + 4] = value;
    std::fs::write(path, bytes).unwrap();
}

#[track_caller]
fn error(path: &Path) -> String {
    let error = safetensors_formats::open(path, &Options::new()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::BadSplit { .. })), "{error}");
    error.to_string()
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let (_dir, [first, second, third]) = copies();
    std::fs::remove_file(&third).unwrap();
    let says = format!("of 3 parts, {} is missing", PARTS[2]);
    for part in [&first, &second] {
        assert!(error(part).contains(&says), "{}", error(part));
    }
    // A part twice.
    std::fs::copy(&second, &third).unwrap();
    let says = "it should be part 3 of 3, of 3 tensors, found part 2 of 3, of 3 tensors";
    let found = error(&first);
    assert!(found.contains(PARTS[2]) && found.contains(says), "{found}");

    // Other totals.
    for (key, says) in
        [("split.tensors.count", "of 3, of 4 tensors"), ("split.count", "found part 3 of 4")]
    {
        std::fs::copy(fixture("gguf").join(PARTS[2]), &third).unwrap();
        set(&third, key, 4);
        let found = error(&first);
        assert!(found.contains(PARTS[2]) && found.contains(says), "{found}");
    }

    // A file that is none, and a name that says nothing of the others.
    std::fs::copy(fixture("gguf/plain.gguf"), &third).unwrap();
    assert!(error(&first).contains("found no part"), "{}", error(&first));
    let renamed = first.with_file_name("model.gguf");
    std::fs::rename(&first, &renamed).unwrap();
    let says = "part 1 of 3 should have a name in -00001-of-00003.gguf";
    assert!(error(&renamed).contains(says), "{}", error(&renamed));
}

#[test]
fn the_number_of_tensors_in_all_parts_is_checked() {
    let (_dir, paths) = copies();
    paths.iter().for_each(|path| set(path, "split.tensors.count", 9));
    let found = error(&paths[0]);
    assert!(found.contains("its parts should have 9 tensors, but have 3"), "{found}");

    // Nor can a part be behind the last one.
    set(&paths[0], "split.no", 3);
    let error = safetensors_formats::open(&paths[0], &Options::new()).unwrap_err().to_string();
    assert!(error.contains("split.no is 3, but there are 3 parts"), "{error}");
}
