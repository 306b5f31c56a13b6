//! Makes deltas of the files of an epoch, and whole files of its deltas.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, Result};

use super::epochs::Epochs;
use super::linked::{self, FILE, directory_of};
use super::manifest::{EpochFile, Manifest};

#[cfg(feature = "delta")]
impl Epochs {
    /// Saves each `count`th epoch completely, and the epochs between as their difference from the
    /// last complete one. With 1, the default, all are complete.
    ///
    /// Restoring gives the same bits. Only weights that are frozen or change little save space.
    /// Some files are always complete: the scheduler's, files that a delta would not make smaller,
    /// and all files where the file system has no hard links.
    ///
    /// A delta is the directory `model.delta` or `optimizer.delta`, with a hard link to its base.
    /// So epochs can be deleted in any order, by any program. Copies have a base each, unless the
    /// program keeps hard links, as `cp -a` and `rsync -H` do.
    ///
    /// Saving and restoring take the space of a complete epoch in addition; restoring in the
    /// directory of [`staging`](Epochs::staging) if there is one.
    ///
    /// A program without the feature `delta`, or of an older release, [passes
    /// over](Epochs::passed_over) such epochs. Other programs read the file that `safetensors delta
    /// apply` makes, here for epoch 4 with epoch 1 as its base:
    ///
    /// ```text
    /// safetensors delta apply epoch-4/model.delta/epoch-1 epoch-4/model.delta whole
    /// ```
    ///
    /// ```
    /// # use safetensors_burn::train::Epochs;
    /// # let dir = tempfile::tempdir()?;
    /// // Epochs 1 and 6 are whole, and 2 to 5 are deltas of 1.
    /// let epochs = Epochs::new(dir.path().join("checkpoints")).whole_every(5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "delta")))]
    #[must_use]
    pub fn whole_every(mut self, count: usize) -> Self {
        self.whole_every = count;
        self
    }

    fn complete_before(&self, epoch: usize) -> Option<(usize, Manifest)> {
        // An epoch that cannot be read now is not compared with.
        let numbers = self.numbers().unwrap_or_default().into_iter().rev();
        let mut older = numbers.filter(|number| *number < epoch);
        older.find_map(|number| Some((number, self.read(number).ok()?)))
    }
}

/// The complete files of deltas, in a hidden directory that goes with them.
#[derive(Debug)]
pub(super) struct WholeFiles {
    files: BTreeMap<String, File>,
    _directory: AtomicDirectory,
}

impl WholeFiles {
    /// Applies the deltas, which checks all tensors of them and their bases.
    pub(super) fn read(epochs: &Epochs, epoch: usize, manifest: &Manifest) -> Result<Self> {
        let directory = epochs.hidden_directory(epoch)?;
        let mut files = BTreeMap::new();
        for (name, file) in &manifest.files {
            let Some(delta) = &file.delta else { continue };
            let path = epochs.path(epoch).join(name);
            let whole = directory.path().join(name);
            delta.check(&path)?;
            linked::apply(&directory_of(&path), &whole).map_err(|error| directory.locate(error))?;
            let file = File::open(whole.join(FILE)).map_err(|error| Error::io(error, &path))?;
            files.insert(name.clone(), file);
        }
        Ok(Self { files, _directory: directory })
    }

    pub(super) fn files(&self) -> &BTreeMap<String, File> {
        &self.files
    }
}

#[cfg(feature = "delta")]
pub(super) use saving::reduce;

#[cfg(not(feature = "delta"))]
pub(super) fn reduce(_: &Epochs, _: usize, _: &Path, file: EpochFile) -> Result<EpochFile> {
    Ok(file)
}

#[cfg(feature = "delta")]
mod saving {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io;
    use std::path::PathBuf;

    use safetensors_delta::{Options, make_linked, open_linked};

    use super::*;
    use crate::train::linked::{DeltaOf, Stored, directory_name, link_in};

    struct Base {
        epoch: usize,
        path: PathBuf,
        saved_since: usize,
    }

    impl Base {
        /// Finds the complete file of the previous epoch, or its base. `None` if the new file
        /// should be complete.
        fn find(epochs: &Epochs, epoch: usize, name: &str) -> Option<Self> {
            if epochs.whole_every <= 1 {
                return None;
            }
            let (before, manifest) = epochs.complete_before(epoch)?;
            let path = epochs.path(before).join(name);
            let base = match &manifest.files.get(name)?.delta {
                None => Self { epoch: before, path, saved_since: 1 },
                Some(delta) => Self {
                    epoch: delta.epoch,
                    path: link_in(&directory_of(&path), delta.epoch),
                    saved_since: delta.saved_since.checked_add(1)?,
                },
            };
            (base.saved_since < epochs.whole_every).then_some(base)
        }
    }

    /// Replaces a file by its delta, if it has a smaller one.
    pub(in crate::train) fn reduce(
        epochs: &Epochs,
        epoch: usize,
        path: &Path,
        file: EpochFile,
    ) -> Result<EpochFile> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(base) = Base::find(epochs, epoch, &name) else { return Ok(file) };
        let directory = directory_of(path);
        match make(&base, epoch, path, &directory) {
            Ok(None) => return Ok(file),
            Ok(delta) if fs::remove_file(path).is_ok() => return Ok(EpochFile { delta, ..file }),
            _ => {}
        }
        // The file is still there. The part of the delta that is there must be removed.
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(error, &directory))
            }
            _ => Ok(file),
        }
    }

    /// Returns `None` if the delta is not smaller.
    fn make(base: &Base, epoch: usize, path: &Path, directory: &Path) -> Result<Option<DeltaOf>> {
        // The epoch is synchronised as a whole.
        let options = Options::new()
            .versions(directory_name(base.epoch), directory_name(epoch))
            .durable(false);
        if !make_linked(&base.path, path, directory, &options)? {
            return Ok(None);
        }
        describe(directory, base).map(Some)
    }

    fn describe(directory: &Path, base: &Base) -> Result<DeltaOf> {
        let (_, chain) = open_linked(directory)?;
        let mut paths: BTreeSet<&Path> = BTreeSet::new();
        for delta in chain.deltas() {
            paths.insert(delta.path());
            paths.extend(delta.tensors().filter_map(|tensor| tensor.file()));
        }
        let mut files = BTreeMap::new();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            files.insert(name.into_owned(), Stored::describe(path)?);
        }
        // Of the file that the delta was made of, even if another has taken its place.
        let stored = Stored::describe(&link_in(directory, base.epoch))?;
        Ok(DeltaOf { epoch: base.epoch, saved_since: base.saved_since, base: stored, files })
    }
}
