//! The rules of `huggingface_hub`, against its own outcomes.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::{FilePattern, Split, split_into_shards};

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the files of a split with the positions of their tensors.
fn files(split: &Split, pattern: &FilePattern) -> Vec<(String, Vec<usize>)> {
    let shards = split.shards.len();
    split
        .shards
        .iter()
        .enumerate()
        .map(|(i, tensors)| (pattern.file_name(i, shards), tensors.clone()))
        .collect()
}

/// The published tests of `huggingface_hub`, with tensors that are called layer 1 to 5.
#[test]
fn the_published_cases_have_the_published_result() {
    let pattern: FilePattern = "file{suffix}.safetensors".parse().unwrap();
    let sizes = [6, 10, 30, 2, 2].map(|size| (size, None::<u64>));

    let one = split_into_shards(sizes, 100.into());
    assert_eq!(files(&one, &pattern), [("file.safetensors".into(), vec![0, 1, 2, 3, 4])]);
    assert_eq!(one.total_size, 50);

    let several = split_into_shards(sizes, 10.into());
    let expected = [vec![0], vec![2], vec![1], vec![3, 4]];
    let names = (1..).map(|i| format!("file-0000{i}-of-00004.safetensors"));
    assert_eq!(files(&several, &pattern), Vec::from_iter(names.zip(expected)));
    assert_eq!(several.total_size, 50);

    // The storage of a tensor is its size.
    let shared = split_into_shards([1, 2, 1, 2, 1].map(|size| (size, Some(size))), 1.into());
    assert_eq!(shared.shards, [vec![1, 3], vec![0, 2, 4]]);
    assert_eq!(shared.total_size, 3, "each storage counts once");

    // The example of its documentation, in GB.
    let documented =
        split_into_shards([6, 6, 2, 6, 2, 2].map(|size| (size, None::<u64>)), 10.into());
    assert_eq!(documented.shards, [vec![0], vec![1, 2], vec![3, 4, 5]]);
}

#[test]
fn the_same_shards_as_huggingface_hub() {
    let cases = fixture("shards.json");
    for case in cases.as_array().unwrap() {
        let tensors = case["tensors"].as_array().unwrap();
        let tensors =
            tensors.iter().map(|tensor| (tensor[0].as_u64().unwrap(), tensor[1].as_u64()));
        let split = split_into_shards(tensors, case["limit"].as_u64().unwrap().into());
        assert_eq!(json!(files(&split, &FilePattern::default())), case["files"], "{case}");
        assert_eq!(json!(split.total_size), case["total_size"], "{case}");
    }
    assert!(cases.as_array().unwrap().len() >= 100);
}

#[test]
fn sizes_that_do_not_fit_64_bits() {
    let split = split_into_shards(
        [u64::MAX, 1, u64::MAX - 1, 2].map(|size| (size, None::<()>)),
        u64::MAX.into(),
    );
    assert_eq!(split.shards, [vec![0], vec![1, 2], vec![3]]);
    assert_eq!(split.total_size, u64::MAX);
}
