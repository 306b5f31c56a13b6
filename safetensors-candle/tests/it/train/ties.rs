//! Variables with several names.

use candle_core::Var;
use candle_nn::{Optimizer, VarMap};
use safetensors_candle::train;
use safetensors_core::error::Mismatch;
use safetensors_core::save::BackgroundSaver;
use safetensors_core::tied::Tied;
use safetensors_core::{Checkpoint, TensorBuf, save};

use super::support::{
    get, map, mismatches, missing, optimizer, pair, quick, save_bufs, state, values, var,
};

use crate::common::place;

fn tied(seed: u32) -> VarMap {
    let weight = var(&[2], seed);
    map([("embed", weight.clone()), ("head", weight), ("norm", var(&[2], seed + 1))])
}

fn step(map: &VarMap, optimizer: &mut impl Optimizer) {
    let sum = (get(map, "embed").as_tensor() * get(map, "head").as_tensor()).unwrap();
    let sum = (sum * get(map, "norm").as_tensor()).unwrap().sum_all().unwrap();
    optimizer.backward_step(&sum).unwrap();
}

#[test]
fn a_tied_variable_is_saved_once_or_under_each_name_and_loads_from_both() {
    let (_dir, path) = place("a.safetensors");
    for (options, tensors) in [(quick(), 3), (quick().tied(Tied::new()), 2)] {
        train::save(&path, &tied(1), &options).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().len(), tensors);
        let fresh = tied(9);
        train::load(&path, &fresh).unwrap();
        assert_eq!(values(&fresh), values(&tied(1)));
        // Two variables can get the value of a single tensor.
        let apart = map(["embed", "head", "norm"].map(|name| (name, var(&[2], 9))));
        train::load(&path, &apart).unwrap();
        assert_eq!(values(&apart), values(&tied(1)));
    }
}

#[test]
fn one_of_the_names_is_enough() {
    let (_dir, path) = place("a.safetensors");
    save(&path, [("head", pair()), ("norm", pair())], &quick()).unwrap();
    let fresh = tied(9);
    let loaded = train::load(&path, &fresh).unwrap();
    assert!(loaded.missing.is_empty() && loaded.extra.is_empty());
    assert_eq!(get(&fresh, "embed").to_vec1::<f32>().unwrap(), [1.0, 2.0]);

    save(&path, [("norm", pair())], &quick()).unwrap();
    assert_eq!(mismatches(&train::load(&path, &fresh).unwrap_err()), [missing("embed")]);
}

#[test]
fn different_values_of_one_variable_are_refused() {
    let (_dir, path) = place("a.safetensors");
    // 0 and -0 are equal numbers, but not equal bits.
    let buf = |value: f32| TensorBuf::from_vec(vec![2], vec![1.0, value]).unwrap();
    save_bufs(&path, &[("embed", buf(0.0)), ("head", buf(-0.0)), ("norm", buf(1.0))], &quick());
    let fresh = tied(9);
    let error = train::load(&path, &fresh).unwrap_err();
    let expected = Mismatch::Tied { name: "embed".into(), other: "head".into() };
    assert_eq!(mismatches(&error), [expected]);
    assert_eq!(values(&fresh), values(&tied(9)));
}

#[test]
fn a_tied_variable_has_one_state_and_is_updated_once() {
    let (_dir, path) = place("a.safetensors");
    let variables = tied(1);
    let mut ours = optimizer(&variables);
    // candle's optimizer, given every variable once.
    let theirs_map = tied(1);
    let once: Vec<Var> = ["embed", "norm"].map(|name| get(&theirs_map, name)).into();
    let mut theirs = candle_nn::AdamW::new(once, ours.params().clone()).unwrap();
    for _ in 0..5 {
        step(&variables, &mut ours);
        step(&theirs_map, &mut theirs);
    }
    assert_eq!(values(&variables), values(&theirs_map));

    for options in [quick(), quick().tied(Tied::new())] {
        train::save(&path, (&variables, &ours), &options).unwrap();
        let fresh = tied(9);
        let mut resumed = optimizer(&fresh);
        train::load(&path, (&fresh, &mut resumed)).unwrap();
        assert_eq!((values(&fresh), state(&resumed)), (values(&variables), state(&ours)));
        step(&fresh, &mut resumed);
        let again = tied(1);
        let mut never_stopped = optimizer(&again);
        (0..6).for_each(|_| step(&again, &mut never_stopped));
        assert_eq!(values(&fresh), values(&again));
    }
}

#[test]
fn a_model_with_a_variable_named_like_the_state_of_another_is_refused() {
    let (_dir, path) = place("a.safetensors");
    let clash = map([("w", var(&[2], 1)), ("w.exp_avg", var(&[2], 2))]);
    let mut optimizer = optimizer(&clash);
    let mut saver = BackgroundSaver::new();
    for error in [
        train::save(&path, (&clash, &optimizer), &quick()).unwrap_err(),
        train::save_in_background(&mut saver, &path, (&clash, &optimizer), &quick()).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), safetensors_core::ErrorKind::DuplicateTensor), "{error}");
        assert_eq!(error.tensor(), Some("w.exp_avg"));
    }
    train::save(&path, &clash, &quick()).unwrap();
    let error = train::load(&path, (&clash, &mut optimizer)).unwrap_err();
    assert!(matches!(error.kind(), safetensors_core::ErrorKind::DuplicateTensor), "{error}");
}
