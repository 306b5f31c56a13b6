//! Checkpoints of burn's training loop.

mod damaged;
mod deleting;
#[cfg(feature = "delta")]
mod deltas;
mod epochs;
mod failing;
mod foreign;
mod interop;
mod interrupted;
mod long;
mod looping;
mod records;
mod reloaded;
mod resuming;
mod retrying;
mod staging;
mod taken;

use std::fs;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError};
use safetensors_burn::burn_pack::{Reader, Scalar, Tensor as PackTensor, Writer};
use safetensors_burn::train::{EpochError, Epochs, SafetensorsCheckpointer};
use safetensors_core::{Error, ErrorKind};
use safetensors_testing::files::names_in;
use tempfile::{TempDir, tempdir};

use crate::place;

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    layers: Vec<Linear>,
}

impl Model {
    /// A model of random weights.
    fn new() -> Self {
        let device = Device::default().autodiff();
        Self {
            first: LinearConfig::new(3, 4).init(&device),
            layers: vec![LinearConfig::new(4, 1).with_bias(false).init(&device)],
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.layers[0].forward(self.first.forward(input).tanh())
    }

    /// Returns the bits of all weights.
    fn bits(&self) -> Vec<u8> {
        let weights = [&self.first.weight, &self.layers[0].weight].map(|weight| weight.to_data());
        let bias = self.first.bias.as_ref().unwrap().to_data();
        weights.iter().chain([&bias]).flat_map(|data| data.as_bytes().to_vec()).collect()
    }
}

/// All that the next step depends on.
#[derive(Clone)]
struct Training<M = Model> {
    model: M,
    optimizer: ModuleOptimizer,
    scheduler: ModuleLrScheduler,
}

impl<M: Module> Training<M> {
    fn from_model(model: M) -> Self {
        let schedule = CosineAnnealingLrSchedulerConfig::new(0.1, 50);
        Self { model, optimizer: AdamWConfig::new().init(), scheduler: schedule.init().unwrap() }
    }

    /// A step from the output of the model.
    fn step(&mut self, output: Tensor<2>) {
        let grads = (output - 0.7).powi_scalar(2).mean().backward();
        let grads = GradientsParams::from_grads(grads, &self.model);
        self.model = self.optimizer.step(self.scheduler.step(), self.model.clone(), grads);
    }

    fn save(&self, (model, optimizer, scheduler): &Checkpointers, epoch: usize) {
        model.save(epoch, self.model.clone().into_record()).unwrap();
        optimizer.save(epoch, self.optimizer.to_record()).unwrap();
        scheduler.save(epoch, self.scheduler.to_record()).unwrap();
    }

    fn contents(&self) -> [Content; 3] {
        [
            content(self.model.clone().into_record()),
            content(self.optimizer.to_record()),
            content(self.scheduler.to_record()),
        ]
    }

    /// Loads an epoch.
    fn restore(self, (model, optimizer, scheduler): &Checkpointers, epoch: usize) -> Self {
        Self {
            model: self.model.load_record(model.restore(epoch).unwrap()),
            optimizer: self.optimizer.load_record(optimizer.restore(epoch).unwrap()),
            scheduler: self.scheduler.load_record(scheduler.restore(epoch).unwrap()),
        }
    }
}

impl Training {
    fn new() -> Self {
        Self::from_model(Model::new())
    }

    /// A training that has made some steps.
    fn trained(steps: usize) -> Self {
        let mut training = Self::new();
        training.steps(steps);
        training
    }

    fn steps(&mut self, steps: usize) {
        let input = TensorData::from([[1.0_f32, 2.0, 3.0], [-1.0, 0.5, 0.25]]);
        let input = Tensor::from_data(input, &Device::default().autodiff());
        (0..steps).for_each(|_| self.step(self.model.forward(input.clone())));
    }

    /// Loads an epoch into a new model.
    fn restored(checkpointers: &Checkpointers, epoch: usize) -> Self {
        Self::new().restore(checkpointers, epoch)
    }
}

/// The checkpointers of model, optimizer and scheduler.
pub(crate) type Checkpointers = (
    SafetensorsCheckpointer<ModuleRecord>,
    SafetensorsCheckpointer<OptimizerRecord>,
    SafetensorsCheckpointer<LrSchedulerRecord>,
);

/// Saves these records as an epoch, with a scheduler that has no state.
fn save_records(
    (model, optimizer, scheduler): &Checkpointers,
    epoch: usize,
    module: impl Module,
    state: OptimizerRecord,
) {
    model.save(epoch, module.into_record()).unwrap();
    optimizer.save(epoch, state).unwrap();
    scheduler.save(epoch, LrSchedulerRecord::new()).unwrap();
}

/// Saves this record as the model of epoch 1, next to records without a state.
fn save_model((model, optimizer, scheduler): &Checkpointers, record: ModuleRecord) {
    model.save(1, record).unwrap();
    optimizer.save(1, OptimizerRecord::default()).unwrap();
    scheduler.save(1, LrSchedulerRecord::new()).unwrap();
}

fn restored((model, optimizer, scheduler): &Checkpointers, epoch: usize) -> [Content; 3] {
    [
        content(model.restore(epoch).unwrap()),
        content(optimizer.restore(epoch).unwrap()),
        content(scheduler.restore(epoch).unwrap()),
    ]
}

/// All three checkpointers must ask, as burn lets them.
fn delete(
    (model, optimizer, scheduler): &Checkpointers,
    epoch: usize,
) -> Result<(), CheckpointerError> {
    model.delete(epoch)?;
    optimizer.delete(epoch)?;
    scheduler.delete(epoch)
}

fn numbers(epochs: &Epochs) -> Vec<usize> {
    epochs.list().unwrap().iter().map(|epoch| epoch.number()).collect()
}

/// A tensor of two floats.
fn pack(name: &str, id: Option<u64>) -> PackTensor {
    PackTensor::new(name.into(), DType::F32, [2], id, Bytes::from_elems(vec![1.0_f32, 2.0]))
}

fn optimizer_record(bytes: &Bytes) -> OptimizerRecord {
    OptimizerRecord::from_bytes(bytes.clone()).unwrap()
}

/// A directory without epochs.
fn empty() -> (TempDir, Epochs) {
    let dir = tempdir().unwrap();
    let epochs = Epochs::new(dir.path().join("run/checkpoints"));
    (dir, epochs)
}

/// A directory with one epoch.
fn saved(epoch: usize) -> (TempDir, Epochs) {
    let (dir, epochs) = empty();
    Training::trained(2).save(&epochs.checkpointers_without_module(), epoch);
    (dir, epochs)
}

/// Epochs from 1 on, of a training that does not change.
fn saved_to(last: usize) -> (TempDir, Epochs, Training) {
    let (dir, epochs) = empty();
    let training = Training::trained(1);
    let checkpointers = epochs.checkpointers_without_module();
    (1..=last).for_each(|epoch| training.save(&checkpointers, epoch));
    (dir, epochs, training)
}

/// Returns the files of an epoch, by name.
fn files(epochs: &Epochs, epoch: usize) -> Vec<(String, Vec<u8>)> {
    let names = names_in(&epochs.path(epoch)).into_iter();
    names.map(|name| (name.clone(), fs::read(epochs.path(epoch).join(&name)).unwrap())).collect()
}

/// Returns the error of this crate in burn's.
fn unwrap_error<T>(result: Result<T, CheckpointerError>) -> Error {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(CheckpointerError::IOError(error)) => *error.into_inner().unwrap().downcast().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

/// Returns the reason of an error of this module.
fn reason(error: &Error) -> &EpochError {
    std::error::Error::source(error).unwrap().downcast_ref().unwrap()
}

/// The content of a record, in burn's own form: tensors, scalars, texts.
type Content = (Vec<TensorContent>, Vec<(String, String)>, Vec<(String, String)>);

/// Name, dtype, shape, id and bytes.
type TensorContent = (String, String, Vec<usize>, Option<u64>, Vec<u8>);

fn content(record: impl Checkpoint) -> Content {
    let reader = Reader::from_bytes(record.checkpoint_into_bytes().unwrap()).unwrap();
    // Floats are compared by their bits.
    let scalars = reader.scalars().iter().map(|(name, scalar)| match scalar {
        Scalar::Float(float) => (name.clone(), format!("{:016x}", float.to_bits())),
        other => (name.clone(), format!("{other:?}")),
    });
    let scalars = scalars.collect();
    let texts = reader.metadata().clone().into_iter().collect();
    let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().unwrap();
        (name, format!("{dtype:?}"), shape.to_vec(), id, bytes.to_vec())
    });
    (tensors.collect(), scalars, texts)
}
