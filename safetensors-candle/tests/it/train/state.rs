//! The state of an optimizer, saved and loaded.

use candle_core::{DType, Device, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};
use safetensors_candle::train::{self, AdamW, StateOptions};
use safetensors_core::digest::DigestOptions;
use safetensors_core::edit::Edit;
use safetensors_core::error::Mismatch;
use safetensors_core::{Checkpoint, Dtype, Metadata};

use super::support::{mismatches, model, optimizer, quick, save_bufs, state, train};

use crate::common::place;

fn trained(steps: u32) -> (VarMap, AdamW) {
    let map = model(1);
    let mut optimizer = optimizer(&map);
    (0..steps).for_each(|step| train(&map, &mut optimizer, step));
    (map, optimizer)
}

#[test]
fn the_file_has_pytorchs_names_and_readable_settings() {
    let (_dir, path) = place("a.safetensors");
    let (_, mut saved) = trained(3);
    saved.set_params(ParamsAdamW {
        lr: 0.1,
        beta1: f64::NAN,
        beta2: -0.0,
        eps: 5e-324,
        weight_decay: f64::INFINITY,
    });
    train::save(&path, &saved, &quick().metadata([("epoch", "2")])).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    names.sort_unstable();
    let expected = ["a.bias", "a.weight", "b.weight", "scale"]
        .map(|name| [format!("{name}.exp_avg"), format!("{name}.exp_avg_sq")]);
    assert_eq!(names, expected.as_flattened());
    let metadata = [
        ("epoch", "2"),
        ("safetensors_bridge.adamw.beta1", "0x7ff8000000000000"),
        ("safetensors_bridge.adamw.beta2", "-0.0"),
        ("safetensors_bridge.adamw.eps", "5e-324"),
        ("safetensors_bridge.adamw.lr", "0.1"),
        ("safetensors_bridge.adamw.step", "3"),
        ("safetensors_bridge.adamw.weight_decay", "inf"),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_string(), value.to_string()));
    assert_eq!(*checkpoint.metadata(), Metadata::from(metadata));
    assert_eq!(checkpoint.aliases().count(), 0);

    let mut fresh = optimizer(&model(1));
    let loaded = train::load(&path, &mut fresh).unwrap();
    assert_eq!(loaded.metadata, Metadata::from([("epoch".into(), "2".into())]));
    assert_eq!(state(&fresh), state(&saved));
    assert_eq!(fresh.params().beta1.to_bits(), f64::NAN.to_bits());
    assert_eq!(fresh.params().beta2.to_bits(), (-0.0_f64).to_bits());
}

/// A training that is resumed saves with the metadata that the load has found.
#[test]
fn metadata_of_a_load_has_no_records_of_the_file() {
    let (_dir, path) = place("a.safetensors");
    train::save(&path, &trained(3).1, &quick().metadata([("epoch", "2")])).unwrap();
    let sha256 = format!("0x{}", "0".repeat(64));
    let entries = [("safetensors_bridge.attempt", "step-3"), ("modelspec.hash_sha256", &sha256)];
    let edit = Edit::open(&path).unwrap().set_metadata(entries);
    edit.record_digests(&DigestOptions::new()).unwrap().apply().unwrap();

    let mut resumed = optimizer(&model(1));
    let loaded = train::load(&path, &mut resumed).unwrap();
    assert_eq!(loaded.metadata, Metadata::from([("epoch".into(), "2".into())]));
}

/// Returns the metadata of a saved optimizer.
fn fresh_settings(optimizer: &AdamW) -> Metadata {
    let (_dir, path) = place("a.safetensors");
    train::save(&path, optimizer, &quick()).unwrap();
    Checkpoint::open(&path).unwrap().metadata().clone()
}

#[test]
fn settings_that_are_missing_or_malformed_are_listed_with_the_rest() {
    let (dir, path) = place("a.safetensors");
    let (_, mut ours) = trained(2);
    let before = state(&ours);
    let key = |name: &str| format!("safetensors_bridge.adamw.{name}");
    let mut settings = fresh_settings(&ours);
    settings.remove(&key("eps"));
    settings.insert(key("step"), "2147483648".into());
    settings.insert(key("lr"), "fast".into());
    save_bufs(&path, &[], &quick().metadata(settings));
    let listed = |error: &safetensors_core::Error| -> Vec<(String, Option<String>)> {
        let settings = mismatches(error).iter().filter_map(|mismatch| match mismatch {
            Mismatch::Metadata { key, found, .. } => Some((key.clone(), found.clone())),
            _ => None,
        });
        settings.collect()
    };
    let error = train::load(&path, &mut ours).unwrap_err();
    let step = (key("step"), Some("2147483648".into()));
    let lr = (key("lr"), Some("fast".into()));
    assert_eq!(listed(&error), [step.clone(), lr.clone(), (key("eps"), None)]);
    assert_eq!(mismatches(&error).len(), 3 + 8);
    assert_eq!(state(&ours), before);

    // The error keeps only the beginning of a long value.
    let mut long = fresh_settings(&ours);
    long.insert(key("lr"), "é".repeat(100_000));
    save_bufs(&dir.path().join("b.safetensors"), &[], &quick().metadata(long));
    let error = train::load(dir.path().join("b.safetensors"), &mut ours).unwrap_err();
    assert_eq!(listed(&error), [(key("lr"), Some("é".repeat(60)))]);

    // A malformed value is always an error. A missing one stays unchanged, if that is allowed.
    let options = StateOptions::new().allow_missing(true);
    let error = options.load(&path, &mut ours).unwrap_err();
    assert_eq!(listed(&error), [step, lr]);
    let weights = model(1);
    safetensors_candle::train::save(&path, &weights, &quick()).unwrap();
    let loaded = options.allow_extra(true).load(&path, &mut ours).unwrap();
    assert_eq!((loaded.missing.len(), loaded.extra.len()), (8, 4));
    assert_eq!(state(&ours), before);
}

#[test]
fn state_of_another_dtype_is_cast_when_asked() {
    let (dir, path) = place("a.safetensors");
    let of = |dtype| {
        let weight = Var::ones(2, dtype, &Device::Cpu).unwrap();
        let params = ParamsAdamW::default();
        (weight.clone(), AdamW::from_named([("w", weight)], params).unwrap())
    };
    let (weight, mut saved) = of(DType::F32);
    saved.backward_step(&weight.sum_all().unwrap()).unwrap();
    train::save(&path, &saved, &quick()).unwrap();
    let (_, mut wide) = of(DType::F64);
    let error = train::load(&path, &mut wide).unwrap_err();
    let dtype = |name: &str| {
        let (expected, found) = (Dtype::F64, Dtype::F32);
        Mismatch::Dtype { name: name.into(), expected, found }
    };
    assert_eq!(mismatches(&error), [dtype("w.exp_avg"), dtype("w.exp_avg_sq")]);
    StateOptions::new().cast(true).load(&path, &mut wide).unwrap();
    assert_eq!(wide.step_count(), 1);
    let file = dir.path().join("b.safetensors");
    train::save(&file, &wide, &quick()).unwrap();
    let buf = Checkpoint::open(&file).unwrap().tensor("w.exp_avg").unwrap().read().unwrap();
    let tenth = f64::from((1.0 - 0.9_f64) as f32);
    assert_eq!(buf.into_vec::<f64>().unwrap(), [tenth; 2]);
}
