//! From the path that a user gives to the file or index that is meant.

use std::fs;
use std::path::{Path, PathBuf};

use super::index::Index;
use super::pattern::is_shard_of_several;
use crate::error::{Error, ErrorKind, Result};
use crate::header::Limits;

/// How the name of an index file ends.
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// How the name of a file of tensors ends.
pub(super) const FILE_SUFFIX: &str = ".safetensors";

/// The file or the index that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointPath {
    /// One file of tensors.
    File(PathBuf),
    /// The index of several.
    Index(PathBuf),
}

impl CheckpointPath {
    /// Finds what [`Checkpoint::open`](super::Checkpoint::open) opens for this path: a `*.json`
    /// file is an index, every other file is one of tensors, a directory holds an index or exactly
    /// one `*.safetensors` file. Neither is looked into.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCheckpoint`] for a directory that holds none or several; [`ErrorKind::Io`].
    pub fn find(path: impl AsRef<Path>) -> Result<Self> {
        locate(path.as_ref())
    }

    /// What a file in a directory is by the end of its name: `.safetensors.index.json` an index,
    /// `.safetensors` a file of tensors, everything else nothing. The file is not looked at.
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

    /// The files of tensors: the file itself, or those that the index names, in order of their
    /// names. The index is read and checked; the files are not looked at.
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
    /// [`ErrorKind::BadIndex`]; [`ErrorKind::Io`].
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        match self {
            Self::File(file) => Ok(vec![file.clone()]),
            Self::Index(index) => {
                let folder = index.parent().unwrap_or(Path::new(""));
                Ok(Index::read(index, &Limits::default())?
                    .shards()
                    .map(|(file, _)| folder.join(file))
                    .collect())
            }
        }
    }
}

/// A file is itself; a `*.json` file is an index; a directory holds one index or one
/// `*.safetensors` file.
///
/// In a directory with several indexes, `model.safetensors.index.json` is the one: it is what the
/// Hub's libraries load. One file that is a shard of several, by its name, is no checkpoint: the
/// others and the index are missing.
pub(super) fn locate(path: &Path) -> Result<CheckpointPath> {
    let metadata = fs::metadata(path).map_err(|error| Error::io(error, path))?;
    if !metadata.is_dir() {
        let is_index = path.extension().is_some_and(|extension| extension == "json");
        return Ok(if is_index {
            CheckpointPath::Index(path.into())
        } else {
            CheckpointPath::File(path.into())
        });
    }
    let names = list(path)?;
    let standard = format!("model{INDEX_SUFFIX}");
    let indexes: Vec<_> = names.iter().filter(|name| name.ends_with(INDEX_SUFFIX)).collect();
    let files: Vec<_> = names.iter().filter(|name| name.ends_with(FILE_SUFFIX)).collect();
    match (indexes.as_slice(), files.as_slice()) {
        ([index], _) => Ok(CheckpointPath::Index(path.join(index))),
        (several, _) if several.contains(&&standard) => {
            Ok(CheckpointPath::Index(path.join(standard)))
        }
        ([], [file]) if !is_shard_of_several(file) => Ok(CheckpointPath::File(path.join(file))),
        _ => {
            let found = indexes.into_iter().chain(files).cloned().collect();
            Err(Error::from(ErrorKind::NoCheckpoint { found }).in_path(path))
        }
    }
}

/// The names in a directory that are text, sorted.
pub(super) fn list(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| Error::io(error, directory))? {
        let entry = entry.map_err(|error| Error::io(error, directory))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
