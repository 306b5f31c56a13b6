//! `safetensors diff`: what counts as a difference, and how it is shown.

use assert_cmd::assert::Assert;
use half::bf16;
use safetensors_core::element::Element;
use serde_json::json;

use crate::fixtures::*;

/// A file of `w` and of another tensor.
fn file(dir: &Path, name: &str, w: TensorView<'_>, extra: &str, format: &str) {
    let tensors = [("w", w), (extra, array(&[1], &[1_u8]))];
    save(dir.at(name), tensors, &quick().metadata([("format", format)])).unwrap();
}

/// The files `a` and `b`, which differ in these values of `w` at most.
fn two<A: Element, B: Element>(a: &[A], b: &[B]) -> tempfile::TempDir {
    let dir = temp_dir();
    file(dir.path(), "a", array(&[a.len()], a), "x", "pt");
    file(dir.path(), "b", array(&[b.len()], b), "x", "pt");
    dir
}

fn diff(dir: &tempfile::TempDir, options: &str) -> Assert {
    dir.run(&format!("diff a b {options}"))
}

/// The files differ, and the row of `w` has this.
fn differs(dir: &tempfile::TempDir, options: &str, row: &str) {
    diff(dir, options).code(1).stdout(matches(row)).stderr("");
}

#[test]
fn a_checkpoint_equals_itself_however_it_is_split() {
    let dir = temp_dir();
    sharded(dir.path());
    dir.run("convert . one.safetensors").success();
    dir.run("diff model.safetensors.index.json one.safetensors")
        .success()
        .stdout("2 tensors equal\n")
        .stderr("");
}

#[test]
fn every_kind_of_difference() {
    let dir = temp_dir();
    let (one, two) = ([1.0_f32, 2.0, 4.0], [1.0_f32, 2.5, f32::NAN]);
    file(dir.path(), "a", array(&[3], &one), "old", "pt");
    file(dir.path(), "b", array(&[3], &two), "new", "np");
    let expected = "   name  A        B       values  max abs  max rel
──────────────────────────────────────────────────
+  new            U8 [1]
-  old   U8 [1]
~  w     F32 [3]          2 of 3      inf      inf

   metadata  A   B
───────────────────
~  format    pt  np

0 tensors equal, 1 different, 1 only in A, 1 only in B, other metadata
";
    diff(&dir, "").code(1).stdout(expected).stderr("");
    let shown = diff(&dir, "--json").json();
    assert_eq!(
        (&shown["equal"], &shown["tensors"][2]["values"]["values"]),
        (&json!(false), &json!(2))
    );
    // JSON has no infinity.
    assert_eq!(shown["tensors"][2]["values"]["max_absolute"], json!(null));
    dir.run("diff a a").success();
    // A filter may match on one side only.
    diff(&dir, "-f new").code(1).stdout(contains("0 tensors equal, 1 only in B"));
    diff(&dir, "-f none").fails(1, "no tensor matches --filter 'none'; ").stdout("");
    diff(&dir, "-f new -f none").fails(1, "no tensor matches --filter 'none'; ").stdout("");
    diff(&dir, "-f new -f none --ignore-unmatched").code(1).stdout(contains("1 only in B"));
}

#[test]
fn tolerance_and_other_dtypes() {
    let exact = [0.1_f32, -3.3, 1000.5];
    let dir = two(&exact, &exact.map(bf16::from_f32));
    differs(&dir, "", "3 of 3");
    differs(&dir, "--ignore-dtype --tolerance 0.01", "1 of 3");
    differs(&dir, "--relative-tolerance 0.004", "0 of 3");
    diff(&dir, "--ignore-dtype --relative-tolerance 0.004").success();
    for wrong in ["-1", "NaN", "inf", "1e999", "x"] {
        for option in ["--tolerance", "--relative-tolerance"] {
            let error = "expected a finite number of 0 or more";
            diff(&dir, &format!("{option} {wrong}")).fails(2, error);
        }
    }
}

#[test]
fn a_complex_number_is_compared_with_a_real_one() {
    let dir = temp_dir();
    for (name, numbers) in [("a", [1.0_f32, 5.0, 7.0, 7.0]), ("pure", [1.0, 0.0, 5.0, -0.0])] {
        let bytes = numbers.map(f32::to_le_bytes).concat();
        let view = TensorView::new(Dtype::C64, &[2], &bytes).unwrap();
        file(dir.path(), name, view, "x", "pt");
    }
    file(dir.path(), "b", array(&[2], &[1.0_f32, 5.0]), "x", "pt");
    differs(&dir, "--ignore-dtype", "w .* 3 of 4 +7 +1\n");
    let row = matches("w .* 3 of 4 +7 +1\n");
    dir.run("diff b a --ignore-dtype").code(1).stdout(row);
    dir.run("diff pure b --ignore-dtype").success();
    dir.run("diff pure b").code(1).stdout(contains(" 0 of 4 "));
}

#[test]
fn equal_means_the_same_bits_unless_there_is_a_tolerance() {
    let minus = [-0.0_f32, 1.0, f32::from_bits(0x7fc0_0001)];
    let dir = two(&[0.0_f32, 1.0, f32::NAN], &minus);
    let expected = "   name  A        B  values  other bits  max abs  max rel
─────────────────────────────────────────────────────────
~  w     F32 [3]     0 of 3           2        0        0

1 tensor equal, 1 different
";
    diff(&dir, "").code(1).stdout(expected).stderr("");
    let values = diff(&dir, "--json").json()["tensors"][0]["values"].clone();
    let [differ, bits, of] = ["values", "other_bits", "of"].map(|key| values[key].clone());
    assert_eq!([differ, bits, of], [json!(0), json!(2), json!(3)]);
    diff(&dir, "--tolerance 0").success().stdout("2 tensors equal\n");
    diff(&dir, "--relative-tolerance 0").success();
    dir.run("diff a a").success();
}

#[test]
fn bytes_that_are_no_booleans_are_compared_all_the_same() {
    let dir = temp_dir();
    for (name, byte) in [("a", 2), ("again", 2), ("b", 1)] {
        let path = dir.at(name);
        raw_file(&path, r#"{"f":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#, 3);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() = byte;
        fs::write(&path, bytes).unwrap();
    }
    dir.run("diff a again").success().stdout("1 tensor equal\n");
    differs(&dir, "", "1 of 3");
}

#[test]
fn pieces_add_up() {
    // More elements than one piece holds. The first and the last piece differ.
    let values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let mut other = values.clone();
    other[3] = 8;
    other[600_000] = 7;
    differs(&two(&values, &other), "", "w .* 2 of 600,001 +7 +1\n");
}

#[test]
fn another_shape_is_not_compared() {
    let dir = temp_dir();
    file(dir.path(), "a", array(&[2], &[1_u8, 2]), "x", "pt");
    file(dir.path(), "b", array(&[1, 2], &[1_u8, 2]), "x", "pt");
    differs(&dir, "", r"~  w     U8 \[2\]  \[1, 2\]\n");
    diff(&dir, "-f x").success().stdout("1 tensor equal\n");
}
