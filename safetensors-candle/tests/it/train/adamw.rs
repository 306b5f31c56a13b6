//! Every step equals candle's own optimizer, bit for bit.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};
use safetensors_candle::train::{self, AdamW};
use safetensors_core::{Error, ErrorKind};

use super::support::{bits, get, map, quick, values, var};

use crate::common::place;

/// Returns variables of a dtype; one gets a gradient only in every third step, one never, and one
/// has integers.
fn variables(dtype: DType) -> VarMap {
    let of = |shape: &[usize], seed| {
        Var::from_tensor(&var(shape, seed).to_dtype(dtype).unwrap()).unwrap()
    };
    map([
        ("a", of(&[4, 3], 1)),
        ("b", of(&[3], 2)),
        ("ids", Var::zeros(3, DType::U32, &Device::Cpu).unwrap()),
        ("never", of(&[2], 3)),
        ("scalar", of(&[], 4)),
        ("sometimes", of(&[3], 5)),
    ])
}

fn loss(map: &VarMap, step: u32) -> Tensor {
    let dtype = get(map, "a").dtype();
    let x = var(&[4, 3], 100 + step).to_dtype(dtype).unwrap();
    let mut y = (x * get(map, "a").as_tensor()).unwrap();
    y = y.broadcast_add(&get(map, "b")).unwrap().broadcast_mul(&get(map, "scalar")).unwrap();
    if step.is_multiple_of(3) {
        y = y.broadcast_sub(&get(map, "sometimes")).unwrap();
    }
    y.sqr().unwrap().sum_all().unwrap()
}

fn compare(dtype: DType, params: &ParamsAdamW) {
    let (ours_map, theirs_map) = (variables(dtype), variables(dtype));
    let mut ours = AdamW::from_var_map(&ours_map, params.clone()).unwrap();
    let mut theirs = candle_nn::AdamW::new(theirs_map.all_vars(), params.clone()).unwrap();
    let (_dir, path) = place("state.safetensors");
    let begin = values(&ours_map);
    for step in 0..100 {
        if step == 40 {
            ours.set_learning_rate(params.lr * 0.3);
            theirs.set_learning_rate(params.lr * 0.3);
        }
        if step == 60 {
            // An optimizer that was never used goes on with the saved state.
            train::save(&path, &ours, &quick()).unwrap();
            ours = AdamW::from_var_map(&ours_map, ParamsAdamW::default()).unwrap();
            train::load(&path, &mut ours).unwrap();
        }
        ours.backward_step(&loss(&ours_map, step)).unwrap();
        theirs.backward_step(&loss(&theirs_map, step)).unwrap();
        let (ours, theirs) = (values(&ours_map), values(&theirs_map));
        assert!(ours == theirs, "{dtype:?} {params:?}: step {step} differs");
    }
    assert_eq!((ours.step_count(), ours.learning_rate()), (100, theirs.learning_rate()));
    let end = values(&ours_map);
    let changed: Vec<_> = end.keys().filter(|&name| begin[name] != end[name]).collect();
    assert_eq!(changed, ["a", "b", "scalar", "sometimes"]);
}

#[test]
fn a_hundred_steps_give_the_bits_of_candles_optimizer() {
    let decayed = ParamsAdamW { lr: 0.02, weight_decay: 0.3, ..ParamsAdamW::default() };
    let plain = ParamsAdamW { lr: 0.05, beta1: 0.8, weight_decay: 0.0, ..decayed.clone() };
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        compare(dtype, &decayed);
        compare(dtype, &plain);
    }
}

#[test]
fn infinite_and_nan_gradients_give_the_same_bits() {
    for value in [f32::INFINITY, f32::NAN, -f32::NAN, 1e38] {
        let of = || map([("w", Var::new(&[value, 1.0], &Device::Cpu).unwrap())]);
        let (ours_map, theirs_map) = (of(), of());
        let mut ours = AdamW::from_var_map(&ours_map, ParamsAdamW::default()).unwrap();
        let params = ParamsAdamW::default();
        let mut theirs = candle_nn::AdamW::new(theirs_map.all_vars(), params).unwrap();
        for _ in 0..3 {
            let loss = |map: &VarMap| get(map, "w").sqr().unwrap().sum_all().unwrap();
            ours.backward_step(&loss(&ours_map)).unwrap();
            theirs.backward_step(&loss(&theirs_map)).unwrap();
        }
        assert_eq!(values(&ours_map), values(&theirs_map));
    }
}

/// candle's own optimizer fails here.
#[test]
fn a_variable_without_elements_is_left_alone() {
    let variables = map([("empty", var(&[0, 2], 1)), ("w", var(&[2], 2))]);
    let mut optimizer = AdamW::from_var_map(&variables, ParamsAdamW::default()).unwrap();
    let before = values(&variables);
    for _ in 0..3 {
        let loss = get(&variables, "empty").sum_all().unwrap();
        let loss = (loss + get(&variables, "w").sum_all().unwrap()).unwrap();
        optimizer.backward_step(&loss).unwrap();
    }
    assert_eq!(values(&variables)["empty"], before["empty"]);
    assert_ne!(values(&variables)["w"], before["w"]);
}

#[test]
fn pairs_of_names_and_variables() {
    let (a, b) = (var(&[2], 1), var(&[2], 2));
    let params = ParamsAdamW::default;
    let pairs = [("b", b.clone()), ("a", a.clone()), ("b", b.clone())];
    let (_dir, path) = place("a.safetensors");
    train::save(&path, &AdamW::from_named(pairs, params()).unwrap(), &quick()).unwrap();
    let saved = safetensors_core::Checkpoint::open(&path).unwrap();
    let mut names: Vec<_> = saved.tensors().map(|tensor| tensor.name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.exp_avg", "a.exp_avg_sq", "b.exp_avg", "b.exp_avg_sq"]);
    let error = AdamW::from_named([("a", a), ("a", b)], params()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!(error.tensor(), Some("a"));
}

#[test]
fn an_optimizer_without_names_trains_but_is_not_saved() {
    let weight = var(&[2], 1);
    let mut nameless = AdamW::new(vec![weight.clone()], ParamsAdamW::default()).unwrap();
    let before = bits(&weight);
    nameless.backward_step(&weight.sqr().unwrap().sum_all().unwrap()).unwrap();
    assert_ne!(bits(&weight), before);
    assert_eq!(nameless.step_count(), 1);

    let (dir, path) = place("a.safetensors");
    let refused = |error: Error| {
        assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
        assert!(error.to_string().contains("AdamW::from_var_map"), "{error}");
    };
    refused(train::save(&path, &nameless, &quick()).unwrap_err());
    refused(train::save_sharded(dir.path(), &nameless, &Default::default()).unwrap_err());
    assert!(!path.exists());
    let named = AdamW::from_named([("w", weight)], ParamsAdamW::default()).unwrap();
    train::save(&path, &named, &quick()).unwrap();
    refused(train::load(&path, &mut nameless).unwrap_err());
    assert_eq!(nameless.step_count(), 1);
}
