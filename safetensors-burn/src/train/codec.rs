//! [`Codec`]: how the records of model, optimizer and scheduler are unpacked and made.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::checkpoint::Checkpoint as Record;
use safetensors_core::Result;

use super::container::Content;
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

/// What is known of the last record that was restored, or that burn made a container of.
#[derive(Debug)]
struct Known<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Known<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, known: Option<T>) {
        *self.lock() = known.map(Arc::new);
    }

    /// Unpacks a record by what is known, if that may fit. It is forgotten if it does not fit, also
    /// if burn panics. The next record is then copied.
    fn unpack<R>(
        &self,
        record: R,
        may_fit: impl FnOnce(&T, &R) -> bool,
        unpack: impl FnOnce(Arc<T>, R) -> Result<Unpacked>,
        otherwise: impl FnOnce(R) -> Result<Unpacked>,
    ) -> Result<Unpacked> {
        let known = self.lock().take();
        let Some(known) = known.filter(|known| may_fit(known, &record)) else {
            return otherwise(record);
        };
        let unpacked = unpack(Arc::clone(&known), record)?;
        // Another thread may have learned of a later record.
        self.lock().get_or_insert(known);
        Ok(unpacked)
    }
}

/// Records of a module.
#[derive(Debug)]
pub(super) struct ModuleCodec {
    /// That of the module, if it is known and lends the memory of its tensors.
    device: Option<Device>,
    known: Known<Shapes>,
}

impl ModuleCodec {
    pub(super) fn new(device: Option<&Device>) -> Self {
        let device = device.filter(|device| lends_memory(device)).cloned();
        Self { device, known: Known::default() }
    }

    fn learn(&self, content: &Content) {
        let device = self.device.as_ref();
        self.known.learn(device.and_then(|device| Shapes::of(content, device)));
    }
}

impl Codec<ModuleRecord> for ModuleCodec {
    fn unpack(&self, record: ModuleRecord, staging: Option<&Path>) -> Result<Unpacked> {
        self.known.unpack(record, Shapes::may_fit, Shapes::unpack, |record| {
            let unpacked = Unpacked::of(record, staging)?;
            self.learn(unpacked.content());
            Ok(unpacked)
        })
    }

    fn read(&self, file: RecordFile) -> Result<ModuleRecord> {
        let (record, content) = file.read()?;
        self.learn(&content);
        Ok(record)
    }
}

/// Records of an optimizer.
#[derive(Debug, Default)]
pub(super) struct OptimizerCodec(Known<StateNames>);

impl Codec<OptimizerRecord> for OptimizerCodec {
    fn unpack(&self, record: OptimizerRecord, staging: Option<&Path>) -> Result<Unpacked> {
        self.0.unpack(record, StateNames::may_fit, StateNames::unpack, |record| {
            let summary = summary(&record);
            let unpacked = Unpacked::of(record, staging)?;
            self.0.learn(StateNames::of(unpacked.content(), summary));
            Ok(unpacked)
        })
    }

    fn read(&self, file: RecordFile) -> Result<OptimizerRecord> {
        let (record, content) = file.read_optimizer()?;
        self.0.learn(StateNames::of(&content, summary(&record)));
        Ok(record)
    }
}
