//! [`Epochs`]: the directory of a training run, with a directory for each epoch.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use safetensors_core::digest::{self, Digest, DigestOptions};
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Checkpoint, Error, ErrorKind, Result};

use super::EpochError;
use super::linked::{self, PREFIX, directory_name};
use super::manifest::Manifest;
use super::staging::NAME;

/// The directory of a training run. Each epoch is a directory in it, such as `epoch-12`.
///
/// Several processes may save to the same directory. Each epoch is then the one that was put in
/// place last. The [module](super) has an example.
#[derive(Clone, Debug)]
pub struct Epochs {
    directory: PathBuf,
    staging: Option<PathBuf>,
    on_failure: Option<OnFailure>,
    #[cfg(feature = "delta")]
    pub(super) whole_every: usize,
}

/// Decides on an error, with the number of the epoch.
type Decide = dyn Fn(usize, &Error) -> ControlFlow<()> + Send + Sync;

/// What is called for an error.
#[derive(Clone)]
struct OnFailure(Arc<Decide>);

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFailure")
    }
}

/// An epoch on the disk.
#[derive(Debug)]
pub struct Epoch {
    number: usize,
    manifest: Result<Manifest>,
}

/// A file of an epoch, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpochFile {
    /// Its name, such as `model.safetensors`.
    pub name: String,
    /// Its length. For a delta, that of what differs.
    pub bytes: u64,
    /// The number of its tensors.
    pub tensors: usize,
    /// The epoch that it is a delta of; `None` if it is whole.
    pub base: Option<usize>,
}

impl Epoch {
    /// The number of the epoch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Why the epoch is not complete; `None` if all files are there, with the lengths and the
    /// headers that the manifest says.
    pub fn problem(&self) -> Option<&Error> {
        self.manifest.as_ref().err()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.manifest.is_ok()
    }

    /// Whether something is wrong with the content. An epoch of another version may be complete.
    fn is_broken(&self) -> bool {
        self.problem().is_some_and(|error| is_of_content(error) && !is_of_version(error))
    }

    /// The epoch, or an error if its files could not be read (it may be complete).
    fn readable(self) -> Result<Self> {
        match self.manifest {
            Err(error) if !is_of_content(&error) => Err(error),
            manifest => Ok(Self { manifest, ..self }),
        }
    }

    /// The files of a complete epoch, sorted by name.
    pub fn files(&self) -> impl Iterator<Item = EpochFile> {
        let files = self.manifest.iter().flat_map(|manifest| &manifest.files);
        files.map(|(name, file)| EpochFile {
            name: name.clone(),
            bytes: file.bytes(),
            tensors: file.tensors,
            base: file.delta.as_ref().map(|delta| delta.epoch),
        })
    }
}

impl Epochs {
    /// The epochs of a directory, which the first save creates.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            staging: None,
            on_failure: None,
            #[cfg(feature = "delta")]
            whole_every: 1,
        }
    }

    /// Sets a directory in memory, such as `/dev/shm` on Linux. It makes some saves faster.
    ///
    /// Most records are saved from the memory that burn has them in. A model is copied once
    /// besides, until it is known that its tensors have the shapes of the last record. burn gives
    /// the others away as bytes, for which it copies all tensors twice, or as a file. With this
    /// directory, each of them is first a file there, and is then copied to the epoch. So there is
    /// one copy in memory, in place of two. These are:
    ///
    /// - all records of a model on a device whose tensors lie elsewhere, such as a GPU;
    /// - those of a model that has got more or fewer parameters, or a parameter of another name or
    ///   shape, since the last epoch;
    /// - all records of a model, and the first one of an optimizer, by
    ///   [`checkpointers`](Epochs::checkpointers), which know no model;
    /// - those of a model with a parameter of more than 8 dimensions, and of an optimizer whose
    ///   state belongs to no parameter, such as L-BFGS;
    /// - the first one of an optimizer with three numbers or fewer beside its tensors;
    /// - the next one after burn has failed to give a record away, or a device has.
    ///
    /// A save fails if it has too little room. Each uses a hidden directory in it, and removes it.
    /// What a killed process leaves is removed by the next save of any run of the same user.
    /// Restoring an epoch that is a delta makes its whole files there, and fails if they have no
    /// room.
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// # let dir = tempfile::tempdir()?;
    /// let epochs = Epochs::new(dir.path().join("checkpoints")).staging("/dev/shm");
    /// let (model, optimizer, scheduler) = epochs.checkpointers();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn staging(mut self, directory: impl Into<PathBuf>) -> Self {
        self.staging = Some(directory.into());
        self
    }

    /// Sets what happens if an epoch cannot be saved, for example because the disk is full. By
    /// default burn gets the error, stops the training, and returns the error with the model.
    ///
    /// The function is called with the number of the epoch and the error. With
    /// [`ControlFlow::Continue`] the training goes on: the epochs on the disk stay, and the next
    /// one is saved as ever. With [`ControlFlow::Break`] burn gets the error. It is called for each
    /// record that fails, in the thread of burn that saves it, and for an epoch that cannot be
    /// deleted. A panic of burn or a device while a record is saved is such an error, too.
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// use std::ops::ControlFlow;
    ///
    /// let epochs = Epochs::new("run/checkpoints").on_failure(|epoch, error| {
    ///     eprintln!("epoch {epoch} was not saved, the training goes on: {error}");
    ///     ControlFlow::Continue(())
    /// });
    /// ```
    #[must_use]
    pub fn on_failure(
        mut self,
        decide: impl Fn(usize, &Error) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_failure = Some(OnFailure(Arc::new(decide)));
        self
    }

    /// Whether the training goes on although this error has happened.
    pub(super) fn goes_on(&self, epoch: usize, error: &Error) -> bool {
        self.on_failure.as_ref().is_some_and(|decide| (decide.0)(epoch, error).is_continue())
    }

    /// The directory for records on their way. `None` if they go through burn's bytes.
    pub(super) fn staging_directory(&self) -> Option<&Path> {
        self.staging.as_deref()
    }

    /// A hidden directory for what is made of an epoch while it is restored.
    pub(super) fn hidden_directory(&self, epoch: usize) -> Result<AtomicDirectory> {
        match &self.staging {
            Some(staging) => AtomicDirectory::create(staging.join(NAME)),
            None => AtomicDirectory::create(self.path(epoch)),
        }
    }

    /// The directory of an epoch, which need not exist.
    pub fn path(&self, epoch: usize) -> PathBuf {
        self.directory.join(directory_name(epoch))
    }

    /// Creates the directory of the run if it is missing.
    pub(super) fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.directory).map_err(|error| self.io(error))
    }

    fn io(&self, error: io::Error) -> Error {
        Error::from(ErrorKind::Io(error)).in_path(&self.directory)
    }

    /// The numbers of all epochs, sorted, whether they are complete or not.
    pub(super) fn numbers(&self) -> Result<Vec<usize>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| self.io(error))?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| self.io(error))?.file_name();
            // An epoch that was being replaced when the process ended has only its hidden name.
            let name = AtomicDirectory::owner_of(&name).unwrap_or(&name);
            // The directory belongs to the user, who may keep other things in it.
            let Some(number) = number(name) else { continue };
            let path = self.path(number);
            AtomicDirectory::repair(&path)?;
            if path.is_dir() {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Removes what killed processes have left, also of epochs that no process saves or deletes any
    /// more. Errors are ignored, because what stays does no harm.
    pub(super) fn clean(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for name in entries.filter_map(Result::ok).map(|entry| entry.file_name()) {
            if let Some(number) = AtomicDirectory::owner_of(&name).and_then(number) {
                AtomicDirectory::clean(self.path(number));
            }
        }
    }

    /// All epochs, the oldest first. An epoch that is not complete says [why](Epoch::problem).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the directory cannot be read. A directory that does not exist has no
    /// epochs.
    pub fn list(&self) -> Result<Vec<Epoch>> {
        Ok(self.numbers()?.into_iter().map(|number| self.describe(number)).collect())
    }

    fn describe(&self, number: usize) -> Epoch {
        Epoch { number, manifest: self.read(number) }
    }

    /// Reads the manifest of an epoch that is there, and checks the lengths and headers of all
    /// files.
    pub(super) fn read(&self, number: usize) -> Result<Manifest> {
        let path = self.path(number);
        loop {
            let (manifest, digest) = Manifest::read(&path, number)?;
            let Err(error) = manifest.check(&path) else { return Ok(manifest) };
            // Another process may have replaced the epoch after its manifest was read.
            if Manifest::read(&path, number).is_ok_and(|(_, now)| now == digest) {
                return Err(error);
            }
        }
    }

    /// The newest complete epoch, from which training can be resumed; `None` if there is none.
    /// Epochs that are not complete, and those of another version, are passed over.
    ///
    /// # Errors
    ///
    /// The errors of [`list`](Epochs::list); [`ErrorKind::Io`] if the system fails to read a newer
    /// epoch, which may well be complete.
    pub fn newest(&self) -> Result<Option<usize>> {
        for number in self.numbers()?.into_iter().rev() {
            // An epoch that cannot be read now may be complete. Resuming from an older one would
            // repeat its work, so that is an error.
            if self.describe(number).readable()?.is_complete() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Reads all tensors of an epoch, also those of the bases of its deltas, and compares them with
    /// their digests.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`] and the other [`EpochError`]s; those of [`digest::verify`].
    pub fn verify(&self, epoch: usize) -> Result<()> {
        let (manifest, _) = self.manifest(epoch)?;
        for (name, file) in &manifest.files {
            let path = self.path(epoch).join(name);
            if let Some(delta) = &file.delta {
                linked::verify(&path, delta)?;
                continue;
            }
            let checkpoint = Checkpoint::from_file(file.stored.open(&path)?, &path)?;
            digest::verify(&checkpoint, &DigestOptions::new().require_digests(true))?;
        }
        Ok(())
    }

    /// Deletes an epoch. A process that is killed meanwhile leaves it complete, or leaves a hidden
    /// directory. Returns `false` if there is no such epoch.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn delete(&self, epoch: usize) -> Result<bool> {
        AtomicDirectory::remove(self.path(epoch))
    }

    /// Deletes all epochs after this one. A run that goes back to an older epoch, and is then
    /// killed before it reaches the newest one again, would otherwise resume what it has abandoned.
    /// Returns the numbers of the deleted epochs, the newest first.
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
    /// The errors of [`list`](Epochs::list) and [`delete`](Epochs::delete).
    pub fn delete_after(&self, epoch: usize) -> Result<Vec<usize>> {
        // The newest first: a process that ends in between leaves no gap.
        let later = self.numbers()?.into_iter().rev().take_while(|number| *number > epoch);
        later.filter_map(|number| deleted(number, self.delete(number))).collect()
    }

    /// Deletes all epochs except the newest `last` complete ones and those of `others`, such as the
    /// best one. Incomplete epochs that are older than the newest complete one are deleted, too.
    /// Those of another version stay. Returns the numbers of the deleted epochs.
    ///
    /// # Errors
    ///
    /// The errors of [`list`](Epochs::list) and [`delete`](Epochs::delete); [`ErrorKind::Io`] if
    /// the system fails to read an epoch. Nothing is deleted then.
    pub fn keep(&self, last: usize, others: &[usize]) -> Result<Vec<usize>> {
        // Everything is read before anything is deleted: an epoch that cannot be read now may be
        // one of those to be kept.
        let all = self.list()?.into_iter().map(Epoch::readable).collect::<Result<Vec<_>>>()?;
        let complete = all.iter().filter(|epoch| epoch.is_complete()).map(Epoch::number);
        let kept: Vec<usize> = complete.clone().rev().take(last).chain(others.to_vec()).collect();
        let newest = complete.max();
        let stale = all.iter().filter(|epoch| {
            // A newer one that is broken may be all that is left of the newest state.
            let is_older = Some(epoch.number) < newest && epoch.is_broken();
            !kept.contains(&epoch.number) && (epoch.is_complete() || is_older)
        });
        let delete = |epoch: &Epoch| {
            let number = epoch.number;
            // Another process may have put a complete epoch in place of a broken one.
            let is_stale = |_: &Path| epoch.is_complete() || self.describe(number).is_broken();
            deleted(number, AtomicDirectory::remove_if(self.path(number), is_stale))
        };
        let deleted = stale.filter_map(delete).collect::<Result<Vec<_>>>()?;
        self.clean();
        Ok(deleted)
    }

    /// The manifest of an epoch, and its digest. The files are not looked at.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`], and those of [`Manifest::read`].
    pub(super) fn manifest(&self, epoch: usize) -> Result<(Manifest, Digest)> {
        let path = self.path(epoch);
        AtomicDirectory::repair(&path)?;
        if !path.is_dir() {
            let found = self.numbers()?;
            return Err(Error::from(EpochError::NotFound { found }).in_path(path));
        }
        Manifest::read(&path, epoch)
    }
}

/// Whether an error is about what an epoch has. Others may be gone the next time, such as that of
/// too many open files.
fn is_of_content(error: &Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, UnexpectedEof};

    let ErrorKind::Io(error) = error.kind() else { return true };
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | UnexpectedEof)
}

fn is_of_version(error: &Error) -> bool {
    let ErrorKind::Framework { source, .. } = error.kind() else { return false };
    matches!(source.downcast_ref(), Some(EpochError::Version { .. }))
}

/// The number of an epoch if it was deleted.
fn deleted(number: usize, result: Result<bool>) -> Option<Result<usize>> {
    result.map(|is_deleted| is_deleted.then_some(number)).transpose()
}

/// The number of an epoch by the name of its directory.
fn number(name: &OsStr) -> Option<usize> {
    let text = name.to_str()?.strip_prefix(PREFIX)?;
    // `epoch-07` would be saved as `epoch-7`, beside it.
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}
