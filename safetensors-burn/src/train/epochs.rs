//! [`Epochs`]: the directory of a training run, with a directory for each epoch.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use safetensors_core::digest::{self, Digest, VerifyOptions};
use safetensors_core::framework::is_temporary_name;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Checkpoint, Error, ErrorKind, Result};

use super::manifest::Manifest;
use super::module::Parameters;
use super::shared::Shared;
use super::{EpochError, Part, SafetensorsCheckpointer};

const PREFIX: &str = "epoch-";

/// The three checkpointers, in the order of burn's `with_custom_checkpointers`: model, optimizer,
/// scheduler.
pub type Checkpointers = (
    SafetensorsCheckpointer<ModuleRecord>,
    SafetensorsCheckpointer<OptimizerRecord>,
    SafetensorsCheckpointer<LrSchedulerRecord>,
);

/// The directory of a training run. Each epoch is a directory in it, such as `epoch-12`.
///
/// Several processes may save to the same directory. Each epoch is then the one that was put in
/// place last. The [module](super) has an example.
#[derive(Clone, Debug)]
pub struct Epochs {
    directory: PathBuf,
}

/// An epoch on the disk.
#[derive(Debug)]
pub struct Epoch {
    number: usize,
    path: PathBuf,
    manifest: Result<Manifest>,
}

/// A file of an epoch, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpochFile {
    /// Its name, such as `model.safetensors`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The number of its tensors.
    pub tensors: usize,
}

impl Epoch {
    /// The number of the epoch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The directory of the epoch.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all files are there, with the lengths and the headers that the manifest says.
    pub fn is_complete(&self) -> bool {
        self.manifest.is_ok()
    }

    /// Why the epoch is not complete.
    pub fn problem(&self) -> Option<&Error> {
        self.manifest.as_ref().err()
    }

    /// The files of a complete epoch, sorted by name.
    pub fn files(&self) -> impl Iterator<Item = EpochFile> {
        let files = self.manifest.iter().flat_map(|manifest| &manifest.files);
        files.map(|(name, file)| EpochFile {
            name: name.clone(),
            bytes: file.bytes,
            tensors: file.tensors,
        })
    }
}

impl Epochs {
    /// The epochs of a directory, which the first save creates.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Makes the checkpointers for burn's `with_custom_checkpointers`.
    pub fn checkpointers(&self) -> Checkpointers {
        self.make_checkpointers(None)
    }

    /// Makes checkpointers that restore records for this module. A record of another model is then
    /// an error that lists all differences, before anything changes. And the records get the ids of
    /// this module's parameters. So the state of the optimizer meets its parameters, even if the
    /// weights come from elsewhere.
    ///
    /// # Errors
    ///
    /// Restoring fails with [`ErrorKind::Mismatches`] if the names or the shapes differ.
    pub fn checkpointers_for(&self, module: &impl Module) -> Checkpointers {
        self.make_checkpointers(Some(&Arc::new(Parameters::of(module))))
    }

    fn make_checkpointers(&self, module: Option<&Arc<Parameters>>) -> Checkpointers {
        let shared = Arc::new(Shared::new(self.clone()));
        (
            SafetensorsCheckpointer::new(&shared, Part::Model, module),
            SafetensorsCheckpointer::new(&shared, Part::Optimizer, module),
            SafetensorsCheckpointer::new(&shared, Part::Scheduler, None),
        )
    }

    /// The directory of an epoch, which need not exist.
    pub fn path(&self, epoch: usize) -> PathBuf {
        self.directory.join(format!("{PREFIX}{epoch}"))
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
            let name = name.to_str().unwrap_or_default();
            // An epoch that was being replaced when the process ended.
            let name = name.strip_suffix(".previous").unwrap_or(name);
            let Some(number) = number(name) else { continue };
            let path = self.path(number);
            AtomicDirectory::recover(&path)?;
            if path.is_dir() {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Removes what killed processes have left, also of epochs that nobody saves or deletes any
    /// more. Errors are ignored, because what stays does no harm.
    pub(super) fn clean(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for name in entries.filter_map(Result::ok).map(|entry| entry.file_name()) {
            // `.epoch-12.aB3dE6.tmp`
            let name = name.to_str().filter(|name| is_temporary_name(name.as_ref()));
            let epoch = name.and_then(|name| name.strip_prefix('.')?.split('.').next());
            if let Some(number) = epoch.and_then(number) {
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
        let path = self.path(number);
        let manifest = self.manifest(number).and_then(|(manifest, _)| {
            manifest.check(&path)?;
            Ok(manifest)
        });
        Epoch { number, path, manifest }
    }

    /// The newest complete epoch, from which training can be resumed; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Those of [`list`](Epochs::list).
    pub fn newest(&self) -> Result<Option<usize>> {
        let mut numbers = self.numbers()?.into_iter().rev();
        Ok(numbers.find(|number| self.describe(*number).is_complete()))
    }

    /// Reads all tensors of an epoch, and compares them with their digests.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`] and the other [`EpochError`]s; those of [`digest::verify`].
    pub fn verify(&self, epoch: usize) -> Result<()> {
        let (manifest, _) = self.manifest(epoch)?;
        for (name, entry) in &manifest.files {
            let path = self.path(epoch).join(name);
            let checkpoint = Checkpoint::from_file(entry.open(&path)?, &path)?;
            digest::verify(&checkpoint, &VerifyOptions::new().require_digests(true))?;
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

    /// Deletes all epochs except the newest `last` complete ones and those of `others`, such as the
    /// best one. Incomplete epochs that are older than the newest complete one are deleted, too.
    /// Returns the numbers of the deleted epochs.
    ///
    /// # Errors
    ///
    /// Those of [`list`](Epochs::list) and [`delete`](Epochs::delete).
    pub fn keep(&self, last: usize, others: &[usize]) -> Result<Vec<usize>> {
        let all = self.list()?;
        let complete = all.iter().filter(|epoch| epoch.is_complete()).map(Epoch::number);
        let kept: Vec<usize> = complete.clone().rev().take(last).chain(others.to_vec()).collect();
        let newest = complete.max();
        let stale = all.iter().filter(|epoch| {
            !kept.contains(&epoch.number) && (epoch.is_complete() || Some(epoch.number) < newest)
        });
        let stale: Vec<usize> = stale.map(Epoch::number).collect();
        for epoch in &stale {
            self.delete(*epoch)?;
        }
        self.clean();
        Ok(stale)
    }

    /// The manifest of an epoch, and its digest. The files are not looked at.
    ///
    /// # Errors
    ///
    /// [`EpochError::NotFound`], and those of [`Manifest::read`].
    pub(super) fn manifest(&self, epoch: usize) -> Result<(Manifest, Digest)> {
        let path = self.path(epoch);
        AtomicDirectory::recover(&path)?;
        if !path.is_dir() {
            let found = self.numbers()?;
            return Err(Error::from(EpochError::NotFound { found }).in_path(path));
        }
        Manifest::read(&path, epoch)
    }
}

/// The number of an epoch by the name of its directory.
fn number(name: &str) -> Option<usize> {
    let text = name.strip_prefix(PREFIX)?;
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}
