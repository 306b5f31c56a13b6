//! [`SafetensorsCheckpointer`]: burn's `Checkpointer` for one of the three records of an epoch.

use std::io;
use std::sync::Arc;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError};
use safetensors_core::{Error, ErrorKind, Result};

use super::Epochs;
use super::RecordKind;
use super::codec::{Codec, ModuleCodec, OptimizerCodec, PlainCodec};
use super::deltas::WholeFiles;
use super::module::Parameters;
use super::record::{self, RecordFile};
use super::shared::Shared;
use super::state::new_ids;

/// Saves and restores one record of each epoch: the model's, the optimizer's or the scheduler's.
/// [`Epochs::checkpointers`](super::Epochs::checkpointers) makes all three, which work together.
///
/// - `save` puts the epoch in place with the last of the three records. If one fails, the others
///   give an error: save all of them again, in the same order.
/// - `delete` deletes the epoch when all three have asked for it. The newest complete epoch, and
///   the one that was saved or restored last, stay until another one is saved. A deletion that
///   fails is tried again after each save; the next `delete` returns the reason.
/// - `restore` checks the lengths and headers of all files of the epoch, and the digest of each
///   tensor that it reads. All records must be of the same save.
///
/// # Errors
///
/// burn's error type has the error of this crate in it:
///
/// ```
/// use burn::train::checkpoint::{Checkpointer, CheckpointerError};
/// use safetensors_burn::train::Epochs;
///
/// let dir = tempfile::tempdir()?;
/// let (model, _, _) = Epochs::new(dir.path().join("checkpoints")).checkpointers_without_module();
/// let Err(CheckpointerError::IOError(error)) = model.restore(7) else { panic!() };
/// let error: safetensors_core::Error = error.downcast()?;
/// assert!(error.to_string().contains("epoch-7: burn: there is no such epoch"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SafetensorsCheckpointer<R> {
    shared: Arc<Shared>,
    part: RecordKind,
    module: Option<Arc<Parameters>>,
    codec: Box<dyn Codec<R>>,
}

impl<R> SafetensorsCheckpointer<R> {
    pub(super) fn new(
        shared: &Arc<Shared>,
        part: RecordKind,
        module: Option<&Arc<Parameters>>,
        codec: impl Codec<R> + 'static,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            part,
            module: module.map(Arc::clone),
            codec: Box::new(codec),
        }
    }
}

impl<R: Checkpoint> SafetensorsCheckpointer<R> {
    fn try_restore(&self, epoch: usize) -> Result<R> {
        let path = self.shared.epochs().path(epoch).join(self.part.file_name());
        self.codec.read(self.open(epoch)?).map_err(|error| error.in_path(path))
    }

    /// Compares the records of the epoch with the module.
    fn open(&self, epoch: usize) -> Result<RecordFile> {
        let (manifest, made) = self.shared.restore(epoch, self.part)?;
        let directory = self.shared.epochs().path(epoch);
        let path = |part: RecordKind| directory.join(part.file_name());
        // All files are opened before one is read. If the epoch is replaced in between, the records
        // still belong to one epoch.
        let mut files = manifest.open(&directory, made.as_deref().map(WholeFiles::files))?;
        let mut open = |part: RecordKind| match files.remove(part.file_name()) {
            Some(file) => RecordFile::new(file, &path(part)),
            None => Err(manifest.no_record(part).in_path(&directory)),
        };
        match &self.module {
            None => open(self.part),
            Some(module) => {
                // The records are compared before the first one is returned.
                let mut model = open(RecordKind::Model)?;
                let mut optimizer = open(RecordKind::Optimizer)?;
                module.check(&model).map_err(|error| error.in_path(path(RecordKind::Model)))?;
                // The state of the optimizer belongs to the ids of this module's parameters.
                optimizer.new_ids = new_ids(module, &model.content(), &optimizer.content())
                    .map_err(|error| error.in_path(path(RecordKind::Optimizer)))?;
                module.adapt_model(&mut model);
                match self.part {
                    RecordKind::Model => Ok(model),
                    RecordKind::Optimizer => Ok(optimizer),
                    // Opened last, but the other two were compared: burn restores one record after
                    // another, and must not begin with an epoch that does not fit.
                    RecordKind::Scheduler => open(RecordKind::Scheduler),
                }
            }
        }
    }
}

impl<R: Checkpoint> Checkpointer<R> for SafetensorsCheckpointer<R> {
    fn save(&self, epoch: usize, record: R) -> Result<(), CheckpointerError> {
        let saved = self.shared.save(epoch, self.part, |directory| {
            let file = directory.join(self.part.file_name());
            let staging = self.shared.epochs().staging_directory();
            record::save(self.codec.unpack(record, staging)?, &file)
        });
        saved.map_err(for_burn)
    }

    fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
        self.shared.delete(epoch, self.part).map_err(for_burn)
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        self.try_restore(epoch).map_err(for_burn)
    }
}

pub(super) type Checkpointers = (
    SafetensorsCheckpointer<ModuleRecord>,
    SafetensorsCheckpointer<OptimizerRecord>,
    SafetensorsCheckpointer<LrSchedulerRecord>,
);

impl Epochs {
    /// Makes the checkpointers of this module, in the order of burn's `with_custom_checkpointers`:
    /// model, optimizer, scheduler.
    ///
    /// Restored records get the ids of this module's parameters, so the optimizer finds its state,
    /// even if the weights come from elsewhere. They must fit the module:
    ///
    /// - The model must have its names and shapes, and the dtypes in which it is saved. A parameter
    ///   without a value has the default dtype of its device.
    /// - If there are states, one of them must belong to a parameter of the model: otherwise the
    ///   error is [`NoStateInUse`](super::EpochError::NoStateInUse).
    /// - The tensors of burn's optimizers must have the shape and the dtype of their parameter, or
    ///   F32 for a parameter of half precision.
    ///
    /// A parameter that gets another id during a training, for example by loading weights, loses
    /// its state in burn's optimizer. That state is not restored.
    ///
    /// # Errors
    ///
    /// Restoring any record fails with [`ErrorKind::Mismatches`], with all differences, if the
    /// epoch belongs to another model. burn's loop panics with that error: [`check`](Epochs::check)
    /// returns it before the launch.
    pub fn checkpointers(&self, module: &impl Module) -> Checkpointers {
        self.make_checkpointers(Some(&Arc::new(Parameters::new(module))))
    }

    /// Makes checkpointers that know no module, for example to restore burn's own ids of
    /// parameters. Each save copies the model once more, and burn panics if the record of another
    /// model is loaded.
    pub fn checkpointers_without_module(&self) -> Checkpointers {
        self.make_checkpointers(None)
    }

    /// Checks by the headers that an epoch can be restored for this module. Call it before a launch
    /// that resumes this epoch, because burn would panic. [`verify`](Epochs::verify) compares the
    /// data.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::Device;
    /// use safetensors_burn::train::Epochs;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let epochs = Epochs::new(dir.path().join("checkpoints"));
    /// let net = LinearConfig::new(4, 2).init(&Device::default());
    /// let error = epochs.check(3, &net).unwrap_err();
    /// assert!(error.to_string().contains("there is no such epoch"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`] with all differences from the module.
    pub fn check(&self, epoch: usize, module: &impl Module) -> Result<()> {
        self.checkpointers(module).0.open(epoch).map(drop)
    }

    fn make_checkpointers(&self, module: Option<&Arc<Parameters>>) -> Checkpointers {
        let shared = Arc::new(Shared::new(self.clone()));
        let model = ModuleCodec::new(module.map(Arc::as_ref));
        let optimizer = OptimizerCodec::default();
        (
            SafetensorsCheckpointer::new(&shared, RecordKind::Model, module, model),
            SafetensorsCheckpointer::new(&shared, RecordKind::Optimizer, module, optimizer),
            SafetensorsCheckpointer::new(&shared, RecordKind::Scheduler, module, PlainCodec),
        )
    }
}

/// Wraps the error: burn's type holds other errors only within the system's error type.
fn for_burn(error: Error) -> CheckpointerError {
    let kind = match error.kind() {
        ErrorKind::Io(error) => error.kind(),
        _ => io::ErrorKind::Other,
    };
    CheckpointerError::IOError(io::Error::new(kind, error))
}
