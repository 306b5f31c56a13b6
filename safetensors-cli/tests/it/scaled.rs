//! Quantised weights whose scales are another tensor.

use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, save};

use crate::convert::{content, convert};
use crate::fixtures::*;

/// A file with the weight `l.weight`, which is 0.5, 0.5, 1, 1: the codes of 1, 1, 2, 2, and their
/// scale.
fn weight(dir: &Path, scales: &str) {
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let scale = TensorView::from_slice(&[1, 1], &[0.5_f32]).unwrap();
    let norm = TensorView::from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let tensors = [("l.weight", codes), (scales, scale), ("norm", norm)];
    save(dir.join("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
}

fn values(path: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let weight = checkpoint.tensor("l.weight").unwrap();
    weight.read_as(Dtype::F32, &Default::default()).unwrap().into_vec().unwrap()
}

#[test]
fn a_weight_is_not_converted_without_its_scales() {
    let dir = temp_dir();
    for scales in ["l.weight_scale_inv", "l.weight_scale", "l.scale_weight"] {
        weight(dir.path(), scales);
        for args in [&["--dtype", "bf16"][..], &["--cast", "l.*=f32"]] {
            convert(dir.path(), &[&["in.safetensors", "out.safetensors"], args].concat())
                .failure()
                .code(1)
                .stderr(predicate::str::contains(
                    "in.safetensors: tensor \"l.weight\" would become",
                ))
                .stderr(predicate::str::contains(format!(
                    "without the scales in tensor \"{scales}\""
                )))
                .stderr(predicate::str::contains("--dequantize"));
            assert!(!dir.path().join("out.safetensors").exists());
        }
        let kept =
            ["in.safetensors", "out.safetensors", "--dtype", "bf16", "--cast", "l.weight=keep"];
        convert(dir.path(), &kept).success();
        let mut expected = vec![
            ("l.weight".to_owned(), Dtype::F8_E4M3),
            (scales.to_owned(), Dtype::F32),
            ("norm".to_owned(), Dtype::BF16),
        ];
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(content(dir.path().join("out.safetensors")), expected);
        std::fs::remove_file(dir.path().join("out.safetensors")).unwrap();
    }
}

#[test]
fn an_option_multiplies_by_the_scales_and_leaves_them_out() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale_inv");
    let out = dir.path().join("out.safetensors");
    let all = [("l.weight".to_owned(), Dtype::BF16), ("norm".to_owned(), Dtype::BF16)];
    for (args, expected) in [
        (&["--dequantize", "bf16", "--dtype", "bf16"][..], all.clone()),
        (&["--dequantize", "bf16"], [all[0].clone(), ("norm".to_owned(), Dtype::F32)]),
    ] {
        convert(dir.path(), &[&["in.safetensors", "out.safetensors"], args].concat())
            .success()
            .stderr("");
        assert_eq!(content(out.clone()), expected);
        assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0]);
        std::fs::remove_file(&out).unwrap();
    }
    // Through the parts of ranks, which are gathered first.
    let ranks = ["--ranks", "2", "--rule", "l.weight=split:1", "--rule", "*=replicate"];
    convert(dir.path(), &[&["in.safetensors", "parts"], &ranks[..]].concat()).success();
    convert(dir.path(), &["parts", "out.safetensors", "--dtype", "f16"])
        .failure()
        .stderr(predicate::str::contains("--dequantize f16"));
    convert(dir.path(), &["parts", "out.safetensors", "--dequantize", "f16"]).success();
    assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0]);
}

#[test]
fn numbers_without_scales_are_said_to_be_such() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale");
    let warning = "the numbers of \"l.weight\" are its elements without the scales in \
                   \"l.weight_scale\"";
    for args in [&["stats", "in.safetensors"][..], &["show", "in.safetensors", "l.weight"]] {
        run_in(dir.path(), args).success().stderr(predicate::str::contains(warning));
    }
    run_in(dir.path(), &["show", "in.safetensors", "norm"]).success().stderr("");
    run_in(dir.path(), &["diff", "in.safetensors", "in.safetensors"]).success().stderr("");
    convert(dir.path(), &["in.safetensors", "plain.safetensors", "--dequantize", "f32"]).success();
    run_in(dir.path(), &["diff", "in.safetensors", "plain.safetensors"])
        .failure()
        .stderr(predicate::str::contains(warning));
}

#[test]
fn scales_stay_as_they_are_beside_a_weight_that_does() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale_inv");
    convert(dir.path(), &["in.safetensors", "out.safetensors", "--dtype", "f8_e4m3"]).success();
    let expected = [
        ("l.weight".to_owned(), Dtype::F8_E4M3),
        ("l.weight_scale_inv".to_owned(), Dtype::F32),
        ("norm".to_owned(), Dtype::F8_E4M3),
    ];
    assert_eq!(content(dir.path().join("out.safetensors")), expected);
    // Unless they are named.
    let named = ["in.safetensors", "named.safetensors", "--cast", "*_inv=f16"];
    convert(dir.path(), &named).success();
    assert_eq!(content(dir.path().join("named.safetensors"))[1].1, Dtype::F16);
}

#[test]
fn scales_in_another_input_are_found() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale_inv");
    for (file, pattern) in [("1.safetensors", "l.weight"), ("2.safetensors", "*_inv")] {
        convert(dir.path(), &["in.safetensors", file, "-f", pattern]).success();
    }
    let both = ["1.safetensors", "2.safetensors", "out.safetensors"];
    convert(dir.path(), &[&both[..], &["--dtype", "bf16"]].concat())
        .failure()
        .stderr(predicate::str::contains("--dequantize bf16"));
    convert(dir.path(), &[&both[..], &["--dequantize", "bf16"]].concat()).success().stderr("");
    assert_eq!(values(&dir.path().join("out.safetensors")), [0.5, 0.5, 1.0, 1.0]);
}
