//! `safetensors diff`: what counts as a difference, and how it is shown.

use std::path::{Path, PathBuf};

use half::bf16;
use predicates::prelude::*;
use safetensors_core::{TensorView, save};

use crate::fixtures::*;

fn file(path: PathBuf, w: &TensorView<'_>, extra: &str, format: &str) -> PathBuf {
    let one = [1_u8];
    let tensors = [("w", *w), (extra, TensorView::from_slice(&[1], &one).unwrap())];
    save(&path, tensors, &quick().metadata([("format", format)])).unwrap();
    path
}

fn diff(a: &Path, b: &Path) -> assert_cmd::Command {
    let mut command = safetensors();
    command.arg("diff").arg(a).arg(b);
    command
}

#[test]
fn a_checkpoint_equals_itself_however_it_is_split() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    let (a, b) = ([1.0_f32, 2.0], [1_u16, 2, 3]);
    let tensors = [("b", TensorView::from_slice(&[3, 1], &b).unwrap())];
    let other = temp_dir();
    let single = other.path().join("model.safetensors");
    let all = tensors.into_iter().chain([("a", TensorView::from_slice(&[2], &a).unwrap())]);
    save(&single, all, &quick().metadata([("format", "pt")])).unwrap();
    diff(&index, &single).assert().success().stdout("2 tensors equal\n").stderr("");
}

#[test]
fn every_kind_of_difference() {
    let dir = temp_dir();
    let (one, two) = ([1.0_f32, 2.0, 4.0], [1.0_f32, 2.5, f32::NAN]);
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[3], &one).unwrap(), "old", "pt");
    let b = file(dir.path().join("b"), &TensorView::from_slice(&[3], &two).unwrap(), "new", "np");
    let expected = "   name  A        B        values  max abs  max rel
───────────────────────────────────────────────────
+  new            U8 [1]
-  old   U8 [1]
~  w     F32 [3]  F32 [3]  2 of 3      inf      inf

   metadata  A   B
───────────────────
~  format    pt  np

0 tensors equal, 1 different, 1 only in A, 1 only in B, other metadata
";
    run_in(dir.path(), "diff a b").code(1).stdout(expected).stderr("");
    let json: serde_json::Value =
        serde_json::from_slice(&diff(&a, &b).arg("--json").output().unwrap().stdout).unwrap();
    assert_eq!(
        (&json["equal"], &json["tensors"][2]["values"]["values"]),
        (&false.into(), &2.into())
    );
    // JSON has no infinity.
    assert_eq!(json["tensors"][2]["values"]["max_absolute"], serde_json::Value::Null);
    diff(&a, &a).assert().success();
}

#[test]
fn tolerance_and_other_dtypes() {
    let dir = temp_dir();
    let exact = [0.1_f32, -3.3, 1000.5];
    let rounded = exact.map(bf16::from_f32);
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[3], &exact).unwrap(), "x", "pt");
    let b = file(dir.path().join("b"), &TensorView::from_slice(&[3], &rounded).unwrap(), "x", "pt");
    diff(&a, &b).assert().code(1).stdout(predicate::str::contains("3 of 3"));
    diff(&a, &b)
        .args(["--ignore-dtype", "--tolerance", "0.01"])
        .assert()
        .code(1)
        .stdout(predicate::str::contains("1 of 3"));
    diff(&a, &b).args(["--ignore-dtype", "--relative-tolerance", "0.004"]).assert().success();
    diff(&a, &b)
        .args(["--relative-tolerance", "0.004"])
        .assert()
        .code(1)
        .stdout(predicate::str::contains("0 of 3"));
    let error = predicate::str::contains("expected a finite number of 0 or more");
    for wrong in ["-1", "NaN", "inf", "1e999", "x"] {
        diff(&a, &b).args(["--tolerance", wrong]).assert().code(2).stderr(error.clone());
        diff(&a, &b).args(["--relative-tolerance", wrong]).assert().code(2).stderr(error.clone());
    }
}

#[test]
fn a_complex_number_is_compared_with_a_real_one() {
    let dir = temp_dir();
    let complex = [1.0_f32, 5.0, 7.0, 7.0].map(f32::to_le_bytes).concat();
    let pure = [1.0_f32, 0.0, 5.0, -0.0].map(f32::to_le_bytes).concat();
    let view = |bytes| TensorView::new(safetensors_core::Dtype::C64, &[2], bytes).unwrap();
    let a = file(dir.path().join("a"), &view(&complex), "x", "pt");
    let pure = file(dir.path().join("pure"), &view(&pure), "x", "pt");
    let b = file(
        dir.path().join("b"),
        &TensorView::from_slice(&[2], &[1.0_f32, 5.0]).unwrap(),
        "x",
        "pt",
    );
    for (one, other) in [(&a, &b), (&b, &a)] {
        let row = matches("w .* 3 of 4 +7 +1\n");
        diff(one, other).arg("--ignore-dtype").assert().code(1).stdout(row);
    }
    diff(&pure, &b).arg("--ignore-dtype").assert().success();
    diff(&pure, &b).assert().code(1).stdout(predicate::str::contains(" 0 of 4 "));
}

#[test]
fn equal_means_the_same_bits_unless_there_is_a_tolerance() {
    let dir = temp_dir();
    let (zero, minus) = ([0.0_f32, 1.0, f32::NAN], [-0.0_f32, 1.0, f32::from_bits(0x7fc0_0001)]);
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[3], &zero).unwrap(), "x", "pt");
    let b = file(dir.path().join("b"), &TensorView::from_slice(&[3], &minus).unwrap(), "x", "pt");
    let expected = "   name  A        B        values  other bits  max abs  max rel
───────────────────────────────────────────────────────────────
~  w     F32 [3]  F32 [3]  0 of 3           2        0        0

1 tensor equal, 1 different
";
    run_in(dir.path(), "diff a b").code(1).stdout(expected).stderr("");
    let json = diff(&a, &b).arg("--json").output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let values = &json["tensors"][0]["values"];
    assert_eq!(
        (&values["values"], &values["other_bits"], &values["of"]),
        (&0.into(), &2.into(), &3.into())
    );
    diff(&a, &b).args(["--tolerance", "0"]).assert().success().stdout("2 tensors equal\n");
    diff(&a, &b).args(["--relative-tolerance", "0"]).assert().success();
    diff(&a, &a).assert().success();
}

#[test]
fn bytes_that_are_no_booleans_are_compared_all_the_same() {
    let dir = temp_dir();
    let flags = |name: &str, byte| {
        let path = dir.path().join(name);
        raw_file(&path, r#"{"f":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#, 3);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() = byte;
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (two, again, one) = (flags("two", 2), flags("again", 2), flags("one", 1));
    diff(&two, &again).assert().success().stdout("1 tensor equal\n");
    diff(&two, &one).assert().code(1).stdout(predicate::str::contains("1 of 3")).stderr("");
}

#[test]
fn pieces_add_up() {
    // More elements than one piece holds. The first and the last piece differ.
    let dir = temp_dir();
    let mut values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let a = file(
        dir.path().join("a"),
        &TensorView::from_slice(&[600_001], &values).unwrap(),
        "x",
        "pt",
    );
    (values[3], values[600_000]) = (8, 7);
    let b = file(
        dir.path().join("b"),
        &TensorView::from_slice(&[600_001], &values).unwrap(),
        "x",
        "pt",
    );
    let row = matches("w .* 2 of 600,001 +7 +1\n");
    diff(&a, &b).assert().code(1).stdout(row);
}

#[test]
fn another_shape_is_not_compared() {
    let dir = temp_dir();
    let values = [1_u8, 2];
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[2], &values).unwrap(), "x", "pt");
    let b =
        file(dir.path().join("b"), &TensorView::from_slice(&[1, 2], &values).unwrap(), "x", "pt");
    diff(&a, &b).assert().code(1).stdout(predicate::str::contains("~  w     U8 [2]  U8 [1, 2]\n"));
    diff(&a, &b).args(["-f", "x"]).assert().success().stdout("1 tensor equal\n");
}

#[test]
fn a_filter_may_match_on_one_side_only() {
    let dir = temp_dir();
    let one = [1_u8];
    let view = TensorView::from_slice(&[1], &one).unwrap();
    let (a, b) = (
        file(dir.path().join("a"), &view, "old", "pt"),
        file(dir.path().join("b"), &view, "new", "pt"),
    );
    diff(&a, &b)
        .args(["-f", "new"])
        .assert()
        .code(1)
        .stdout(predicate::str::contains("0 tensors equal, 1 only in B"));
    let error = predicate::str::contains("no tensor matches --filter");
    diff(&a, &b).args(["-f", "none"]).assert().code(1).stdout("").stderr(error);
}
