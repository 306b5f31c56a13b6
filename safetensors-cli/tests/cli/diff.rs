//! `safetensors diff`: what counts as a difference, and how it is told.

use std::path::{Path, PathBuf};

use crate::fixtures::*;
use half::bf16;
use predicates::prelude::*;
use safetensors_core::{SaveOptions, TensorView, save};

fn file(path: PathBuf, w: &TensorView<'_>, extra: &str, format: &str) -> PathBuf {
    let one = [1_u8];
    let tensors = [("w", *w), (extra, TensorView::from_slice(&[1], &one).unwrap())];
    save(&path, tensors, &SaveOptions::new().metadata([("format", format)]).durable(false)).unwrap();
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
    save(&single, all, &SaveOptions::new().metadata([("format", "pt")]).durable(false)).unwrap();
    diff(&index, &single).assert().success().stdout("2 tensors equal\n").stderr("");
}

#[test]
fn every_kind_of_difference() {
    let dir = temp_dir();
    let (one, two) = ([1.0_f32, 2.0, 4.0], [1.0_f32, 2.5, f32::NAN]);
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[3], &one).unwrap(), "old", "pt");
    let b = file(dir.path().join("b"), &TensorView::from_slice(&[3], &two).unwrap(), "new", "np");
    let expected = "\
   name  A        B         values  max abs  max rel
────────────────────────────────────────────────────
+  new            U8 [1]
-  old   U8 [1]
~  w     F32 [3]  F32 [3]   2 of 3      inf      inf

   metadata  A   B
──────────────────
~  format    pt  np

0 tensors equal, 1 different, 1 only in A, 1 only in B, other metadata
";
    let output = diff(&a, &b).output().unwrap();
    let squeeze = |text: &str| {
        text.replace('─', "")
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), ""));
    assert_eq!(squeeze(text(&output.stdout)), squeeze(expected));
    let json: serde_json::Value = serde_json::from_slice(&diff(&a, &b).arg("--json").output().unwrap().stdout).unwrap();
    assert_eq!((&json["equal"], &json["tensors"][2]["values"]["values"]), (&false.into(), &2.into()));
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
    diff(&a, &b).args(["--relative-tolerance", "0.004"]).assert().code(1).stdout(predicate::str::contains("0 of 3"));
    for wrong in ["-1", "NaN", "x"] {
        diff(&a, &b).arg(format!("--tolerance={wrong}")).assert().code(2);
    }
}

#[test]
fn another_shape_is_not_compared() {
    let dir = temp_dir();
    let values = [1_u8, 2];
    let a = file(dir.path().join("a"), &TensorView::from_slice(&[2], &values).unwrap(), "x", "pt");
    let b = file(dir.path().join("b"), &TensorView::from_slice(&[1, 2], &values).unwrap(), "x", "pt");
    diff(&a, &b).assert().code(1).stdout(predicate::str::contains("~  w     U8 [2]  U8 [1, 2]\n"));
    diff(&a, &b).args(["-f", "x"]).assert().success().stdout("1 tensor equal\n");
}

#[test]
fn a_filter_may_match_on_one_side_only() {
    let dir = temp_dir();
    let one = [1_u8];
    let view = TensorView::from_slice(&[1], &one).unwrap();
    let (a, b) = (file(dir.path().join("a"), &view, "old", "pt"), file(dir.path().join("b"), &view, "new", "pt"));
    diff(&a, &b).args(["-f", "new"]).assert().code(1).stdout(predicate::str::contains("0 tensors equal, 1 only in B"));
    let error = predicate::str::contains("no tensor matches --filter");
    diff(&a, &b).args(["-f", "none"]).assert().code(1).stdout("").stderr(error);
}
