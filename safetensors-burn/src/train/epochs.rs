//! [`Epochs`]: the directory of a training run, with a directory for each epoch.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[cfg(doc)]
use safetensors_core::ErrorKind;
use safetensors_core::digest::{self, Digest, DigestOptions};
use safetensors_core::io::FileSource;
use safetensors_core::save::{AtomicDirectory, DirectoryPlace};
use safetensors_core::{Checkpoint, Error, Result};

use super::EpochError;
use super::epoch::Epoch;
use super::linked::{self, PREFIX, directory_name};
use super::manifest::{Manifest, is_own, refuse_foreign};
use super::staging;

/// The directory of a training run, with a directory such as `epoch-12` for each epoch.
///
/// Choose a directory for epochs alone, such as `RUN/checkpoints`: burn keeps its metrics in
/// `RUN/train/epoch-12`. A directory without the manifest of an epoch is never replaced or deleted:
/// saving that epoch is [an error](EpochError::Foreign). A link is passed over, and a save of the
/// same epoch replaces only the link.
///
/// Several processes may save to the same directory: the last one replaces the epoch.
#[derive(Clone, Debug)]
pub struct Epochs {
    directory: PathBuf,
    staging: Option<PathBuf>,
    digests: bool,
    #[cfg(feature = "delta")]
    pub(super) whole_every: usize,
}

impl Epochs {
    /// Opens a directory of epochs, which the first save creates.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            staging: None,
            digests: false,
            #[cfg(feature = "delta")]
            whole_every: 1,
        }
    }

    /// Sets a directory in memory, such as `/dev/shm` on Linux, which makes some saves faster.
    ///
    /// burn gives some records only as bytes, for which it copies all tensors twice, or as a file.
    /// With this directory they are files there first, and are copied once:
    ///
    /// - records of a model on a device with separate memory, such as a GPU;
    /// - records of a model by
    ///   [`checkpointers_without_module`](Epochs::checkpointers_without_module), with other
    ///   parameters than the module, or with one of more than 8 dimensions;
    /// - the first record of an optimizer with states, also after a restore, and each with another
    ///   number of tensors;
    /// - records of L-BFGS and of optimizers that are not burn's;
    /// - the next one after burn or a device has failed.
    ///
    /// Without enough room there, saves and restoring deltas fail. The next save of any run of the
    /// same user removes leftovers of a killed process.
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// # let dir = tempfile::tempdir()?;
    /// let epochs = Epochs::new(dir.path().join("checkpoints")).staging("/dev/shm");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn staging(mut self, directory: impl Into<PathBuf>) -> Self {
        self.staging = Some(directory.into());
        self
    }

    /// Sets whether [`newest`](Epochs::newest) and [`passed_over`](Epochs::passed_over) also
    /// [`verify`](Epochs::verify) all tensors. Off by default: restoring an epoch with a changed
    /// byte is an error, with which burn's loop panics.
    #[must_use]
    pub fn digests(mut self, compare: bool) -> Self {
        self.digests = compare;
        self
    }

    pub(super) fn staging_directory(&self) -> Option<&Path> {
        self.staging.as_deref()
    }

    pub(super) fn hidden_directory(&self, epoch: usize) -> Result<AtomicDirectory> {
        match &self.staging {
            Some(staging) => staging::directory_in(staging),
            None => AtomicDirectory::create(self.path(epoch)),
        }
    }

    /// Returns the directory of an epoch, which need not exist.
    pub fn path(&self, epoch: usize) -> PathBuf {
        self.directory.join(directory_name(epoch))
    }

    /// Removes the leftovers of killed processes first.
    pub(super) fn create(&self, epoch: usize) -> Result<AtomicDirectory> {
        let path = self.path(epoch);
        DirectoryPlace::clean(&path);
        self.hold(epoch)?;
        AtomicDirectory::create(path)
    }

    /// Puts an epoch in place of an older one of that number.
    pub(super) fn put(&self, epoch: usize, new: AtomicDirectory) -> Result<()> {
        // This may take long, so it comes before the place is held.
        let new = new.sync()?;
        let place = DirectoryPlace::hold(self.path(epoch))?;
        refuse_foreign(&self.path(epoch))?;
        place.put(new)
    }

    /// Returns the place of an epoch that may be replaced or deleted.
    fn hold(&self, epoch: usize) -> Result<Option<DirectoryPlace>> {
        let path = self.path(epoch);
        // Without an epoch there may be no directory to hold a place in, either.
        if !path.exists() && !path.is_symlink() {
            return Ok(None);
        }
        let place = DirectoryPlace::hold(&path)?;
        refuse_foreign(&path)?;
        Ok(Some(place))
    }

    /// Returns the numbers of all epochs, sorted, complete or not.
    pub(super) fn numbers(&self) -> Result<Vec<usize>> {
        let failed = |error| Error::io(error, &self.directory);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            // The directory belongs to the user, who may keep other things in it.
            let hidden = hidden_number(&name);
            let Some(number) = hidden.or_else(|| number(&name)) else { continue };
            let path = self.path(number);
            // An epoch that was being replaced when the process ended has a hidden name, and at
            // most a part of the old one has its own.
            if hidden.is_some() || fs::symlink_metadata(&path).is_err() {
                DirectoryPlace::clean(&path);
            }
            if path.is_dir() || path.is_symlink() {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Removes leftovers, also of epochs that no process saves any more.
    pub(super) fn clean(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for name in entries.filter_map(Result::ok).map(|entry| entry.file_name()) {
            if let Some(number) = hidden_number(&name) {
                DirectoryPlace::clean(self.path(number));
            }
        }
    }

    /// Returns all epochs, the oldest first; none if the directory does not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Epoch>> {
        Ok(self.numbers()?.into_iter().map(|number| self.describe(number)).collect())
    }

    fn describe(&self, number: usize) -> Epoch {
        Epoch::new(number, self.read(number))
    }

    fn examine(&self, number: usize) -> Epoch {
        let epoch = self.describe(number);
        if !self.digests || !epoch.is_complete() {
            return epoch;
        }
        match self.verify(number) {
            Ok(()) => epoch,
            Err(error) => Epoch::new(number, Err(error)),
        }
    }

    /// Checks the lengths and headers of all files.
    pub(super) fn read(&self, number: usize) -> Result<Manifest> {
        let path = self.path(number);
        if path.is_symlink() {
            return Err(Error::from(EpochError::Link).in_path(path));
        }
        loop {
            let (manifest, digest) = Manifest::read(&path, number)?;
            let Err(error) = manifest.check(&path) else { return Ok(manifest) };
            // Another process may have replaced the epoch after its manifest was read.
            if Manifest::read(&path, number).is_ok_and(|(_, now)| now == digest) {
                return Err(error);
            }
        }
    }

    /// Returns the newest complete epoch, from which training can be resumed. Other epochs, other
    /// versions and links are [passed over](Epochs::passed_over).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the system fails to read the directory or a newer epoch, which may well
    /// be complete.
    pub fn newest(&self) -> Result<Option<usize>> {
        self.newest_by(|number| self.examine(number))
    }

    pub(super) fn newest_complete(&self) -> Result<Option<usize>> {
        self.newest_by(|number| self.describe(number))
    }

    fn newest_by(&self, look: impl Fn(usize) -> Epoch) -> Result<Option<usize>> {
        for number in self.numbers()?.into_iter().rev() {
            // An epoch that cannot be read now may be complete. Resuming from an older one would
            // repeat its work, so that is an error.
            if look(number).readable()?.is_complete() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Returns the incomplete epochs that [`newest`](Epochs::newest) passes over, each with the
    /// [reason](Epoch::problem).
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// # let dir = tempfile::tempdir()?;
    /// # let epochs = Epochs::new(dir.path().join("checkpoints"));
    /// for epoch in epochs.passed_over()? {
    ///     let problem = epoch.problem().map(ToString::to_string).unwrap_or_default();
    ///     eprintln!("epoch {} is passed over: {problem}", epoch.number());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn passed_over(&self) -> Result<Vec<Epoch>> {
        let newer = self.numbers()?.into_iter().rev().map(|number| self.examine(number));
        let mut newer: Vec<Epoch> = newer.take_while(|epoch| !epoch.is_complete()).collect();
        newer.reverse();
        Ok(newer)
    }

    /// Reads all tensors of an epoch, also in the bases of its deltas, and compares them with their
    /// digests.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`] and other [`EpochError`]s; an error of [`digest::verify`].
    pub fn verify(&self, epoch: usize) -> Result<()> {
        let (manifest, _) = self.manifest(epoch)?;
        for (name, file) in &manifest.files {
            let path = self.path(epoch).join(name);
            if let Some(delta) = &file.delta {
                linked::verify(&path, delta)?;
                continue;
            }
            let source = FileSource::from_file(file.stored.open(&path)?, &path)?;
            let checkpoint = Checkpoint::from_source(source, &path)?;
            digest::verify(&checkpoint, &DigestOptions::new().require_digests(true))?;
        }
        Ok(())
    }

    /// Deletes an epoch, or returns `false` for a link or nothing. A kill leaves it complete, or
    /// hidden.
    pub(super) fn delete(&self, epoch: usize) -> Result<bool> {
        // It may have only hidden names, and would come back.
        DirectoryPlace::clean(self.path(epoch));
        match self.hold(epoch)? {
            Some(place) if !self.path(epoch).is_symlink() => place.remove(),
            _ => Ok(false),
        }
    }

    /// Deletes all epochs after this one, except links. Returns their numbers, the newest first.
    ///
    /// A run that goes back to an older epoch needs this: if it is killed early, it would resume a
    /// later one.
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// # let dir = tempfile::tempdir()?;
    /// # let epochs = Epochs::new(dir.path().join("checkpoints"));
    /// // Train from epoch 3 again, with another learning rate.
    /// epochs.delete_after(3)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EpochError::Foreign`] if one of the directories has no manifest of an epoch;
    /// [`ErrorKind::Io`]. Nothing is deleted then.
    pub fn delete_after(&self, epoch: usize) -> Result<Vec<usize>> {
        let mut later = self.numbers()?;
        later.retain(|number| *number > epoch);
        later.iter().try_for_each(|number| self.hold(*number).map(drop))?;
        // The newest first: a process that ends in between leaves no gap.
        let later = later.into_iter().rev();
        later.filter_map(|number| deleted(number, self.delete(number))).collect()
    }

    /// Deletes all epochs except the newest `last` complete ones and the `others`, such as the best
    /// one. Returns their numbers.
    ///
    /// Incomplete epochs are deleted if they are older than the newest complete one. Links, epochs
    /// of another version, and directories without a manifest stay.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the system fails to read the directory or an epoch. Nothing is deleted
    /// then.
    pub fn delete_all_but(&self, last: usize, others: &[usize]) -> Result<Vec<usize>> {
        // Everything is read before anything is deleted: an epoch that cannot be read now may be
        // one of those to be kept.
        let all = self.list()?.into_iter().map(Epoch::readable).collect::<Result<Vec<_>>>()?;
        let complete = all.iter().filter(|epoch| epoch.is_complete()).map(Epoch::number);
        let kept: Vec<usize> = complete.clone().rev().take(last).chain(others.to_vec()).collect();
        let newest = complete.max();
        let stale = all.iter().filter(|epoch| {
            // A newer one that is broken may be all that is left of the newest state.
            let is_older = Some(epoch.number()) < newest && self.is_broken(epoch);
            !kept.contains(&epoch.number()) && (epoch.is_complete() || is_older)
        });
        let mut deleted = Vec::new();
        for epoch in stale {
            let Some(place) = self.hold(epoch.number())? else { continue };
            // Another process may have replaced a broken epoch by a complete one.
            let is_stale = epoch.is_complete() || self.is_broken(&self.describe(epoch.number()));
            if is_stale && place.remove()? {
                deleted.push(epoch.number());
            }
        }
        self.clean();
        Ok(deleted)
    }

    /// Returns `true` for a broken epoch of this version. Others may be complete.
    fn is_broken(&self, epoch: &Epoch) -> bool {
        epoch.is_broken() && is_own(&self.path(epoch.number())).unwrap_or(false)
    }

    /// Does not look at the files.
    pub(super) fn manifest(&self, epoch: usize) -> Result<(Manifest, Digest)> {
        let path = self.path(epoch);
        if !path.is_dir() {
            // This also brings back an epoch that was being replaced when a process ended.
            let found = self.numbers()?;
            if path.is_dir() {
                return Manifest::read(&path, epoch);
            }
            return Err(Error::from(EpochError::NotFound { found }).in_path(path));
        }
        Manifest::read(&path, epoch)
    }
}

fn deleted(number: usize, result: Result<bool>) -> Option<Result<usize>> {
    result.map(|is_deleted| is_deleted.then_some(number)).transpose()
}

fn number(name: &OsStr) -> Option<usize> {
    let text = name.to_str()?.strip_prefix(PREFIX)?;
    // `epoch-07` would be saved as `epoch-7`, next to it.
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

/// Parses names such as `.epoch-12.aB3dE6.tmp`.
fn hidden_number(name: &OsStr) -> Option<usize> {
    let (owner, _) = name.to_str()?.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    number(owner.as_ref())
}
