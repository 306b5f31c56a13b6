//! A model and its optimizer as one checkpoint.

use candle_core::{DType, Device};
use candle_nn::ParamsAdamW;
use safetensors_candle::train::{self, AdamW, StateOptions};
use safetensors_candle::var_builder;
use safetensors_core::error::Mismatch;

use super::support::{
    bits, extra, get, map, mismatches, missing, model, optimizer, quick, shards, state, train,
    values, var,
};

use crate::common::place;

#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_was_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (file, sharded) = (dir.path().join("a.safetensors"), dir.path().join("sharded"));
    let whole = model(1);
    let mut never_stopped = optimizer(&whole);
    (0..30).for_each(|step| train(&whole, &mut never_stopped, step));

    let mut map = model(1);
    let mut running = optimizer(&map);
    for step in 0..30 {
        train(&map, &mut running, step);
        if step.is_multiple_of(7) {
            let epoch = [("epoch", step.to_string())];
            let path = if step.is_multiple_of(2) { &file } else { &sharded };
            if step.is_multiple_of(2) {
                train::save(path, (&map, &running), &quick().metadata(epoch)).unwrap();
            } else {
                let options = shards(64).metadata(epoch);
                let saved = train::save_sharded(path, (&map, &running), &options).unwrap();
                assert!(saved.files.len() > 2);
            }
            // All is lost but the checkpoint.
            map = model(50);
            running = AdamW::from_var_map(&map, ParamsAdamW::default()).unwrap();
            let loaded = train::load(path, (&map, &mut running)).unwrap();
            assert_eq!(loaded.metadata["epoch"], step.to_string());
            assert_eq!(loaded.metadata.keys().filter(|key| key.contains("adamw")).count(), 0);
        }
    }
    assert_eq!(values(&map), values(&whole));
    assert_eq!(state(&running), state(&never_stopped));
    train::save(dir.path().join("b.safetensors"), (&map, &running), &quick()).unwrap();
    train::save(dir.path().join("c.safetensors"), (&whole, &never_stopped), &quick()).unwrap();
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(read("b.safetensors") == read("c.safetensors"));
}

#[test]
fn the_checkpoint_of_another_model_is_refused_with_every_name() {
    let (_dir, path) = place("a.safetensors");
    let other = map([("scale", var(&[1], 1)), ("other", var(&[2], 2))]);
    train::save(&path, (&other, &optimizer(&other)), &quick()).unwrap();
    let ours = model(1);
    let mut trained = optimizer(&ours);
    train(&ours, &mut trained, 0);
    let before = (values(&ours), state(&trained));
    let error = train::load(&path, (&ours, &mut trained)).unwrap_err();
    assert_eq!((values(&ours), state(&trained)), before);

    let found = mismatches(&error);
    for name in ["a.bias", "a.weight", "b.weight"] {
        for end in ["", ".exp_avg", ".exp_avg_sq"] {
            assert!(found.contains(&missing(&format!("{name}{end}"))), "{error}");
        }
    }
    for end in ["", ".exp_avg", ".exp_avg_sq"] {
        let name = format!("scale{end}");
        let shape = Mismatch::Shape { name, expected: vec![], found: vec![1] };
        assert!(found.contains(&shape) && found.contains(&extra(&format!("other{end}"))));
    }
    assert_eq!(found.len(), 9 + 3 + 3);
    assert!(error.to_string().contains(r#"missing: "a.bias", "a.bias.exp_avg","#), "{error}");
}

#[test]
fn a_model_without_its_optimizer_is_no_training_checkpoint_and_back() {
    let (_dir, path) = place("a.safetensors");
    let saved = model(1);
    train::save(&path, &saved, &quick()).unwrap();
    let fresh = model(50);
    let mut fresh_optimizer = optimizer(&fresh);
    let error = train::load(&path, (&fresh, &mut fresh_optimizer)).unwrap_err();
    // Two tensors for each of four variables, the step, and five hyperparameters.
    assert_eq!(mismatches(&error).len(), 8 + 6);
    assert_eq!(values(&fresh), values(&model(50)));
    let options = StateOptions::new().allow_missing(true);
    let loaded = options.load(&path, (&fresh, &mut fresh_optimizer)).unwrap();
    assert_eq!((loaded.missing.len(), fresh_optimizer.step_count()), (8, 0));
    assert_eq!(values(&fresh), values(&saved));

    let mut trained = optimizer(&saved);
    train(&saved, &mut trained, 0);
    train::save(&path, (&saved, &trained), &quick()).unwrap();
    assert_eq!(mismatches(&train::load(&path, &fresh).unwrap_err()).len(), 8);
    StateOptions::new().allow_extra(true).load(&path, &fresh).unwrap();
    assert_eq!(values(&fresh), values(&saved));
    let mut resumed = optimizer(&fresh);
    StateOptions::new().allow_extra(true).load(&path, &mut resumed).unwrap();
    assert_eq!(state(&resumed), state(&trained));

    // A model takes its weights from a training checkpoint.
    let builder = var_builder(&path, DType::F32, &Device::Cpu).unwrap();
    let weight = builder.pp("a").get((4, 3), "weight").unwrap();
    assert_eq!(bits(&weight), bits(&get(&saved, "a.weight")));
}

#[test]
fn a_part_of_the_variables_can_be_trained() {
    let (_dir, path) = place("a.safetensors");
    let saved = model(1);
    let head = |map| [("b.weight", get(map, "b.weight"))];
    let mut trained = AdamW::from_named(head(&saved), ParamsAdamW::default()).unwrap();
    train(&saved, &mut trained, 0);
    train::save(&path, (&saved, &trained), &quick()).unwrap();
    let fresh = model(50);
    let mut resumed = AdamW::from_named(head(&fresh), ParamsAdamW::default()).unwrap();
    train::load(&path, (&fresh, &mut resumed)).unwrap();
    assert_eq!((values(&fresh), state(&resumed)), (values(&saved), state(&trained)));
    // An optimizer of all variables finds that the state of some is missing.
    let error = train::load(&path, (&fresh, &mut optimizer(&fresh))).unwrap_err();
    assert_eq!(mismatches(&error).len(), 6);
}
