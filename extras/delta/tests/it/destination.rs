//! The destination and the files next to the base: nothing is lost, and nothing old is taken over.

use std::fs;
use std::path::PathBuf;

use safetensors_core::{Checkpoint, ErrorKind as CoreKind};
use safetensors_delta::{Chain, Delta, make};

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

/// The base may be in the destination, and may be replaced.
#[test]
fn only_the_files_of_the_old_version_are_replaced() {
    let scratch = scratch("out/deltas/1");
    let inner = write(&scratch.path("out/base"), &base(), u64::MAX);
    write(&scratch.path("out"), &new(), u64::MAX);
    scratch.make("delta", &new(), &quick()).unwrap();
    let below = write(&scratch.path("delta/base"), &base(), u64::MAX);
    let (out, delta, replacing) =
        (scratch.path("out"), scratch.path("delta"), quick().overwrite(true));
    let others = [
        ".env",
        ".git/HEAD",
        "adapter/adapter_model.safetensors",
        "checkpoint-500/optimizer.pt",
        "config.json",
        "notes.txt",
        "vision.onnx",
    ];
    for directory in [&out, &delta] {
        for name in others {
            fs::create_dir_all(directory.join(name).parent().unwrap()).unwrap();
            fs::write(directory.join(name), name).unwrap();
        }
    }
    let [in_out, in_delta] = [&out, &delta].map(|it| files(it));
    let tensors = || below.tensors().map(|tensor| (tensor.name(), tensor));
    let applied = |chain: &Chain, base: &Checkpoint| {
        write(&out, &base_of_others(), u64::MAX);
        assert_eq!(chain.apply(base, &out, &replacing).unwrap(), [""; 0].map(PathBuf::from));
        assert_eq!(read(&out), new());
        assert_eq!(files(&out), in_out);
    };
    applied(&chain(&scratch, "delta"), &inner);
    applied(&chain(&scratch, "out/deltas/1"), &scratch.base);
    write(&out, &base(), u64::MAX);
    let itself = Checkpoint::open(&out).unwrap();
    chain(&scratch, "delta").apply(&itself, &out, &replacing).unwrap();
    assert_eq!((read(&out), files(&out)), (new(), in_out));

    chain(&scratch, "out/deltas/1").squash(&below, &delta, &replacing).unwrap();
    chain(&scratch, "delta").squash(&scratch.base, &delta, &replacing).unwrap();
    assert_eq!(files(&delta), in_delta);
    make(&below, tensors(), &delta, &replacing).unwrap();
    let left = files(&delta);
    assert_eq!(left.len() + 1, in_delta.len(), "nothing differs, so there is no shard");
    assert!(others.iter().all(|name| left.contains_key(&delta.join(name))));
}

/// The base was opened before another writer has replaced it, as a training does.
#[test]
fn a_concurrent_save_of_another_writer_is_not_undone() {
    for most in [u64::MAX, 2] {
        let scratch = scratch("delta");
        let out = scratch.path("out");
        let base = write(&out, &base(), most);
        write(&out, &base_of_others(), most);
        let found = files(&out);
        let replacing = quick().overwrite(true);
        let error = chain(&scratch, "delta").apply(&base, &out, &replacing).unwrap_err();
        assert!(matches!(error.kind(), CoreKind::Io(_)), "{error}");
        assert_eq!(files(&out), found);
    }
}

/// Tensors of a checkpoint that is replaced.
fn base_of_others() -> Tensors {
    Tensors::from([bytes("other", [9])])
}

/// It may be the index of a checkpoint.
#[test]
fn a_directory_with_an_unclear_index_is_not_replaced() {
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
fn files_that_appear_during_a_write_stay() {
    let scratch = scratch("delta");
    let appearing = |name: &str| {
        let path = scratch.path(name);
        quick().progress(move |_| {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("thesis.tex"), "x").unwrap();
            fs::write(path.join("model.safetensors"), "y").unwrap();
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
        assert_eq!(Vec::from_iter(left.into_values()), [b"y", b"x"]);
    }
}

#[test]
fn only_other_files_of_the_model_are_copied() {
    let scratch = scratch("delta");
    let base = scratch.path("base");
    let copied = ["config.json", "model_index.json", "tokenizer.model", "tokenizer/params.json"];
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

/// A link that leads out may lead to a secret, and reading a FIFO would wait.
#[cfg(unix)]
#[test]
fn only_regular_files_below_the_base_are_copied() {
    use std::os::unix::fs::symlink;

    let scratch = scratch("delta");
    let base = scratch.path("base");
    fs::write(scratch.path("secret.txt"), "s").unwrap();
    fs::write(base.join(".env"), "s").unwrap();
    fs::write(base.join("config.json"), "{}").unwrap();
    fs::create_dir(base.join("tokenizer")).unwrap();
    fs::write(base.join("tokenizer/license"), "l").unwrap();
    for (name, target) in [
        ("LICENSE", "tokenizer/license"),
        ("README.md", "../secret.txt"),
        ("dangling.txt", "nowhere"),
        ("tokenizer/out", "../../secret.txt"),
        ("hidden.txt", ".env"),
        ("weights.txt", "model.safetensors"),
        ("folder", "tokenizer"),
    ] {
        symlink(target, base.join(name)).unwrap();
    }
    let fifo = std::process::Command::new("mkfifo").arg(base.join("pipe")).status().unwrap();
    assert!(fifo.success());
    let (opened, out) = (Checkpoint::open(&base).unwrap(), scratch.path("out"));
    let left_out = chain(&scratch, "delta").apply(&opened, &out, &quick()).unwrap();
    let expected = [
        ".env",
        "README.md",
        "dangling.txt",
        "folder",
        "hidden.txt",
        "pipe",
        "tokenizer/out",
        "weights.txt",
    ];
    assert_eq!(left_out, expected.map(PathBuf::from));
    let expected = ["LICENSE", "config.json", "model.safetensors", "tokenizer/license"];
    let expected = expected.map(|name| out.join(name));
    assert_eq!(Vec::from_iter(files(&out).into_keys()), expected);
    assert_eq!(fs::read(out.join("LICENSE")).unwrap(), b"l");
}

/// A file that a user has put into a directory is not replaced by a file of the base.
#[test]
fn a_file_that_the_directory_has_already_stays() {
    let scratch = scratch("delta");
    let (base, out) = (scratch.path("base"), scratch.path("out"));
    write(&out, &base_of_others(), u64::MAX);
    for (directory, text) in [(&base, "of the base"), (&out, "mine")] {
        fs::create_dir_all(directory.join("tokenizer")).unwrap();
        for name in ["README.md", "tokenizer/run.log"] {
            fs::write(directory.join(name), text).unwrap();
        }
    }
    fs::write(base.join("config.json"), "{}").unwrap();
    let (opened, replacing) = (Checkpoint::open(&base).unwrap(), quick().overwrite(true));
    let left_out = chain(&scratch, "delta").apply(&opened, &out, &replacing).unwrap();
    assert_eq!(left_out, ["README.md", "tokenizer/run.log"].map(PathBuf::from));
    for name in ["README.md", "tokenizer/run.log"] {
        assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "mine");
    }
    assert_eq!(fs::read_to_string(out.join("config.json")).unwrap(), "{}");
    assert_eq!(read(&out), new());
}

/// There, each file is a link to a blob of the same repository.
#[cfg(unix)]
#[test]
fn links_in_a_cache_of_the_hub_are_followed() {
    use std::os::unix::fs::symlink;

    let scratch = scratch("delta");
    let repository = scratch.path("models--a--b");
    let snapshot = repository.join("snapshots").join("0".repeat(40));
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repository.join("blobs")).unwrap();
    fs::write(scratch.path("secret.txt"), "s").unwrap();
    fs::copy(scratch.path("base/model.safetensors"), repository.join("blobs/1")).unwrap();
    fs::write(repository.join("blobs/2"), "{}").unwrap();
    symlink("../../blobs/1", snapshot.join("model.safetensors")).unwrap();
    symlink("../../blobs/2", snapshot.join("config.json")).unwrap();
    symlink("../../../secret.txt", snapshot.join("README.md")).unwrap();
    let (base, out) = (Checkpoint::open(&snapshot).unwrap(), scratch.path("out"));
    let left_out = chain(&scratch, "delta").apply(&base, &out, &quick()).unwrap();
    assert_eq!(left_out, [PathBuf::from("README.md")]);
    assert_eq!(fs::read(out.join("config.json")).unwrap(), b"{}");
    assert_eq!(read(&out), new());
    // The files of a cache are not replaced.
    let before = files(scratch.directory.path());
    let replaced = chain(&scratch, "delta").apply(&base, &snapshot, &quick().overwrite(true));
    let error = replaced.unwrap_err();
    assert!(matches!(error.kind(), CoreKind::InHubCache), "{error}");
    assert_eq!(files(scratch.directory.path()), before);
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
