//! Finds the file or index at a user's path.

use std::path::{Path, PathBuf};

use crate::checkpoint::index::Index;
use crate::checkpoint::names::{
    FILE_SUFFIX, INDEX_SUFFIX, STANDARD_FILE, STANDARD_INDEX, UQFF_SUFFIX, is_shard_of_several,
};
use crate::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use crate::file::hash::MANIFEST;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;
use crate::format::other_format::FOREIGN_FOLDER;

/// The most subdirectories that are searched for an error message.
const LOOKED_INTO: usize = 32;

/// The file or the index that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointPath {
    /// One file of tensors.
    File(PathBuf),
    /// The index of several.
    Index(PathBuf),
}

impl CheckpointPath {
    /// Finds the file or index that [`Checkpoint::open`](crate::checkpoint::Checkpoint::open)
    /// opens: a `*.json` file is an index, any other file has tensors, and a directory is searched
    /// for either.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCheckpoint`] for a directory that holds none or several.
    pub fn find(path: impl AsRef<Path>) -> Result<Self> {
        locate(&LocalStore, path.as_ref())
    }

    /// Like [`find`](Self::find), in a store, which needs only names. It may have empty files, for
    /// example from a server's list:
    ///
    /// ```
    /// use safetensors_core::checkpoint::CheckpointPath;
    /// use safetensors_core::checkpoint::store::MemoryStore;
    ///
    /// let listed = ["gpt/config.json", "gpt/model.safetensors"];
    /// let store = MemoryStore::from_iter(listed.map(|name| (name, Vec::new())));
    /// let found = CheckpointPath::find_in(&store, "gpt")?;
    /// assert_eq!(found, CheckpointPath::File("gpt/model.safetensors".into()));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn find_in(store: &impl Store, path: impl AsRef<Path>) -> Result<Self> {
        locate(store, path.as_ref())
    }

    /// Recognises an index or a file of tensors by the end of the name, `.safetensors.index.json`
    /// or `.safetensors`. It need not exist.
    ///
    /// ```
    /// use safetensors_core::checkpoint::CheckpointPath;
    ///
    /// let path = "checkpoint/model.safetensors.index.json";
    /// assert_eq!(CheckpointPath::from_name(path), Some(CheckpointPath::Index(path.into())));
    /// assert_eq!(CheckpointPath::from_name("checkpoint/config.json"), None);
    /// ```
    pub fn from_name(path: impl AsRef<Path>) -> Option<Self> {
        let path = path.as_ref();
        let name = path.file_name()?.to_string_lossy();
        if name.ends_with(INDEX_SUFFIX) {
            return Some(Self::Index(path.into()));
        }
        name.ends_with(FILE_SUFFIX).then(|| Self::File(path.into()))
    }

    /// Returns the files of tensors: the file itself, or the files in the index, which is checked,
    /// in order of their names. They need not exist.
    ///
    /// ```
    /// use safetensors_core::checkpoint::CheckpointPath;
    /// use safetensors_core::{ShardOptions, TensorView, save_sharded};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let values = [1.0_f32, 2.0];
    /// let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
    /// save_sharded(dir.path(), tensors, &ShardOptions::new().max_shard_size(8.into()))?;
    ///
    /// let files = CheckpointPath::find(dir.path())?.files()?;
    /// assert_eq!(files[0], dir.path().join("model-00001-of-00002.safetensors"));
    /// assert_eq!(files.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::IsDelta`]; [`ErrorKind::BadIndex`].
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        self.files_by(&LocalStore, Index::read)
    }

    /// Like [`files`](Self::files), but also accepts a foreign index, such as a delta, to copy or
    /// list its files.
    #[doc(hidden)]
    pub fn files_to_copy(&self) -> Result<Vec<PathBuf>> {
        self.files_to_copy_in(&LocalStore)
    }

    /// Like [`files_to_copy`](Self::files_to_copy), for an index in another store.
    #[doc(hidden)]
    pub fn files_to_copy_in<T: Store>(&self, store: &T) -> Result<Vec<PathBuf>> {
        self.files_by(store, Index::read_any)
    }

    fn files_by<T: Store>(
        &self,
        store: &T,
        read: fn(&T, &Path, &Limits) -> Result<Index>,
    ) -> Result<Vec<PathBuf>> {
        match self {
            Self::File(file) => Ok(vec![file.clone()]),
            Self::Index(index) => Ok(read(store, index, &Limits::default())?.paths_next_to(index)),
        }
    }

    pub(crate) fn by_extension(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "json") {
            Self::Index(path.into())
        } else {
            Self::File(path.into())
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Index(path) => path,
        }
    }
}

pub(crate) fn locate<T: Store>(store: &T, path: &Path) -> Result<CheckpointPath> {
    match store.kind(path).map_err(|error| error.in_path(path))? {
        Some(FileKind::Directory) => choose(store, path),
        Some(FileKind::File) => Ok(CheckpointPath::by_extension(path)),
        // Opening gives the store's own error for a missing file. The file may also exist by now.
        None => match store.open(path) {
            Ok(_) => Ok(CheckpointPath::by_extension(path)),
            Err(error) => Err(error.in_path(path)),
        },
    }
}

/// Chooses the file or index that a directory opens as: `model.safetensors`, then the index
/// `model.safetensors.index.json`, then the only other index, then the only file, unless it is
/// named as a shard, or `.uqff` files are next to it.
// transformers and huggingface_hub choose the same.
//
// A foreign index in the `FOREIGN_FOLDER` comes before the only file if `manifest.json` shows an
// epoch of a training, where the file may be the state of a scheduler; otherwise after it.
fn choose<T: Store>(store: &T, directory: &Path) -> Result<CheckpointPath> {
    // These two are looked up by name. A listing that is read while files are renamed may lack a
    // file that existed all the time.
    let file = directory.join(STANDARD_FILE);
    let index = directory.join(STANDARD_INDEX);
    let is_file = |path: &Path| -> Result<bool> {
        let kind = store.kind(path).map_err(|error| error.in_path(path))?;
        Ok(kind == Some(FileKind::File))
    };
    if is_file(&file)? {
        return Ok(CheckpointPath::File(file));
    }
    if is_file(&index)? {
        return Ok(CheckpointPath::Index(index));
    }
    let entries = store.list(directory).map_err(|error| error.in_path(directory))?;
    let [indexes, mut files] = found(&entries);
    // mistral.rs puts the quantised layers there, and all other tensors in the only file.
    let is_uqff =
        |entry: &&StoreEntry| entry.kind == FileKind::File && entry.name.ends_with(UQFF_SUFFIX);
    files.extend(entries.iter().filter(is_uqff).map(|entry| entry.name.as_str()));
    let index = directory.join(FOREIGN_FOLDER).join(STANDARD_INDEX);
    let has = |kind, name| entries.iter().any(|entry| entry.kind == kind && entry.name == name);
    let is_epoch = has(FileKind::File, MANIFEST);
    if indexes.is_empty()
        && (files.is_empty() || is_epoch)
        && has(FileKind::Directory, FOREIGN_FOLDER)
        && is_file(&index)?
        && is_foreign(store, &index, is_epoch)?
    {
        return Ok(CheckpointPath::Index(index));
    }
    match (indexes.as_slice(), files.as_slice()) {
        ([index], _) => Ok(CheckpointPath::Index(directory.join(index))),
        ([], [file]) if !is_shard_of_several(file) && !file.ends_with(UQFF_SUFFIX) => {
            Ok(CheckpointPath::File(directory.join(file)))
        }
        _ => {
            let found = indexes.into_iter().chain(files).map(str::to_owned).collect();
            let below = found_below(store, directory, &entries);
            Err(Error::from(ErrorKind::NoCheckpoint { found, below }).in_path(directory))
        }
    }
}

/// Returns `true` also for an index of an epoch that cannot be understood: no other file replaces
/// it.
fn is_foreign<T: Store>(store: &T, index: &Path, is_epoch: bool) -> Result<bool> {
    match Index::read_any(store, index, &Limits::default()) {
        Ok(index) => Ok(index.is_foreign),
        Err(error) if matches!(error.kind(), ErrorKind::BadIndex { .. }) => Ok(is_epoch),
        Err(error) => Err(error),
    }
}

pub(crate) fn files_of<T: Store>(store: &T, directory: &Path) -> Result<Vec<String>> {
    let entries = store.list(directory).map_err(|error| error.in_path(directory))?;
    let [_, files] = found(&entries);
    Ok(files.into_iter().map(str::to_owned).collect())
}

fn found(entries: &[StoreEntry]) -> [Vec<&str>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for entry in entries.iter().filter(|entry| entry.kind == FileKind::File) {
        match CheckpointPath::from_name(&entry.name) {
            Some(CheckpointPath::Index(_)) => found[0].push(entry.name.as_str()),
            Some(CheckpointPath::File(_)) => found[1].push(entry.name.as_str()),
            None => {}
        }
    }
    found.iter_mut().for_each(|names| names.sort_unstable());
    found
}

/// Looks one level down, for an error message.
fn found_below<T: Store>(store: &T, directory: &Path, entries: &[StoreEntry]) -> Vec<String> {
    let is_shown =
        |entry: &&StoreEntry| entry.kind == FileKind::Directory && !entry.name.starts_with('.');
    let mut directories: Vec<_> =
        entries.iter().filter(is_shown).map(|entry| entry.name.as_str()).collect();
    directories.sort_unstable();
    let mut below = Vec::new();
    for name in directories.into_iter().take(LOOKED_INTO) {
        let entries = store.list(&directory.join(name)).unwrap_or_default();
        let names = found(&entries).into_iter().flatten();
        below.extend(names.map(|file| format!("{name}/{file}")));
    }
    below
}
