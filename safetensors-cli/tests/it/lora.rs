//! LoRA adapters that are merged while a checkpoint is converted.

use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, Dtype, LoadOptions};
use safetensors_testing::lora::Merge;
use safetensors_testing::quantized::Quantized;

use crate::convert::convert;
use crate::fixtures::*;

/// The options that merge the adapters of a fixture.
fn loras(fixture: &Merge) -> Vec<String> {
    let option = |path: &std::path::PathBuf| ["--lora".to_owned(), text(path)];
    fixture.paths().iter().flat_map(option).collect()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Converts the checkpoint of a fixture.
fn merge(dir: &Path, fixture: &Merge, more: &[&str]) -> assert_cmd::assert::Assert {
    let (model, loras) = (text(&fixture.model()), loras(fixture));
    let mut args = vec![&*model, "out.safetensors"];
    args.extend(loras.iter().map(String::as_str).chain(more.iter().copied()));
    convert(dir, &args)
}

#[test]
fn every_kind_is_what_the_reference_makes_of_it() {
    for fixture in Merge::all() {
        let dir = temp_dir();
        let adapters = match fixture.paths().len() {
            1 => "1 adapter".to_owned(),
            more => format!("{more} adapters"),
        };
        merge(dir.path(), &fixture, &[])
            .success()
            .stderr("")
            .stdout(predicate::str::ends_with(format!(" of {adapters} merged\n")));
        let out = Checkpoint::open(dir.path().join("out.safetensors")).unwrap();
        let merged = fixture.base().merged(fixture.adapters()).unwrap();
        assert_eq!(out.len(), merged.len());
        for tensor in out.tensors() {
            assert_eq!(tensor.dtype(), fixture.tensor(tensor.name()).dtype());
            let found = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), found.as_slice().unwrap());
        }
    }
}

/// The sum is rounded once, to the dtype that is asked for.
#[test]
fn a_dtype_is_that_of_the_sum() {
    let fixture = Merge::named("bf16");
    let exact = fixture.base().merged_as(fixture.adapters(), |_, _| Dtype::F32).unwrap();
    for (option, dtype) in [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::BF16)] {
        let dir = temp_dir();
        merge(dir.path(), &fixture, &["--dtype", option]).success();
        let out = Checkpoint::open(dir.path().join("out.safetensors")).unwrap();
        for tensor in out.tensors() {
            let expected = exact.tensor(tensor.name()).unwrap();
            let expected = expected.read_with(&LoadOptions::new().all_as(dtype)).unwrap();
            let found = tensor.read().unwrap();
            assert_eq!((found.dtype(), found.bytes()), (dtype, expected.bytes()));
        }
    }
}

#[test]
fn a_scale_and_parts_of_ranks() {
    let (dir, fixture) = (temp_dir(), Merge::named("exact-integers"));
    let adapter = format!("{}:0.5", text(&fixture.paths()[0]));
    let model = text(&fixture.model());
    let ranks = ["--ranks", "2", "--rule", "*q_proj.weight=split:0", "--rule", "*=replicate"];
    convert(dir.path(), &[&[&*model, "parts", "--lora", &adapter], &ranks[..]].concat()).success();
    convert(dir.path(), &["parts", "out.safetensors"]).success();
    let adapters = fixture.adapters().into_iter().map(|adapter| adapter.scale(0.5));
    let expected = fixture.base().merged(adapters.collect::<Vec<_>>()).unwrap();
    let out = Checkpoint::open(dir.path().join("out.safetensors")).unwrap();
    for tensor in expected.tensors() {
        let found = out.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!(found.bytes(), tensor.read().unwrap().bytes(), "{}", tensor.name());
    }
}

#[test]
fn what_does_not_fit_is_an_error_and_nothing_is_written() {
    let (dir, fixture) = (temp_dir(), Merge::named("linear"));
    let (model, adapter) = (text(&fixture.model()), text(&fixture.paths()[0]));
    let other = Quantized::named("gptq-v1-4bits");
    let quantised = text(&other.model());
    let missing = dir.path().join("missing");
    let cases: [(&[&str], &str); 6] = [
        (&[&*quantised, "out.safetensors"], "which the checkpoint does not have"),
        (&[&*model, &*model, "out.safetensors"], "--lora is for one IN"),
        (&[&*model, "out.safetensors", "--lora", missing.to_str().unwrap()], "missing"),
        (&[&*model, "out.safetensors", "--lora", &model], "cannot be merged"),
        (&["a.npy", "out.safetensors"], "--lora is for a checkpoint"),
        (&[&*model, "out.safetensors", "--dry-run"], ""),
    ];
    std::fs::write(dir.path().join("a.npy"), npy()).unwrap();
    for (args, expected) in cases {
        let done = convert(dir.path(), &[args, &["--lora", &*adapter]].concat());
        if expected.is_empty() {
            done.success().stdout(predicate::str::contains("merged; nothing was written"));
        } else {
            done.failure().stderr(predicate::str::contains(expected));
        }
        assert!(!dir.path().join("out.safetensors").exists());
    }
}

/// An array of one number.
fn npy() -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    header.extend(format!("{text:<117}\n").bytes());
    header.extend(1.0_f32.to_le_bytes());
    header
}
