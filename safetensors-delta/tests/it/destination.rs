//! What lies at the destination, in it and beside the base: nothing is lost, and nothing old is
//! taken over.

use std::fs;

use safetensors_core::{Checkpoint, Error, ErrorKind as CoreKind};
use safetensors_delta::{Chain, Delta, ErrorKind, make};

use crate::support::{INDEX, Scratch, Tensors, bytes, files, quick, read, write};

fn base() -> Tensors {
    Tensors::from([bytes("a", [1, 2]), bytes("b", [3, 4])])
}

fn new() -> Tensors {
    Tensors::from([bytes("a", [1, 2]), bytes("b", [3, 5])])
}

/// With a base `base` and a delta of this name to `new`.
fn scratch(delta: &str) -> Scratch {
    let scratch = Scratch::new(&base());
    fs::create_dir_all(scratch.path(delta).parent().unwrap()).unwrap();
    scratch.make(delta, &new(), &quick()).unwrap();
    scratch
}

fn chain(scratch: &Scratch, delta: &str) -> Chain {
    Chain::new([Delta::open(scratch.path(delta)).unwrap()]).unwrap()
}

#[test]
fn what_is_read_is_not_replaced_with_the_directory_that_it_lies_in() {
    let scratch = scratch("out/deltas/1");
    let inner = write(&scratch.path("out/base"), &base(), u64::MAX);
    write(&scratch.path("out"), &new(), u64::MAX);
    let file = Checkpoint::open(scratch.path("out/model.safetensors")).unwrap();
    scratch.make("delta", &new(), &quick()).unwrap();
    let below = write(&scratch.path("delta/base"), &base(), u64::MAX);
    let (out, delta, replacing) =
        (scratch.path("out"), scratch.path("delta"), quick().overwrite(true));
    let before = files(scratch.directory.path());
    let tensors = || below.tensors().map(|tensor| (tensor.name(), tensor));
    let refused: [Result<(), Error>; 5] = [
        chain(&scratch, "delta").apply(&inner, &out, &replacing).map(drop),
        chain(&scratch, "delta").apply(&file, &out, &replacing).map(drop),
        chain(&scratch, "out/deltas/1").apply(&scratch.base, &out, &replacing).map(drop),
        chain(&scratch, "out/deltas/1").squash(&below, &delta, &replacing),
        make(&below, tensors(), &delta, &replacing).map(drop),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::InsideDestination)), "{error}");
    }
    assert_eq!(files(scratch.directory.path()), before);
    // One delta of several may take the place of one of them.
    chain(&scratch, "delta").squash(&scratch.base, &delta, &replacing).unwrap();
}

/// It may be the index of a checkpoint.
#[test]
fn what_is_not_known_to_be_a_delta_is_not_replaced() {
    let scratch = scratch("delta");
    for index in ["{", r#"{"metadata":{"delta_encoding":"xor"}}"#, ""] {
        fs::write(scratch.path("delta").join(INDEX), index).unwrap();
        let before = files(scratch.directory.path());
        let error = scratch.make("delta", &new(), &quick().overwrite(true)).unwrap_err();
        assert!(matches!(error.kind(), CoreKind::BadIndex { .. }), "{error}");
        assert_eq!(files(scratch.directory.path()), before);
    }
    // A directory that cannot be listed is not free.
    let error = scratch.make(&format!("delta/{INDEX}/x"), &new(), &quick()).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Io(_)), "{error}");
}

#[test]
fn what_appears_meanwhile_stays() {
    let scratch = scratch("delta");
    let appearing = |name: &str| {
        let path = scratch.path(name);
        quick().progress(move |_| {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("thesis.tex"), "x").unwrap();
        })
    };
    let applied = chain(&scratch, "delta");
    let applied = applied.apply(&scratch.base, scratch.path("out"), &appearing("out"));
    let made = scratch.make("made", &new(), &appearing("made"));
    for error in [applied.unwrap_err(), made.unwrap_err()] {
        assert!(matches!(error.kind(), CoreKind::FileExists), "{error}");
    }
    for name in ["out", "made"] {
        let left = files(&scratch.path(name));
        assert_eq!(Vec::from_iter(left.into_values()), [b"x"]);
    }
}

#[test]
fn only_what_is_beside_the_tensors_is_copied() {
    let scratch = scratch("delta");
    let base = scratch.path("base");
    let copied = ["config.json", "model_index.json", "original/params.json", "tokenizer.model"];
    let left_out = [
        ".git/HEAD",
        ".gitattributes",
        "consolidated.safetensors",
        "model.Q4_K_M.GGUF",
        "model.fp16.safetensors.index.json",
        "model.sig",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "step-2/config.json",
        "step-2/model.safetensors",
    ];
    for name in copied.into_iter().chain(left_out) {
        fs::create_dir_all(base.join(name).parent().unwrap()).unwrap();
        fs::write(base.join(name), "x").unwrap();
    }
    let opened = Checkpoint::open(&base).unwrap();
    let (chain, out) = (chain(&scratch, "delta"), scratch.path("out"));
    let named = chain.apply(&opened, &out, &quick()).unwrap();
    let mut expected = left_out.map(|name| name.split('/').next().unwrap()).to_vec();
    expected[0] = ".git";
    expected.dedup();
    assert_eq!(named, expected.iter().map(std::path::PathBuf::from).collect::<Vec<_>>());
    let mut expected: Vec<_> =
        copied.iter().chain(&["model.safetensors"]).map(|it| out.join(it)).collect();
    expected.sort();
    assert_eq!(Vec::from_iter(files(&out).into_keys()), expected);
    assert_eq!(read(&out), new());
}

/// Before a tensor is read, and not after all are written.
#[cfg(unix)]
#[test]
fn what_cannot_be_copied_is_found_before_anything_is_written() {
    let scratch = scratch("delta");
    let link = scratch.path("base/notes.txt");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let base = Checkpoint::open(scratch.path("base")).unwrap();
    let options = quick().progress(|_| panic!("a tensor is read"));
    let error = chain(&scratch, "delta").apply(&base, scratch.path("out"), &options).unwrap_err();
    assert_eq!(error.file(), link.to_str());
}

/// Such as a blob in a cache of the Hub, and a pipe.
#[test]
fn a_base_of_any_name_gives_a_directory_that_opens() {
    let scratch = scratch("delta");
    fs::copy(scratch.path("base/model.safetensors"), scratch.path("63")).unwrap();
    let base = Checkpoint::open(scratch.path("63")).unwrap();
    chain(&scratch, "delta").apply(&base, scratch.path("out"), &quick()).unwrap();
    assert_eq!(read(&scratch.path("out")), new());
}
