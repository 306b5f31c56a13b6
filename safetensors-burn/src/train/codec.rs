//! [`Codec`]: how the records of model, optimizer and scheduler are unpacked and made.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Mutex;

use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::train::checkpoint::Checkpoint as Record;
use safetensors_core::{Result, lock};

use super::container::check_count;
use super::module::Parameters;
use super::record::RecordFile;
use super::states::StateCounts;
use super::taker::Taker;
use super::unpacked::Unpacked;

pub(super) trait Codec<R>: Debug + Send + Sync {
    /// Unpacks a record. A file in `staging` has the tensors that burn copies.
    fn unpack(&self, record: R, staging: Option<&Path>) -> Result<Unpacked>;

    fn read(&self, file: RecordFile) -> Result<R>
    where
        R: Record,
    {
        file.read()
    }
}

/// The codec of records of few bytes, such as the scheduler's.
#[derive(Debug)]
pub(super) struct PlainCodec;

impl<R: Record> Codec<R> for PlainCodec {
    fn unpack(&self, record: R, staging: Option<&Path>) -> Result<Unpacked> {
        Unpacked::unpack(record, staging)
    }
}

#[derive(Debug)]
pub(super) struct ModuleCodec {
    /// `None` for an unknown module, or one with tensors that burn copies.
    taker: Option<Taker>,
}

impl ModuleCodec {
    pub(super) fn new(module: Option<&Parameters>) -> Self {
        Self { taker: module.and_then(Parameters::taker) }
    }
}

impl Codec<ModuleRecord> for ModuleCodec {
    fn unpack(&self, record: ModuleRecord, staging: Option<&Path>) -> Result<Unpacked> {
        check_count(record.len())?;
        match &self.taker {
            Some(taker) if taker.may_fit(&record) => {
                // burn drops a tensor that it was asked for with another shape.
                let kept = record.clone();
                taker.unpack(record).or_else(|_| Unpacked::unpack(kept, staging))
            }
            _ => Unpacked::unpack(record, staging),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct OptimizerCodec {
    /// The form of the last record.
    // Not known from a file: training may go on with another optimizer.
    last: Mutex<Option<StateCounts>>,
}

impl Codec<OptimizerRecord> for OptimizerCodec {
    fn unpack(&self, record: OptimizerRecord, staging: Option<&Path>) -> Result<Unpacked> {
        check_count(record.len())?;
        // It is forgotten if burn panics or does not give all. The next record is then copied.
        let last = lock(&self.last).take().filter(|known| known.may_fit(&record));
        let unpacked = match last {
            Some(known) => known.take(record)?,
            None => Unpacked::unpack(record, staging)?,
        };
        *lock(&self.last) = StateCounts::recognize(&unpacked.content);
        Ok(unpacked)
    }

    fn read(&self, file: RecordFile) -> Result<OptimizerRecord> {
        file.read_optimizer()
    }
}
