//! Writes the records of burn that `safetensors-formats` is tested with.
//!
//! ```text
//! cargo run --manifest-path dev/scripts/burn_records/Cargo.toml -- extras/formats/tests/fixtures/burn
//! ```

use std::path::PathBuf;

use burn::backend::NdArray;
use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::record::{FullPrecisionSettings, HalfPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::TensorData;

type B = NdArray<f32>;

#[derive(Module, Debug)]
enum Head<B: Backend> {
    Linear(Linear<B>),
    #[allow(dead_code, reason = "an enum has several variants")]
    Deep(Vec<Linear<B>>),
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    encoder: Linear<B>,
    layers: Vec<Linear<B>>,
    norm: BatchNorm<B, 0>,
    head: Head<B>,
    none: Option<Linear<B>>,
    steps: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 2, Bool>>,
    empty: Param<Tensor<B, 2>>,
    rate: f64,
}

/// Returns the numbers from `first` on, in steps of a quarter.
fn numbers<const D: usize>(first: f32, shape: [usize; D]) -> Tensor<B, D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| first + i as f32 / 4.0).collect();
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

fn linear(first: f32, [inputs, outputs]: [usize; 2], bias: bool, id: u64) -> Linear<B> {
    let mut linear = LinearConfig::new(inputs, outputs).with_bias(bias).init(&Default::default());
    linear.weight = Param::initialized(ParamId::from(id), numbers(first, [inputs, outputs]));
    linear.bias = bias.then(|| {
        Param::initialized(ParamId::from(id + 1), numbers(-first, [outputs]))
    });
    linear
}

fn main() {
    let directory = PathBuf::from(std::env::args().nth(1).expect("a directory"));
    let device = Default::default();
    let steps = Tensor::from_data(TensorData::from([7_i64, -1, 1000]), &device);
    let mask = Tensor::from_data(TensorData::from([[true, false, true]]), &device);
    let model = Model {
        encoder: linear(1.0, [2, 3], true, 10),
        layers: vec![linear(20.0, [3, 3], false, 20), linear(30.0, [3, 1], true, 30)],
        norm: BatchNormConfig::new(3).init(&device),
        head: Head::Linear(linear(40.0, [1, 2], false, u64::MAX)),
        none: None,
        steps: Param::initialized(ParamId::from(50), steps),
        mask: Param::initialized(ParamId::from(60), mask),
        empty: Param::initialized(ParamId::from(70), numbers(0.0, [0, 3])),
        rate: 0.5,
    };
    let full = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    model.clone().save_file(directory.join("full"), &full).unwrap();
    let half = NamedMpkFileRecorder::<HalfPrecisionSettings>::new();
    model.save_file(directory.join("half"), &half).unwrap();
}
