//! [`Tensors`]: the tensors of a writer so far.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::body::BodyPlace;
use super::series::Series;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::header::{METADATA_KEY, Metadata, NameTable};

#[derive(Debug, Default)]
pub(super) struct Tensors {
    pub(super) list: Vec<Arc<GrowingEntry>>,
    pub(super) names: NameTable,
    pub(super) metadata: Metadata,
    /// Of the file that is appended to.
    pub(super) aliases: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) enum GrowingEntry {
    Whole(Whole),
    Growing(Arc<Series>),
}

#[derive(Debug)]
pub(super) struct Whole {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) place: BodyPlace,
    pub(super) written: AtomicBool,
    /// Whether writing has failed. It can be added again.
    pub(super) failed: AtomicBool,
    pub(super) synced: AtomicBool,
}

impl Whole {
    pub(super) fn new(name: &str, dtype: Dtype, shape: &[usize], place: BodyPlace) -> Self {
        let [written, failed, synced] = [const { AtomicBool::new(false) }; 3];
        Self { name: name.into(), dtype, shape: shape.into(), place, written, failed, synced }
    }
}

impl GrowingEntry {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Whole(whole) => &whole.name,
            Self::Growing(series) => &series.name,
        }
    }

    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Self::Whole(whole) => whole.dtype,
            Self::Growing(series) => series.dtype,
        }
    }
}

impl Tensors {
    /// Returns `true` also for an alias in the file that is appended to.
    pub(super) fn has(&self, name: &str) -> bool {
        self.aliases.contains(name) || self.names.find(name, |i| self.list[i].name()).is_some()
    }

    /// Returns the tensor of this name that could not be written.
    pub(super) fn enter_whole(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        place: impl FnOnce() -> Result<BodyPlace>,
    ) -> Result<Arc<GrowingEntry>> {
        if let Some(entry) = self.names.find(name, |i| self.list[i].name()).map(|i| &self.list[i])
            && let GrowingEntry::Whole(whole) = &**entry
            && (whole.dtype, &*whole.shape) == (dtype, shape)
            && whole.failed.swap(false, Ordering::AcqRel)
        {
            return Ok(entry.clone());
        }
        self.enter(name, || Ok(GrowingEntry::Whole(Whole::new(name, dtype, shape, place()?))))
    }

    pub(super) fn enter(
        &mut self,
        name: &str,
        entry: impl FnOnce() -> Result<GrowingEntry>,
    ) -> Result<Arc<GrowingEntry>> {
        if name == METADATA_KEY {
            return Err(ErrorKind::ReservedName.into());
        }
        if self.has(name) {
            return Err(ErrorKind::DuplicateTensor.into());
        }
        // No header can have more, and no table of names.
        const MOST: usize = u32::MAX as usize;
        let Self { list, names, .. } = self;
        if list.len() == MOST {
            return Err(ErrorKind::TooManyTensors { limit: MOST }.into());
        }
        let entry = Arc::new(entry()?);
        list.push(entry.clone());
        names.insert(name, list.len() - 1, |i| list[i].name());
        Ok(entry)
    }
}
