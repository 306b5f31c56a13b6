//! Saves modules to files and loads them.

mod adapting;
mod choosing;
mod failing;
mod ids;
mod memory;
mod migration;
mod naming;
mod prefix;
mod round_trip;
mod saving;

use std::path::Path;

use burn::module::{Initializer, Module, Param, ParamId, Parameter};
use burn::nn::{
    BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use safetensors_burn::{
    ApplyError, BurnToPyTorchAdapter, ChainAdapter, CheckpointStore, FloatCastAdapter,
    HalfPrecisionAdapter, IdentityAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    ModuleStore, PathFilter, PyTorchToBurnAdapter, StoreError, bridge, burn_pack, load, save,
};
use safetensors_core::header::Metadata;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LoadOptions, SaveOptions, TensorView, Widening,
};
use tempfile::TempDir;

use super::{data_of, dir, place, source, state};

#[derive(Module, Debug)]
struct Model {
    encoder: Linear,
    layers: Vec<Linear>,
    norm: LayerNorm,
    batch: BatchNorm,
    steps: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
}

fn initialized<T: Parameter>(value: T) -> Param<T> {
    Param::initialized(ParamId::new(), value)
}

impl Model {
    /// A model of random weights. Its steps and its mask depend on the seed.
    fn new(seed: i64) -> Self {
        let device = Device::default();
        Self {
            encoder: LinearConfig::new(3, 4).init(&device),
            layers: (0..2)
                .map(|_| LinearConfig::new(4, 4).with_bias(false).init(&device))
                .collect(),
            norm: LayerNormConfig::new(4).init(&device),
            batch: BatchNormConfig::new(4).init(&device),
            steps: initialized(Tensor::from_data(
                TensorData::from([seed, seed + 1]),
                (&device, DType::I64),
            )),
            mask: initialized(Tensor::from_data(
                TensorData::from([[seed % 2 == 0, true]]),
                &device,
            )),
        }
    }
}

const PATHS: [&str; 12] = [
    "batch.beta",
    "batch.gamma",
    "batch.running_mean",
    "batch.running_var",
    "encoder.bias",
    "encoder.weight",
    "layers.0.weight",
    "layers.1.weight",
    "mask",
    "norm.beta",
    "norm.gamma",
    "steps",
];

fn saved(dir: &TempDir, module: &impl Module) -> CheckpointStore {
    let path = dir.path().join("model.safetensors");
    module.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    CheckpointStore::from_file(path)
}

/// Loads into a fresh model. Expects an error and an unchanged model.
fn refused(store: &mut CheckpointStore) -> Error {
    let mut model = Model::new(11);
    let before = state(&model);
    let error = model.load_from(store).unwrap_err();
    assert_eq!(before, state(&model));
    error
}

/// Writes a file of a model's tensors, with one replaced, removed or added.
fn changed(path: &Path, name: &str, data: Option<TensorData>) {
    let mut tensors = state(&Model::new(5));
    tensors.retain(|(other, _)| other != name);
    tensors.extend(data.map(|data| (name.to_owned(), data)));
    save(path, tensors.iter().map(|(name, data)| (name, data)), &SaveOptions::new()).unwrap();
}
