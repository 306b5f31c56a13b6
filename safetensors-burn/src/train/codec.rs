//! [`Codec`]: how the records of model, optimizer and scheduler are unpacked and made.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::checkpoint::Checkpoint as Record;
use safetensors_core::Result;
use safetensors_core::lock;

use super::container::Content;
use super::module::Parameters;
use super::record::RecordFile;
use super::shapes::{Shapes, lends_memory};
use super::states::{StateNames, summary};
use super::unpacked::Unpacked;

/// Unpacks the records of one kind, and makes them of files.
pub(super) trait Codec<R>: Debug + Send + Sync {
    /// Unpacks a record. If burn copies its tensors, a file in `staging` has the copy.
    fn unpack(&self, record: R, staging: Option<&Path>) -> Result<Unpacked>;

    /// Reads a record.
    fn read(&self, file: RecordFile) -> Result<R>;
}

/// Records of few bytes: those of the scheduler.
#[derive(Debug)]
pub(super) struct PlainCodec;

impl<R: Record> Codec<R> for PlainCodec {
    fn unpack(&self, record: R, staging: Option<&Path>) -> Result<Unpacked> {
        Unpacked::of(record, staging)
    }

    fn read(&self, file: RecordFile) -> Result<R> {
        Ok(file.read()?.0)
    }
}

/// What is known of the last record, by which burn is asked for the tensors of the next one. A
/// record of which nothing is known goes through burn's bytes.
#[derive(Debug)]
struct LastRecord<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for LastRecord<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> LastRecord<T> {
    fn learn(&self, known: Option<T>) {
        *lock(&self.0) = known.map(Arc::new);
    }

    /// Takes what is known, if it may fit a record. It is learned again when the record is
    /// unpacked, so that it is forgotten if burn panics or does not give all. The next record is
    /// then copied.
    fn take(&self, may_fit: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        lock(&self.0).take().filter(|known| may_fit(known))
    }
}

/// Records of a module.
#[derive(Debug)]
pub(super) struct ModuleCodec {
    /// The module's device, if it is known and its tensors can be taken without a copy.
    device: Option<Device>,
    known: LastRecord<Shapes>,
}

impl ModuleCodec {
    /// The first record has the parameters of the module, if that is known.
    pub(super) fn new(module: Option<&Parameters>) -> Self {
        let device = module.and_then(Parameters::device);
        let device = device.filter(|device| lends_memory(device)).cloned();
        let known = LastRecord::default();
        if let (Some(module), Some(device)) = (module, &device) {
            known.learn(module.shapes(device));
        }
        Self { device, known }
    }

    fn learn(&self, content: &Content) {
        let device = self.device.as_ref();
        self.known.learn(device.and_then(|device| Shapes::of(content, device)));
    }
}

impl Codec<ModuleRecord> for ModuleCodec {
    fn unpack(&self, record: ModuleRecord, staging: Option<&Path>) -> Result<Unpacked> {
        let unpacked = match self.known.take(|shapes| shapes.may_fit(&record)) {
            Some(shapes) => {
                // burn drops a tensor that it was asked for with another shape.
                let kept = record.clone();
                shapes.unpack(record).or_else(|_| Unpacked::of(kept, staging))?
            }
            None => Unpacked::of(record, staging)?,
        };
        self.learn(unpacked.content());
        Ok(unpacked)
    }

    fn read(&self, file: RecordFile) -> Result<ModuleRecord> {
        let (record, content) = file.read()?;
        self.learn(&content);
        Ok(record)
    }
}

/// Records of an optimizer.
#[derive(Debug, Default)]
pub(super) struct OptimizerCodec {
    known: LastRecord<StateNames>,
}

impl Codec<OptimizerRecord> for OptimizerCodec {
    fn unpack(&self, record: OptimizerRecord, staging: Option<&Path>) -> Result<Unpacked> {
        let summary = summary(&record);
        let unpacked = match self.known.take(|names| names.may_fit(&record)) {
            Some(names) => names.unpack(record)?,
            None => Unpacked::of(record, staging)?,
        };
        self.known.learn(StateNames::of(unpacked.content(), summary));
        Ok(unpacked)
    }

    fn read(&self, file: RecordFile) -> Result<OptimizerRecord> {
        // Its names are not learned. The training may go on with another optimizer, with states of
        // as many tensors and numbers under other names, and the next record would be lost.
        file.read_optimizer()
    }
}
