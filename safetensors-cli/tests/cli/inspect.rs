//! `safetensors inspect`: what it shows.

use std::fs;

use crate::fixtures::*;
use predicates::prelude::*;
use safetensors_core::{SaveOptions, TensorView, save};

#[test]
fn one_file() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let bytes = fs::metadata(path).unwrap().len();
    let expected = format!(
        "\
name          dtype  shape   size
─────────────────────────────────
embed.weight  F32    [2, 3]  24 B
mask          I64    [2]     16 B

dtype  tensors  parameters  size
────────────────────────────────
F32          1           6  24 B
I64          1           2  16 B
total        2           8  40 B

metadata  value
───────────────
format    pt

file               tensors   size
─────────────────────────────────
model.safetensors        2  {bytes} B
"
    );
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["inspect", "model.safetensors"]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn two_shards_by_directory_or_index() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    let first = dir.path().join("model-00001-of-00002.safetensors");
    let bytes = fs::metadata(&first).unwrap().len();
    for path in [dir.path(), &index] {
        let output = safetensors().arg("inspect").arg(path).output().unwrap();
        let shown = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        for expected in [
            "name  dtype  shape   size  file\n",
            "a     F32    [2]      8 B  model-00001-of-00002.safetensors\n",
            "b     U16    [3, 1]   6 B  model-00002-of-00002.safetensors\n",
            "total        2           5  14 B\n",
            &format!("\n{}        1  {bytes} B\n", first.display()),
            &format!("\nindex: {}\n", index.display()),
        ] {
            assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
        }
    }
}

#[test]
fn no_tensors_and_no_metadata() {
    let dir = temp_dir();
    raw_file(&dir.path().join("none.safetensors"), "{}", 0);
    let expected = "\
no tensors

dtype  tensors  parameters  size
────────────────────────────────
total        0           0   0 B

no metadata

file              tensors  size
───────────────────────────────
none.safetensors        0  10 B
";
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["inspect", "none.safetensors"]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn scalars_empty_and_sub_byte_tensors() {
    let dir = temp_dir();
    let path = dir.path().join("odd.safetensors");
    let header = concat!(
        r#"{"scalar":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"#,
        r#""empty":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},"#,
        r#""half bytes":{"dtype":"F4","shape":[2,3],"data_offsets":[8,11]}}"#
    );
    raw_file(&path, header, 11);
    let rows = predicate::str::contains("scalar      F64    []       8 B\n")
        .and(predicate::str::contains("empty       F32    [0, 7]   0 B\n"))
        .and(predicate::str::contains("half bytes  F4     [2, 3]   3 B\n"))
        .and(predicate::str::contains("total        3           7  11 B\n"));
    safetensors().arg("inspect").arg(&path).assert().success().stdout(rows);
}

#[test]
fn hostile_names_are_escaped_and_stay_on_their_lines() {
    let dir = temp_dir();
    let path = hostile_file(dir.path());
    let output = safetensors().arg("inspect").arg(&path).output().unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(is_plain(shown), "{shown:?}");
    for row in [
        r"\u{1b}[2Jred\u{202e}  U8     [1]     1 B",
        r"two\nlines            U8     [1]     1 B",
        r#"""                    U8     [1]     1 B"#,
        r"k\u{1b}]0;owned\u{7}  line one\nline two\u{202e}",
    ] {
        assert!(shown.lines().any(|line| line == row), "{row:?} is not a line of\n{shown}");
    }
}

#[test]
fn huge_names_shapes_and_values_do_not_make_the_table_huge() {
    let dir = temp_dir();
    let path = dir.path().join("huge.safetensors");
    let name = format!("start{}end", "x".repeat(1_000_000));
    let shape = vec![1; 100_000];
    let one = [1_u8];
    let tensors = (0..100).map(|i| (format!("t{i}"), TensorView::from_slice(&[1], &one).unwrap()));
    let tensors = tensors.chain([(name, TensorView::from_slice(&shape, &one).unwrap())]);
    let options = SaveOptions::new().metadata([("log", "v".repeat(1_000_000))]).durable(false);
    save(&path, tensors, &options).unwrap();
    let output = safetensors().arg("inspect").arg(&path).output().unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(shown.len() < 50_000, "{} bytes", shown.len());
    assert!(shown.contains("startxxx") && shown.contains("xxxend  U8     [1, 1, 1, 1, 1, 1, …, "), "{shown}");
    assert!(shown.contains("(rank 100,000)") && shown.contains("vvv… (1,000,000 bytes)"), "{shown}");
}

#[test]
fn one_hundred_thousand_tensors() {
    let dir = temp_dir();
    let path = dir.path().join("many.safetensors");
    let tensor = TensorView::from_slice(&[0], &[0_u8; 0]).unwrap();
    let tensors = (0..100_000).map(|i| (format!("model.layers.{i}.weight"), tensor));
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let mut command = safetensors();
    // Something quadratic takes minutes here; the limit is wide for slow machines.
    command.timeout(std::time::Duration::from_secs(60)).arg("inspect").arg(&path);
    command
        .assert()
        .success()
        .stdout(predicate::str::contains("\nmodel.layers.99999.weight  U8     [0]     0 B\n"))
        .stdout(predicate::str::contains("\ntotal  100,000           0   0 B\n"));
}

#[test]
fn what_cannot_be_shown_is_an_error_and_nothing_else() {
    let dir = temp_dir();
    let bad = dir.path().join("bad.safetensors");
    fs::write(&bad, b"not a safetensors file").unwrap();
    for path in [bad, dir.path().join("missing.safetensors")] {
        let error = predicate::str::starts_with(format!("error: {}: ", path.display()));
        safetensors().arg("inspect").arg(&path).assert().code(1).stdout("").stderr(error);
    }
    small_file(dir.path(), "second.safetensors");
    let names = predicate::str::contains("\"bad.safetensors\", \"second.safetensors\"");
    safetensors().arg("inspect").arg(dir.path()).assert().code(1).stdout("").stderr(names);
}

#[test]
fn wrong_usage_exits_2() {
    for args in [&["inspect"][..], &["inspect", "a", "b"], &["inspect", "--what", "a"]] {
        let usage = predicate::str::contains("Usage: safetensors inspect");
        safetensors().args(args).assert().code(2).stdout("").stderr(usage);
    }
}
