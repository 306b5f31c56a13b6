//! What the checkpointers of one directory share: which records of an epoch are saved, and what is
//! to be deleted.
//!
//! burn calls each checkpointer in a thread of its own. The thread that saves its record last puts
//! the epoch in place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use safetensors_core::digest::Digest;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, ErrorKind, Result};

use super::epochs::Epochs;
use super::manifest::{Entry, Manifest};
use super::{EpochError, Part};

/// Shared by the checkpointers that were made together.
#[derive(Debug)]
pub(super) struct Shared {
    epochs: Epochs,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    saves: BTreeMap<usize, Saves>,
    /// Which records of an epoch are to be deleted.
    deletes: BTreeMap<usize, BTreeSet<Part>>,
    /// Epochs that are deleted once a newer one is complete.
    deferred: BTreeSet<usize>,
    restoring: Option<Restoring>,
}

/// The saves of one epoch. The first saves of all records belong together, then the second ones.
#[derive(Debug, Default)]
struct Saves {
    /// How many saves of each record have begun.
    begun: BTreeMap<Part, u64>,
    attempts: BTreeMap<u64, Attempt>,
}

/// One save of all records of an epoch.
#[derive(Debug, Default)]
struct Attempt {
    /// `None` if the directory could not be created.
    directory: Option<Arc<AtomicDirectory>>,
    /// The records whose save has ended; `None` for one that failed.
    ended: BTreeMap<Part, Option<Entry>>,
}

impl Attempt {
    fn has_failed(&self) -> bool {
        self.ended.values().any(Option::is_none)
    }
}

/// The epoch that is being restored, record by record.
#[derive(Debug)]
struct Restoring {
    epoch: usize,
    manifest: Digest,
    done: BTreeSet<Part>,
}

impl Shared {
    pub(super) fn new(epochs: Epochs) -> Self {
        Self { epochs, state: Mutex::default() }
    }

    pub(super) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic happens under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves a record of an epoch. `write` writes its file into the directory of the epoch, and
    /// returns the number of tensors. If the other records are saved, the epoch is put in place.
    ///
    /// # Errors
    ///
    /// Those of `write` and of [`AtomicDirectory`]; [`EpochError::OtherFailed`].
    pub(super) fn save(
        &self,
        epoch: usize,
        part: Part,
        write: impl FnOnce(&Path) -> Result<usize>,
    ) -> Result<()> {
        let (attempt, directory) = self.begin(epoch, part);
        let written = directory.and_then(|directory| {
            let path = directory.path().join(part.file_name());
            let entry = || {
                let tensors = write(directory.path())?;
                // Each thread waits for its own file.
                let synced = File::options().read(true).write(true).open(&path);
                synced.and_then(|file| file.sync_all()).map_err(ErrorKind::Io)?;
                Entry::of(&path, tensors)
            };
            entry().map_err(|error| directory.locate(error.in_path(&path)))
        });
        let (entry, result) = match written {
            Ok(entry) => (Some(entry), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let complete = self.end(epoch, attempt, part, entry);
        result.and(complete.map_err(|error| error.in_path(self.epochs.path(epoch))))
    }

    /// Begins the save of a record. Returns the number of the attempt that it belongs to, and its
    /// directory, which the first record creates.
    fn begin(&self, epoch: usize, part: Part) -> (u64, Result<Arc<AtomicDirectory>>) {
        let mut state = self.state();
        // What was to be deleted is replaced instead.
        state.deferred.remove(&epoch);
        let saves = state.saves.entry(epoch).or_default();
        let number = saves.begun.entry(part).or_default();
        *number += 1;
        let number = *number;
        let attempt = saves.attempts.entry(number).or_default();
        let directory = match &attempt.directory {
            Some(directory) => Ok(Arc::clone(directory)),
            None if attempt.has_failed() => Err(EpochError::OtherFailed.into()),
            None => {
                let create = || AtomicDirectory::create(self.epochs.path(epoch)).map(Arc::new);
                self.epochs.create().and_then(|()| create())
            }
        };
        attempt.directory = directory.as_ref().ok().map(Arc::clone);
        (number, directory)
    }

    /// Ends the save of a record. The last one puts the epoch in place, unless one has failed.
    fn end(&self, epoch: usize, number: u64, part: Part, entry: Option<Entry>) -> Result<()> {
        let attempt = {
            let mut state = self.state();
            let Some(saves) = state.saves.get_mut(&epoch) else { return Ok(()) };
            let Some(attempt) = saves.attempts.get_mut(&number) else { return Ok(()) };
            attempt.ended.insert(part, entry);
            if attempt.ended.len() < Part::ALL.len() {
                return Ok(());
            }
            let attempt = saves.attempts.remove(&number).unwrap_or_default();
            if saves.attempts.is_empty() {
                state.saves.remove(&epoch);
            }
            attempt
        };
        let files = attempt.ended.into_iter();
        let files = files.map(|(part, entry)| Some((part.file_name().to_owned(), entry?)));
        let files: Option<BTreeMap<_, _>> = files.collect();
        // All other records have ended, so nobody else has the directory.
        let directory = attempt.directory.and_then(Arc::into_inner);
        let (Some(files), Some(directory)) = (files, directory) else {
            return Err(EpochError::OtherFailed.into());
        };
        let manifest = Manifest::new(epoch, files).write(directory.path());
        manifest.map_err(|error| directory.locate(error))?;
        directory.commit()?;
        self.state().restoring = None;
        self.epochs.clean();
        self.delete_deferred()
    }

    /// Notes that a record of an epoch is to be deleted. The last record deletes the epoch, or
    /// defers that if no newer epoch is complete.
    pub(super) fn delete(&self, epoch: usize, part: Part) -> Result<()> {
        {
            let mut state = self.state();
            let parts = state.deletes.entry(epoch).or_default();
            parts.insert(part);
            if parts.len() < Part::ALL.len() {
                return Ok(());
            }
            state.deletes.remove(&epoch);
            state.deferred.insert(epoch);
        }
        self.delete_deferred()
    }

    /// Deletes what is to be deleted, except for the newest complete epoch.
    fn delete_deferred(&self) -> Result<()> {
        let deferred = self.state().deferred.clone();
        if deferred.is_empty() {
            return Ok(());
        }
        let newest = self.epochs.newest()?;
        for epoch in deferred {
            if newest == Some(epoch) {
                continue;
            }
            self.state().deferred.remove(&epoch);
            self.epochs.delete(epoch)?;
        }
        Ok(())
    }

    /// Reads the manifest of an epoch to restore a record. All records that are restored one after
    /// the other must be of the same save.
    ///
    /// # Errors
    ///
    /// Those of [`Epochs::manifest`]; [`EpochError::Replaced`].
    pub(super) fn restore(&self, epoch: usize, part: Part) -> Result<Manifest> {
        let (manifest, digest) = self.epochs.manifest(epoch)?;
        let mut state = self.state();
        match &mut state.restoring {
            Some(restoring) if restoring.epoch == epoch && !restoring.done.contains(&part) => {
                if restoring.manifest != digest {
                    state.restoring = None;
                    let path = self.epochs.path(epoch);
                    return Err(Error::from(EpochError::Replaced).in_path(path));
                }
                restoring.done.insert(part);
            }
            _ => {
                state.restoring = Some(Restoring { epoch, manifest: digest, done: [part].into() });
            }
        }
        Ok(manifest)
    }
}
