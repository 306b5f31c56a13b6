//! Checkpoints of burn's training loop, which survive a kill at any moment.
//!
//! burn's `SupervisedTraining` saves three records after each epoch: the model's, the optimizer's
//! and the learning rate scheduler's. burn's own checkpointers write three files, so a kill can
//! leave an epoch that has only one or two of them. Here an epoch is a directory, which appears
//! complete or not at all:
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
//! All of them are safetensors files, which every reader of the format opens. Tensors have names
//! that a person can read: `encoder.weight` in the model, and `encoder.weight.momentum.moment_1` in
//! the optimizer, where burn has the random id of the parameter instead of its path. The metadata
//! has the ids, and the numbers and booleans of the record, each with its type and all its bits.
//! The restored record is the same, bit for bit. [`CheckpointStore`](crate::CheckpointStore) and
//! other libraries load `model.safetensors` as any model.
//!
//! With the feature `delta`, `Epochs::whole_every` keeps each nth epoch complete. Another one has a
//! directory such as `model.delta` instead of a file, with its base in it. The checkpointers
//! restore it. Other readers refuse it, until `safetensors delta apply`, or `open_linked` and
//! `Chain::apply` of `safetensors-delta`, has made the file.
//!
//! # When the process is killed
//!
//! The three records are written into a hidden directory, at the same time. The checkpointer that
//! is last writes the manifest, waits until all of it is on the disk, and renames the directory. An
//! older epoch of that number is moved aside just before, and removed afterwards: in between, a
//! reader finds the epoch before. A killed process leaves the hidden directory, which the next save
//! removes. If it was killed in between, the next look at the epochs puts the new one in place.
//!
//! A resumed run repeats the steps after the newest complete epoch. It ends with the same bits if
//! the order of the data and the random numbers, for example of dropout, depend on the epoch alone.
//! The example `burn_train` of the repository shows how, and proves it with kills.
//!
//! The newest epoch is the one with the highest number. A run that goes back to an older epoch must
//! therefore delete the later ones first, with [`Epochs::delete_after`]. Otherwise a run that is
//! killed before it gets past them resumes the abandoned epochs.
//!
//! # When an epoch cannot be saved
//!
//! The epochs on the disk stay, and none is deleted until a later one is saved. [`KeepEpochs`] asks
//! again then. burn's own strategies ask once, so an epoch of theirs may stay for good. burn stops
//! the training, and its loop returns the error with the model. A panic of burn or of a device
//! while a record is saved is an error like others; it would otherwise end the thread of the
//! checkpointer, and with it the process.
//!
//! # While the training goes on
//!
//! burn's loop runs each checkpointer in a thread, also these: its `AsyncCheckpointer`. A record
//! shares the memory of the model until a step of the training changes the model. So a save takes
//! memory for one more copy of the state at most, and no time of the training, unless the next
//! epoch ends before it, or the strategy deletes an epoch: burn hands over that request only after
//! the save. Without the loop, `AsyncCheckpointer::new(model)` wraps one of these in a thread. It
//! cannot return an error: if a save fails, its thread panics.
//!
//! # To PyTorch and back
//!
//! [`load_pytorch_optimizer`] makes a record of the state of a PyTorch optimizer, and
//! [`save_pytorch_optimizer`] saves a record for PyTorch.
//!
//! # What this does not do
//!
//! Quantised tensors have no dtype in the format, so saving one is an error that names it. burn
//! restores at most 100,000 tensors of a record, 10 GiB of a tensor, and 100 MiB of names and
//! numbers, so saving more is an error. After every error the epochs on the disk are as before.
//!
//! [`Epochs::checkpointers`] compares the records with the module first, and [`Epochs::check`] does
//! so before the launch. They know neither the optimizer of the training, nor the shapes of the
//! state of an optimizer that is not burn's.

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

/// Which record of an epoch.
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
