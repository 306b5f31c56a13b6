//! Helpers of several tests.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};
use safetensors_candle::train::{self, AdamW};
use safetensors_core::error::Mismatch;
use safetensors_core::{Error, ErrorKind, SaveOptions, ShardOptions, TensorBuf, TensorView};

use crate::common::place;

pub(crate) use crate::common::bytes as bits;

/// Options of saves that need not survive a power cut.
pub(crate) fn quick() -> SaveOptions {
    SaveOptions::new().durable(false)
}

/// Returns options for shards of this many bytes.
pub(crate) fn shards(size: u64) -> ShardOptions {
    ShardOptions::new().max_shard_size(size.into()).save_options(quick())
}

/// A map of these variables.
pub(crate) fn map(variables: impl IntoIterator<Item = (&'static str, Var)>) -> VarMap {
    let map = VarMap::new();
    let variables = variables.into_iter().map(|(name, var)| (name.to_string(), var));
    map.data().lock().unwrap().extend(variables);
    map
}

/// An F32 variable with values that depend on `seed`.
pub(crate) fn var(shape: &[usize], seed: u32) -> Var {
    let values: Vec<f32> = (0..shape.iter().product::<usize>() as u32)
        .map(|i| {
            let bits = (i + 1).wrapping_mul(2_654_435_769) ^ (seed + 1).wrapping_mul(0x85eb_ca6b);
            bits.wrapping_mul(0xc2b2_ae35) as f32 / u32::MAX as f32 - 0.5
        })
        .collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A small model: two layers and a scale.
pub(crate) fn model(seed: u32) -> VarMap {
    map([
        ("a.weight", var(&[4, 3], seed)),
        ("a.bias", var(&[4], seed + 1)),
        ("b.weight", var(&[2, 4], seed + 2)),
        ("scale", var(&[], seed + 3)),
    ])
}

pub(crate) fn optimizer(map: &VarMap) -> AdamW {
    AdamW::from_var_map(map, ParamsAdamW { lr: 0.05, ..ParamsAdamW::default() }).unwrap()
}

/// A variable of a map.
pub(crate) fn get(map: &VarMap, name: &str) -> Var {
    map.data().lock().unwrap()[name].clone()
}

/// One step of the small model.
pub(crate) fn train(map: &VarMap, optimizer: &mut AdamW, step: u32) {
    let x = var(&[5, 3], 1000 + step);
    let hidden = x.matmul(&get(map, "a.weight").t().unwrap()).unwrap();
    let hidden = hidden.broadcast_add(&get(map, "a.bias")).unwrap().relu().unwrap();
    let out = hidden.matmul(&get(map, "b.weight").t().unwrap()).unwrap();
    let out = out.broadcast_mul(&get(map, "scale")).unwrap();
    let loss = (out - 1.0).unwrap().sqr().unwrap().mean_all().unwrap();
    optimizer.backward_step(&loss).unwrap();
}

/// Returns the bits of all variables.
pub(crate) fn values(map: &VarMap) -> BTreeMap<String, Vec<u8>> {
    let variables = map.data().lock().unwrap();
    variables.iter().map(|(name, var)| (name.clone(), bits(var))).collect()
}

/// Returns the bytes of the file that the state of an optimizer is saved as.
pub(crate) fn state(optimizer: &AdamW) -> Vec<u8> {
    let (_dir, path) = place("state.safetensors");
    train::save(&path, optimizer, &quick()).unwrap();
    std::fs::read(path).unwrap()
}

/// Saves buffers with core alone.
pub(crate) fn save_bufs(path: &Path, bufs: &[(&str, TensorBuf)], options: &SaveOptions) {
    safetensors_core::save(path, bufs.iter().map(|(name, buf)| (*name, buf)), options).unwrap();
}

/// Two F32 elements.
pub(crate) fn pair() -> TensorView<'static> {
    TensorView::from_slice(&[2], &[1.0_f32, 2.0]).unwrap()
}

/// Returns the differences that an error lists.
pub(crate) fn mismatches(error: &Error) -> &[Mismatch] {
    match error.kind() {
        ErrorKind::Mismatches { mismatches } => mismatches,
        _ => panic!("{error}"),
    }
}

pub(crate) fn missing(name: &str) -> Mismatch {
    Mismatch::Missing { name: name.into() }
}

pub(crate) fn extra(name: &str) -> Mismatch {
    Mismatch::Extra { name: name.into() }
}
