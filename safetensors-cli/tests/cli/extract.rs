//! `safetensors extract` and `safetensors completions`.

use std::fs;

use crate::fixtures::*;
use predicates::prelude::*;
use safetensors_core::{SaveOptions, TensorView, save};

#[test]
fn a_tensor_becomes_an_array_of_numpy() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let array = dir.path().join("mask.npy");
    fs::write(&array, b"old").unwrap();
    let mut command = safetensors();
    command.arg("extract").arg(&path).args(["mask", "-o"]).arg(&array).assert().success().stdout("").stderr("");
    let bytes = fs::read(&array).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"));
    assert_eq!(bytes[128..], [1_i64.to_le_bytes(), 0_i64.to_le_bytes()].concat());
    // Nothing but the two files.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    let stdout = safetensors().arg("extract").arg(&path).args(["mask", "-o", "-"]).output().unwrap().stdout;
    assert_eq!(stdout, bytes);
}

#[test]
fn a_dtype_without_a_numpy_type_is_refused_or_raw() {
    let dir = temp_dir();
    let path = dir.path().join("model.safetensors");
    let values = [half::bf16::ONE; 3];
    save(&path, [("w", TensorView::from_slice(&[3], &values).unwrap())], &SaveOptions::new().durable(false)).unwrap();
    let array = dir.path().join("w.npy");
    let extract = |raw: &[&str]| {
        let mut command = safetensors();
        command.arg("extract").arg(&path).arg("w").args(raw).arg("-o").arg(&array);
        command.assert()
    };
    extract(&[]).code(1).stderr(predicate::str::contains("tensor w: NumPy has no type for BF16; use --raw"));
    assert!(!array.exists());
    extract(&["--raw"]).success();
    assert_eq!(fs::read(&array).unwrap(), [0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f]);
}

#[test]
fn a_name_that_is_not_there_and_a_place_that_cannot_be_written() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let extract = |name: &str, output: &str| {
        let mut command = safetensors();
        command.current_dir(dir.path()).arg("extract").arg(&path).args([name, "-o", output]);
        command.assert()
    };
    extract("embed", "x")
        .code(1)
        .stderr(predicate::str::contains("tensor \"embed\": there is no such tensor; did you mean embed.weight?"));
    extract("none", "x").code(1).stderr(predicate::str::contains("inspect --flat"));
    extract("mask", ".").code(1).stderr(predicate::str::starts_with("error: .: "));
    extract("mask", "no/such/x").code(1).stderr(predicate::str::starts_with("error: no/such/x: "));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = predicate::str::contains("inspect").and(predicate::str::contains("safetensors"));
        safetensors().args(["completions", shell]).assert().success().stdout(script).stderr("");
    }
    safetensors().args(["completions", "dos"]).assert().code(2);
}
