//! The state that the checkpointers of a directory share. burn calls each in a separate thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use safetensors_core::digest::Digest;
use safetensors_core::lock;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, Result};

use super::attempts::{Attempts, Ended};
use super::deltas::{WholeFiles, reduce};
use super::epochs::Epochs;
use super::manifest::{EpochFile, Manifest};
use super::{EpochError, RecordKind};
use crate::error::catch_panic;

#[derive(Debug)]
pub(super) struct Shared {
    epochs: Epochs,
    state: Mutex<EpochsState>,
    /// A lock that is taken before the state.
    // So the new epoch of a number is not deleted instead of the old one.
    in_place: Mutex<()>,
    /// The complete files of the restored epoch, with the digest of its manifest.
    made: Mutex<Option<(Digest, Arc<WholeFiles>)>>,
}

#[derive(Debug, Default)]
struct EpochsState {
    attempts: BTreeMap<usize, Attempts>,
    has_failed: bool,
    deletes: BTreeMap<usize, BTreeSet<RecordKind>>,
    /// Epochs to delete once another one is in place.
    deferred: BTreeSet<usize>,
    /// The epoch that was saved or restored last.
    current: Option<usize>,
    restoring: Option<Restoring>,
}

impl EpochsState {
    /// Notes a failed save, and drops the requests to delete, which counted on it.
    fn fail(&mut self) {
        self.has_failed = true;
        self.deferred.clear();
    }
}

#[derive(Debug)]
struct Restoring {
    epoch: usize,
    manifest: Digest,
    done: BTreeSet<RecordKind>,
}

impl Shared {
    pub(super) fn new(epochs: Epochs) -> Self {
        Self { epochs, state: Mutex::default(), in_place: Mutex::default(), made: Mutex::default() }
    }

    pub(super) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Saves a record. `write` returns the number of tensors, and its panic is an error.
    pub(super) fn save(
        &self,
        epoch: usize,
        part: RecordKind,
        write: impl FnOnce(&Path) -> Result<usize>,
    ) -> Result<()> {
        self.try_save(epoch, part, write).map_err(|error| error.in_path(self.epochs.path(epoch)))
    }

    fn try_save(
        &self,
        epoch: usize,
        part: RecordKind,
        write: impl FnOnce(&Path) -> Result<usize>,
    ) -> Result<()> {
        let (mut saving, directory) = self.begin(epoch, part)?;
        // The last record needs the directory for itself, so it is dropped here.
        let entry = directory.and_then(|directory| self.write(epoch, part, &directory, write))?;
        saving.end(Some(entry))
    }

    fn write(
        &self,
        epoch: usize,
        part: RecordKind,
        directory: &AtomicDirectory,
        write: impl FnOnce(&Path) -> Result<usize>,
    ) -> Result<EpochFile> {
        let path = directory.path().join(part.file_name());
        let written = catch_panic(|| write(directory.path())).flatten();
        let file = written.and_then(|tensors| EpochFile::describe(&path, tensors));
        let file = file.and_then(|file| match part {
            // It has a few numbers.
            RecordKind::Scheduler => Ok(file),
            _ => reduce(&self.epochs, epoch, &path, file),
        });
        file.map_err(|error| directory.locate(error.in_path(&path)))
    }

    /// Begins the save of a record. The first one creates the directory of the attempt.
    fn begin(&self, epoch: usize, part: RecordKind) -> Result<(Saving<'_>, Directory)> {
        let mut state = lock(&self.state);
        // An epoch that was to be deleted is replaced instead.
        state.deferred.remove(&epoch);
        let attempts = state.attempts.entry(epoch).or_default();
        let Some((number, attempt)) = attempts.begin(part, thread::current().id()) else {
            return Err(EpochError::OtherFailed.into());
        };
        let directory = match &attempt.directory {
            Some(directory) => Ok(Arc::clone(directory)),
            None if attempt.has_failed() => Err(EpochError::OtherFailed.into()),
            None => self.epochs.create(epoch).map(Arc::new),
        };
        attempt.directory = directory.as_ref().ok().map(Arc::clone);
        drop(state);
        let saving = Saving { shared: self, epoch, number, part, has_ended: false };
        Ok((saving, directory))
    }

    /// Ends the save of a record. The last one puts the epoch in place, unless one has failed.
    fn end(
        &self,
        epoch: usize,
        number: u64,
        part: RecordKind,
        entry: Option<EpochFile>,
    ) -> Result<()> {
        let ended = {
            let mut state = lock(&self.state);
            if entry.is_none() {
                state.fail();
            }
            state.attempts.entry(epoch).or_default().end(number, part, entry)
        };
        let (files, directory) = match ended {
            Ended::Waiting => return Ok(()),
            Ended::Failed => return Err(EpochError::OtherFailed.into()),
            Ended::Complete(files, directory) => (files, directory),
        };
        let result = self.put(epoch, files, directory);
        {
            let mut state = lock(&self.state);
            let attempts = state.attempts.entry(epoch).or_default();
            if let Err(error) = result {
                attempts.fail(number);
                state.fail();
                return Err(error);
            }
            if attempts.forget(number) {
                state.attempts.remove(&epoch);
            }
            state.has_failed = false;
            state.restoring = None;
            state.current = Some(epoch);
        }
        *lock(&self.made) = None;
        self.epochs.clean();
        // The epoch is saved. A failed deletion is tried again, and the next call of `delete`
        // returns its error.
        let _ = self.delete_deferred();
        Ok(())
    }

    fn put(
        &self,
        epoch: usize,
        files: BTreeMap<String, EpochFile>,
        directory: Arc<AtomicDirectory>,
    ) -> Result<()> {
        // All other records have ended, so no other process has the directory.
        let directory = Arc::into_inner(directory).ok_or(EpochError::OtherFailed)?;
        // The disk may take long, so this comes before the lock. While the threads still write, the
        // system may make all of them wait for it.
        let synced = files
            .iter()
            .filter(|(_, file)| file.delta.is_none())
            .try_for_each(|(name, _)| sync(&directory.path().join(name)));
        let written = synced.and_then(|()| Manifest::new(epoch, files).write(directory.path()));
        written.map_err(|error| directory.locate(error))?;
        let _in_place = lock(&self.in_place);
        self.epochs.put(epoch, directory)
    }

    /// Deletes the epoch with its last record, or once another one is in place.
    // A request after a failed save is dropped: a strategy may decide otherwise at the next one.
    pub(super) fn delete(&self, epoch: usize, part: RecordKind) -> Result<()> {
        {
            let mut state = lock(&self.state);
            let parts = state.deletes.entry(epoch).or_default();
            parts.insert(part);
            if parts.len() < RecordKind::ALL.len() {
                return Ok(());
            }
            state.deletes.remove(&epoch);
            if state.has_failed {
                return Ok(());
            }
            state.deferred.insert(epoch);
        }
        self.delete_deferred()
    }

    /// Keeps the newest complete epoch and the one that was saved or restored last.
    fn delete_deferred(&self) -> Result<()> {
        let _in_place = lock(&self.in_place);
        let deferred = {
            let state = lock(&self.state);
            let deferred = state.deferred.iter().copied();
            deferred.filter(|epoch| state.current != Some(*epoch)).collect::<Vec<_>>()
        };
        if deferred.is_empty() {
            return Ok(());
        }
        let newest = self.epochs.newest_complete()?;
        let mut result = Ok(());
        for epoch in deferred.into_iter().filter(|epoch| newest != Some(*epoch)) {
            // A save of this epoch may have begun in between.
            if !lock(&self.state).deferred.remove(&epoch) {
                continue;
            }
            if let Err(error) = self.epochs.delete(epoch) {
                lock(&self.state).deferred.insert(epoch);
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Makes complete files of deltas, once for all records, which must come from the same save.
    pub(super) fn restore(
        &self,
        epoch: usize,
        part: RecordKind,
    ) -> Result<(Manifest, Option<Arc<WholeFiles>>)> {
        let (manifest, digest) = self.epochs.manifest(epoch)?;
        let is_last = self.begin_restore(epoch, part, digest)?;
        let mut made = lock(&self.made);
        let known = made.take().filter(|(of, _)| *of == digest).map(|(_, files)| files);
        if manifest.files.values().all(|file| file.delta.is_none()) {
            return Ok((manifest, None));
        }
        let files = match known {
            Some(files) => files,
            None => Arc::new(WholeFiles::read(&self.epochs, epoch, &manifest)?),
        };
        // They go with the last record.
        *made = (!is_last).then(|| (digest, Arc::clone(&files)));
        Ok((manifest, Some(files)))
    }

    /// Returns `true` for the last record of the epoch.
    fn begin_restore(&self, epoch: usize, part: RecordKind, manifest: Digest) -> Result<bool> {
        let mut state = lock(&self.state);
        state.current = Some(epoch);
        match &mut state.restoring {
            Some(restoring) if restoring.epoch == epoch && !restoring.done.contains(&part) => {
                if restoring.manifest != manifest {
                    state.restoring = None;
                    let path = self.epochs.path(epoch);
                    return Err(Error::from(EpochError::Replaced).in_path(path));
                }
                restoring.done.insert(part);
                Ok(restoring.done.len() == RecordKind::ALL.len())
            }
            _ => {
                state.restoring = Some(Restoring { epoch, manifest, done: [part].into() });
                Ok(false)
            }
        }
    }
}

type Directory = Result<Arc<AtomicDirectory>>;

fn sync(path: &Path) -> Result<()> {
    let synced = File::options().read(true).write(true).open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::io(error, path))
}

/// A save that ends without a result has failed.
struct Saving<'a> {
    shared: &'a Shared,
    epoch: usize,
    number: u64,
    part: RecordKind,
    has_ended: bool,
}

impl Saving<'_> {
    fn end(&mut self, entry: Option<EpochFile>) -> Result<()> {
        self.has_ended = true;
        self.shared.end(self.epoch, self.number, self.part, entry)
    }
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // The error says why.
            let _ = self.end(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::StoreError;

    fn write(directory: &Path, part: RecordKind, value: u8) -> Result<usize> {
        let values = [value];
        let tensor = safetensors_core::TensorView::from_slice(&[1], &values)?;
        let options = safetensors_core::SaveOptions::new();
        safetensors_core::save(directory.join(part.file_name()), [("value", tensor)], &options)?;
        Ok(1)
    }

    #[test]
    fn a_panic_is_a_save_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let shared = Shared::new(Epochs::new(dir.path()));
        let save = |part, value| shared.save(1, part, |dir| write(dir, part, value));
        save(RecordKind::Model, 1).unwrap();
        let saved = shared.save(1, RecordKind::Optimizer, |_| panic!("the device is lost"));
        let error = saved.unwrap_err();
        let problem = error.source().and_then(|source| source.downcast_ref());
        assert!(matches!(problem, Some(StoreError::Panicked { .. })), "{error}");
        assert!(error.to_string().ends_with("the device is lost"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        save(RecordKind::Scheduler, 1).unwrap_err();
        for part in RecordKind::ALL {
            save(part, 2).unwrap();
        }
        for part in RecordKind::ALL {
            let path = shared.epochs.path(1).join(part.file_name());
            assert_eq!(std::fs::read(path).unwrap().last(), Some(&2));
        }
        assert!(lock(&shared.state).attempts.is_empty());
    }
}
