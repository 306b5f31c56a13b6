//! Files with their own names, as in deltas, which replace any checkpoint of a directory.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::read;
use crate::checkpoint::{LocalDirectory, ShardOptions};
use crate::file::io::failpoint::interrupt_everywhere;
use crate::file::io::testing::directory_in_memory;
use crate::file::save::SaveOptions;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorView;
use crate::{save, serialize};

/// The index, or the single file, and the files that the index names.
type Names = (&'static str, &'static [&'static str]);

const SINGLE: Names = ("model.safetensors", &["model.safetensors"]);
const OTHER: Names = ("other.safetensors", &["other.safetensors"]);
const SHARDS: Names = (
    "model.safetensors.index.json",
    &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
);
const FOLDERS: Names =
    ("model.safetensors.index.json", &["a.safetensors", "sub/b.safetensors", "sub/c.safetensors"]);
const WEIGHTS: Names = ("weights.safetensors.index.json", &["w1.safetensors", "w2.safetensors"]);

/// Files that belong to no version. None of them is a file of tensors at the top.
const OTHERS: [&str; 6] = [
    ".env",
    ".git/HEAD",
    "checkpoint-500/model.safetensors",
    "notes.txt",
    "optimizer.pt",
    "z.onnx",
];

/// Writes the files of a version to a directory. A tensor of each file has the version's value.
fn write(directory: &Path, (main, files): Names, version: u8) -> Result<()> {
    let mut places = serde_json::Map::new();
    for file in files {
        let (path, values) = (directory.join(file), [version]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let view = TensorView::from_slice(&[1], &values).unwrap();
        save(path, [(*file, view)], &SaveOptions::new().durable(false))?;
        places.insert((*file).into(), (*file).into());
    }
    if files != [main] {
        let index = serde_json::json!({ "metadata": {}, "weight_map": places });
        fs::write(directory.join(main), index.to_string()).unwrap();
    }
    Ok(())
}

/// Returns the relative paths of all files, sorted.
fn files_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files_below(&path).into_iter().map(|below| format!("{name}/{below}")));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

fn prepare(before: Option<Names>) -> TempDir {
    let directory = directory_in_memory();
    for name in OTHERS {
        fs::create_dir_all(directory.path().join(name).parent().unwrap()).unwrap();
        fs::write(directory.path().join(name), name).unwrap();
    }
    if let Some(before) = before {
        write(directory.path(), before, 1).unwrap();
        fs::write(directory.path().join("config.json"), "1").unwrap();
    }
    directory
}

fn replace(directory: &Path, new: Names) -> Result<()> {
    let options = ShardOptions::new().save_options(SaveOptions::new().durable(false));
    let mut place = LocalDirectory::create(directory, &options)?;
    write(place.staging(), new, 2)?;
    fs::write(place.staging().join("config.json"), "2").unwrap();
    fs::create_dir(place.staging().join("docs")).unwrap();
    fs::write(place.staging().join("docs/new"), "2").unwrap();
    place.staged(new.0, ["config.json", "docs/new"])?.commit().map(drop)
}

/// Returns the version that a directory opens as, with all its tensors.
fn version(directory: &Path) -> Option<u8> {
    let found = read(directory).ok()?;
    let version = found.values().next()?[0];
    assert!(found.values().all(|value| *value == [version]), "{found:?}");
    Some(version)
}

#[test]
fn the_old_or_the_new_version_is_complete_and_other_files_stay() {
    let all = [SINGLE, OTHER, SHARDS, FOLDERS, WEIGHTS];
    let standard = [SINGLE, SHARDS, FOLDERS];
    let pairs = all.into_iter().flat_map(|old| standard.map(|new| (Some(old), new)));
    let own = [(Some(OTHER), OTHER), (Some(WEIGHTS), WEIGHTS), (None, OTHER), (None, FOLDERS)];
    for (before, new) in pairs.chain(own) {
        let mut expected: Vec<_> = OTHERS.iter().chain(new.1).map(|it| (*it).to_owned()).collect();
        expected.extend([new.0, "config.json", "docs/new"].map(String::from));
        expected.sort();
        expected.dedup();
        interrupt_everywhere(
            || prepare(before),
            |directory| replace(directory.path(), new),
            |directory, interrupted, result| {
                let path = directory.path();
                let context = format!("{before:?} -> {new:?}, {interrupted:?}, {result:?}");
                let found = version(path);
                assert!(found == Some(2) || found == before.map(|_| 1), "{context}: {found:?}");
                for name in OTHERS {
                    assert_eq!(fs::read(path.join(name)).unwrap(), name.as_bytes(), "{context}");
                }
                if result.is_ok() {
                    assert_eq!(found, Some(2), "{context}");
                    assert_eq!(files_below(path), expected, "{context}");
                }
                // Where the old single file cannot be removed, the new version is complete next to
                // it.
                let is_put_back =
                    interrupted.is_some_and(|it| !it.killed && !it.step.starts_with("remove"));
                if is_put_back && found == Some(1) {
                    let config = fs::read(path.join("config.json")).unwrap();
                    assert_eq!(config, b"1", "{context}");
                    assert!(!path.join("docs").exists(), "{context}");
                }
                // The next one goes on.
                replace(path, new).unwrap();
                assert_eq!(version(path), Some(2), "{context}");
                // It does not know an old file of another pattern that the first one left.
                let mut left = files_below(path);
                let old = before
                    .into_iter()
                    .flat_map(|(main, files)| files.iter().copied().chain([main]));
                let old: Vec<_> =
                    old.filter(|file| !expected.iter().any(|it| it == file)).collect();
                left.retain(|file| interrupted.is_none() || !old.contains(&file.as_str()));
                assert_eq!(left, expected, "{context}");
            },
        );
    }
}

#[test]
fn a_file_of_tensors_of_no_version_is_not_replaced() {
    let of = |names: &[&str]| {
        let views =
            names.iter().map(|name| (*name, TensorView::from_slice(&[1], &[7_u8]).unwrap()));
        serialize(views, &SaveOptions::new()).unwrap()
    };
    // No safetensors file, another tensor than the new file has, and one more.
    for mine in [b"mine".to_vec(), of(&["b"]), of(&["a.safetensors", "b"])] {
        let directory = prepare(Some(SINGLE));
        let path = directory.path().join("a.safetensors");
        fs::write(&path, &mine).unwrap();
        let error = replace(directory.path(), FOLDERS).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
        assert_eq!(error.file(), path.to_str());
        assert_eq!(fs::read(path).unwrap(), mine);
        assert_eq!(version(directory.path()), Some(1));
    }
}
