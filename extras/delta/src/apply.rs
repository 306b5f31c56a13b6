//! Applies the deltas of a chain: to a directory, to nothing, and to each other.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::{CheckpointFile, CheckpointPath, OtherFiles};
use safetensors_core::digest::KEY;
use safetensors_core::save::Order;
use safetensors_core::{
    Checkpoint, Limits, ReadAt, SaveOptions, ShardOptions, TensorSource, save, save_sharded,
};
use serde_json::json;

use crate::chain::Chain;
use crate::destination::{Destination, New, check_alone};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{FILE, INDEX};
use crate::make::write;
use crate::options::Options;
use crate::patched::{Patched, PatchedTensor};
use crate::state::{STATE, StateFile};

impl<S: ReadAt> Chain<S> {
    /// Applies the deltas to their base, and saves the result in a directory.
    ///
    /// The result keeps the base's files, tensors and metadata, with recomputed digests; a single
    /// file without the ending `.safetensors` becomes `model.safetensors`. If names, dtypes, shapes
    /// or metadata change, it is saved like [`save_sharded`](safetensors_core::save_sharded), with
    /// the newest metadata of the deltas.
    ///
    /// Other files of the base's directory, such as `config.json`, are copied. The paths of those
    /// not copied are returned: other tensors, signatures, hidden and special files, files over 256
    /// MiB, links out of the directory, and names that the new directory has. Links inside a cache
    /// of the Hub are followed.
    ///
    /// With [`Options::overwrite`] the result replaces the checkpoint in the directory, which may
    /// be the base. Other files stay. A reader finds the old version or the new one at every
    /// moment.
    ///
    /// Each tensor is checked after each delta that changes it. If the deltas have the digest of
    /// their base, as [`make`](crate::make()) writes it, unchanged tensors are checked, too. See
    /// [memory](crate#memory).
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    /// use safetensors_delta::{Chain, Delta, Options, make};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let (old, new) = (dir.path().join("old.safetensors"), dir.path().join("new.safetensors"));
    /// # let write = |path, values: [f32; 2]| {
    /// #     save(path, [("w", TensorView::from_slice(&[2], &values)?)], &SaveOptions::new())
    /// # };
    /// # write(&old, [1.0, 2.0])?;
    /// # write(&new, [1.0, 2.5])?;
    /// # let (path, applied) = (dir.path().join("delta"), dir.path().join("applied"));
    /// # let checkpoint = Checkpoint::open(&new)?;
    /// let base = Checkpoint::open(&old)?;
    /// # make(&base, checkpoint.tensors().map(|w| (w.name(), w)), &path, &Options::new())?;
    /// Chain::new([Delta::open(&path)?])?.apply(&base, &applied, &Options::new())?;
    /// let applied = Checkpoint::open(applied.join("old.safetensors"))?;
    /// assert_eq!(applied.tensor("w")?.read()?.as_slice::<f32>()?, [1.0, 2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FileExists`](safetensors_core::ErrorKind::FileExists) without [`Options::overwrite`];
    /// [`NotAlone`](safetensors_core::ErrorKind::NotAlone) if the directory would not open as the
    /// result; the [kinds](ErrorKind) about deltas, bases and frames.
    pub fn apply<B: ReadAt>(
        &self,
        base: &Checkpoint<B>,
        directory: impl AsRef<Path>,
        options: &Options,
    ) -> Result<Vec<PathBuf>> {
        StateFile::check_free(directory.as_ref(), options.overwrite)?;
        let mut new = self.stage(base, directory.as_ref(), options)?;
        if directory.as_ref().join(STATE).exists() {
            // A follower's state of the old version is wrong for this one.
            new.put_first(STATE, "{}\n")?;
        }
        new.commit(Some(base))
    }

    /// Checks the directory as [`apply`](Chain::apply) does, without writing or reading a tensor.
    pub fn check_directory<B: ReadAt>(
        &self,
        base: &Checkpoint<B>,
        directory: impl AsRef<Path>,
        options: &Options,
    ) -> Result<()> {
        let directory = directory.as_ref();
        options.check_destination(directory, New::Checkpoint)?;
        let files = names_below(base)?;
        if directory.exists() && Patched::new(base, self, options, None)?.is_like_base() {
            check_alone(directory, &main_of(base, &files), &files)?;
        }
        Ok(())
    }

    pub(crate) fn stage<B: ReadAt>(
        &self,
        base: &Checkpoint<B>,
        directory: &Path,
        options: &Options,
    ) -> Result<Destination> {
        let mut new = options.create(directory, New::Checkpoint)?;
        let patched = Patched::new(base, self, options, Some(new.staging()))?;
        let files = names_below(base)?;
        let is_like_base = patched.is_like_base();
        match is_like_base {
            true => new.set_main(&main_of(base, &files), &files)?,
            false => new.set_main(if files.len() == 1 { FILE } else { INDEX }, &[])?,
        }
        let mut others = OtherFiles::new(base, directory)?;
        others.leave(|name| directory.join(name).symlink_metadata().is_ok());
        let saved = match is_like_base {
            true => save_files(&new, base, &files, &patched, options).map(|()| None),
            false => save_anew(new.staging(), base, &patched, options).map(Some),
        };
        if let Some(main) = saved.map_err(|error| new.locate(error))? {
            new.set_main(main, &[])?;
        }
        new.copy(&others)?;
        patched.read_removed()?;
        patched.check()?;
        base.check_unchanged()?;
        self.check_unchanged()?;
        Ok(new)
    }

    /// Checks the deltas like [`apply`](Chain::apply), without writing anything.
    pub fn verify<B: ReadAt>(&self, base: &Checkpoint<B>, options: &Options) -> Result<()> {
        let patched = Patched::new(base, self, options, None)?;
        patched.read_all()?;
        patched.check()?;
        base.check_unchanged()?;
        self.check_unchanged()
    }

    /// Makes one delta of all. It equals the one that [`make`](crate::make()) makes of the base and
    /// the result, which is not written. The versions in the options are ignored.
    pub fn squash<B: ReadAt>(
        &self,
        base: &Checkpoint<B>,
        directory: impl AsRef<Path>,
        options: &Options,
    ) -> Result<()> {
        let new = options.create(directory.as_ref(), New::Delta)?;
        let silent = Options::new();
        let patched = Patched::new(base, self, &silent, Some(new.staging()))?;
        let tensors = patched.result().map(|tensor| (tensor.name(), tensor));
        let mut options = options.clone().versions(self.base_version(), self.version());
        options.threads = patched.threads();
        options.metadata = patched.metadata().cloned();
        let new = write(base, tensors, new, &options)?;
        patched.read_removed()?;
        patched.check()?;
        self.check_unchanged()?;
        new.commit(Some(base)).map(drop)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.deltas().iter().try_for_each(|delta| delta.files().check_unchanged())
    }
}

fn names_below<B: ReadAt>(base: &Checkpoint<B>) -> Result<Vec<String>> {
    base.stored_files()?.iter().map(|file| name_below(base, file.path())).collect()
}

fn name_below<B: ReadAt>(base: &Checkpoint<B>, file: &Path) -> Result<String> {
    let name = match base.index_path().and_then(Path::parent) {
        Some(directory) => file.strip_prefix(directory).ok(),
        // Several files without an index are next to each other.
        None => file.file_name().map(Path::new),
    };
    // No other name, such as the name of a pipe, would be found there.
    let is_other = |name: &str| CheckpointPath::from_name(name).is_none();
    match name.and_then(Path::to_str) {
        name if base.files().len() == 1
            && base.index_path().is_none()
            && name.is_none_or(is_other) =>
        {
            Ok(FILE.into())
        }
        Some(name) => Ok(name.into()),
        None => Err(Error::from(ErrorKind::FileElsewhere).in_path(file)),
    }
}

fn main_of<B: ReadAt>(base: &Checkpoint<B>, files: &[String]) -> String {
    if let ([file], None) = (files, base.index_path()) {
        return file.clone();
    }
    let name = base.index_path().and_then(Path::file_name).and_then(OsStr::to_str);
    let is_index =
        |name: &&str| matches!(CheckpointPath::from_name(name), Some(CheckpointPath::Index(_)));
    name.filter(is_index).unwrap_or(INDEX).into()
}

fn save_files<B: ReadAt, S: ReadAt>(
    new: &Destination,
    base: &Checkpoint<B>,
    names: &[String],
    patched: &Patched<'_, B, S>,
    how: &Options,
) -> Result<()> {
    for (number, (file, name)) in base.files().iter().zip(names).enumerate() {
        let of_file = patched.result().filter(|tensor| tensor.file_index() == Some(number));
        save_file(&new.staging().join(name), file, of_file, how)?;
    }
    if let ([_], None) = (names, base.index_path()) {
        return Ok(());
    }
    let index = match base.index_path() {
        Some(index) => read_index(base, index)?,
        None => {
            let tensors = base.tensors();
            let places: BTreeMap<_, _> =
                tensors.map(|tensor| (tensor.name(), &names[tensor.file_index()])).collect();
            json!({ "metadata": {}, "weight_map": places }).to_string().into_bytes()
        }
    };
    let path = new.staging().join(main_of(base, names));
    fs::write(&path, index).map_err(|error| Error::from(error).in_path(path))
}

fn save_anew<B: ReadAt, S: ReadAt>(
    directory: &Path,
    base: &Checkpoint<B>,
    patched: &Patched<'_, B, S>,
    how: &Options,
) -> Result<&'static str> {
    let metadata = patched.metadata().unwrap_or(base.metadata()).clone();
    let has_digests = base.metadata().contains_key(KEY);
    let each = SaveOptions::new().metadata(metadata).digests(has_digests).durable(how.durable);
    let tensors = patched.result().map(|tensor| (tensor.name(), tensor));
    if base.files().len() == 1 {
        return save(directory.join(FILE), tensors, &each).map(|()| FILE);
    }
    let saved = save_sharded(directory, tensors, &ShardOptions::new().save_options(each))?;
    Ok(if saved.files.len() == 1 { FILE } else { INDEX })
}

/// Tensors that the index does not place in the file stay.
fn save_file<'p, 'a: 'p, B: ReadAt + 'a, S: ReadAt + 'a>(
    path: &Path,
    file: &CheckpointFile<B>,
    of_file: impl Iterator<Item = &'p PatchedTensor<'a, B, S>>,
    how: &Options,
) -> Result<()> {
    let patched: HashMap<_, _> = of_file.map(|tensor| (tensor.name(), tensor)).collect();
    let tensors = file.safetensors().tensors().map(|stored| {
        let name = stored.name();
        let source: Box<dyn TensorSource + Send + '_> = match patched.get(name) {
            Some(&tensor) => Box::new(tensor),
            None => Box::new(stored),
        };
        (name, source)
    });
    let metadata = file.safetensors().metadata().clone();
    let has_digests = metadata.contains_key(KEY);
    let options = SaveOptions::new().metadata(metadata).order(Order::Given).digests(has_digests);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| Error::from(error).in_path(folder))?;
    }
    save(path, tensors, &options.durable(how.durable))
}

fn read_index<B: ReadAt>(base: &Checkpoint<B>, index: &Path) -> Result<Vec<u8>> {
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    match base.read_beside(&name, Limits::default().index_bytes)? {
        Some((_, bytes)) => Ok(bytes),
        None => {
            // It has been removed, or cannot be read any more.
            let error = io::Error::other("the index could not be read a second time");
            Err(Error::from(error).in_path(index))
        }
    }
}
