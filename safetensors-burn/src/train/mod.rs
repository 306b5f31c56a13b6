//! Checkpoints of burn's training loop, which survive a kill at any moment.
//!
//! burn's `SupervisedTraining` saves three records after each epoch: model, optimizer and learning
//! rate scheduler. burn's own checkpointers write three files, so a kill can leave only one or two
//! of them. Here an epoch is a directory, which appears complete or not at all:
//!
//! ```text
//! checkpoints/epoch-12/model.safetensors
//!                      optimizer.safetensors
//!                      scheduler.safetensors
//!                      manifest.json
//! ```
//!
//! ```no_run
//! use burn::train::{Learner, LearnerModel, SupervisedTraining};
//! use safetensors_burn::train::Epochs;
//!
//! # fn train<M: LearnerModel>(
//! #     training: SupervisedTraining<M>,
//! #     learner: Learner<M>,
//! # ) -> safetensors_core::Result<()> {
//! let epochs = Epochs::new("run/checkpoints");
//! let (model, optimizer, scheduler) = epochs.checkpointers(&learner.model());
//! let mut training = training
//!     .with_custom_checkpointers(model, optimizer, scheduler)
//!     .with_checkpointing_strategy(epochs.keep_last(2));
//! if let Some(newest) = epochs.newest()? {
//!     epochs.check(newest, &learner.model())?;
//!     training = training.checkpoint(newest);
//! }
//! training.launch(learner);
//! # Ok(())
//! # }
//! ```
//!
//! The checkpointers can also be used without burn's loop:
//!
//! ```
//! use burn::lr_scheduler::LrSchedulerRecord;
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::optim::AdamWConfig;
//! use burn::tensor::Device;
//! use burn::train::checkpoint::Checkpointer;
//! use safetensors_burn::train::Epochs;
//!
//! let dir = tempfile::tempdir()?;
//! let epochs = Epochs::new(dir.path().join("checkpoints"));
//! let device = Device::default();
//! let linear = LinearConfig::new(4, 2).init(&device);
//! let (model, optimizer, scheduler) = epochs.checkpointers(&linear);
//!
//! model.save(1, linear.clone().into_record())?;
//! optimizer.save(1, AdamWConfig::new().init().to_record())?;
//! assert_eq!(epochs.newest()?, None, "the epoch is not complete");
//! scheduler.save(1, LrSchedulerRecord::new())?;
//! assert_eq!(epochs.newest()?, Some(1));
//!
//! let fresh = LinearConfig::new(4, 2).init(&device).load_record(model.restore(1)?);
//! assert_eq!(fresh.weight.to_data(), linear.weight.to_data());
//! assert_eq!(fresh.weight.id, linear.weight.id);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The files
//!
//! Tensors have readable names: `encoder.weight` in the model, and in the optimizer, where burn has
//! the random id of the parameter, `encoder.weight.momentum.moment_1`. The metadata has the ids,
//! numbers and booleans. The restored record is the same, bit for bit.
//! [`CheckpointStore`](crate::CheckpointStore) and other libraries load `model.safetensors`.
//!
//! With the feature `delta`, `Epochs::whole_every` keeps only each nth epoch complete.
//!
//! # When the process is killed
//!
//! The records are written into a hidden directory. The last checkpointer writes the manifest,
//! waits until all of it is on the disk, renames the directory, and removes an older epoch of that
//! number. The next save or look at the epochs repairs or removes leftovers.
//!
//! A resumed run repeats the steps after the newest complete epoch. It ends with the same bits if
//! the order of the data and the random numbers depend on the epoch alone, as in the example
//! `burn_train` of the repository.
//!
//! The newest epoch has the highest number. A run that goes back to an older epoch must first call
//! [`Epochs::delete_after`].
//!
//! # When an epoch cannot be saved
//!
//! burn's loop stops and returns the error with the model. The epochs on the disk stay until a
//! later one is saved. [`KeepEpochs`] deletes old ones then; burn's own strategies ask once, so an
//! epoch of theirs may stay for good.
//!
//! # While the training goes on
//!
//! burn's loop runs each checkpointer in a thread (`AsyncCheckpointer`). A record shares the memory
//! of the model until a training step changes the model, so a save takes at most one more copy of
//! the state. Training waits only if the next epoch ends before the save, or if the strategy
//! deletes an epoch. Without the loop, `AsyncCheckpointer::new(model)` makes such a thread, which
//! panics if a save fails.
//!
//! # To PyTorch and back
//!
//! [`load_pytorch_optimizer`] makes a record of the state of a PyTorch optimizer, and
//! [`save_pytorch_optimizer`] saves a record for PyTorch.
//!
//! # Limits
//!
//! It is an error to save a quantised tensor, which has no dtype in the format, or more than burn
//! restores: 100,000 tensors of a record, 10 GiB of a tensor, 100 MiB of names and numbers.

mod attempts;
mod checkpointer;
mod codec;
mod container;
mod deltas;
mod epoch;
mod epochs;
mod error;
mod linked;
mod manifest;
mod module;
mod names;
mod pytorch;
mod reading;
mod record;
mod shared;
mod staging;
mod state;
mod states;
mod strategy;
mod taker;
mod unpacked;

pub use checkpointer::SafetensorsCheckpointer;
pub use epoch::Epoch;
pub use epochs::Epochs;
pub use error::EpochError;
pub use pytorch::{load_pytorch_optimizer, save_pytorch_optimizer};
pub use strategy::KeepEpochs;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RecordKind {
    Model,
    Optimizer,
    Scheduler,
}

impl RecordKind {
    const ALL: [Self; 3] = [Self::Model, Self::Optimizer, Self::Scheduler];

    fn file_name(self) -> &'static str {
        match self {
            Self::Model => "model.safetensors",
            Self::Optimizer => "optimizer.safetensors",
            Self::Scheduler => "scheduler.safetensors",
        }
    }
}
