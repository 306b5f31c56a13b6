//! Opening a checkpoint of files by path, or of a file that is open already.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::CheckpointFile;
use crate::checkpoint::Checkpoint;
use crate::error::{ErrorKind, Result};
use crate::header::Limits;
use crate::io::{FileSource, SafeTensors};

impl Checkpoint {
    /// Opens a file, an index file (`*.json`), or a directory that holds an index or exactly one
    /// `*.safetensors` file.
    ///
    /// An index is treated as hostile: its size is limited, duplicate keys are refused, and shard
    /// names must be plain relative paths to regular `*.safetensors` files. Its `total_size` is not
    /// trusted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCheckpoint`] for a directory that holds none or several;
    /// [`ErrorKind::BadIndex`]; [`ErrorKind::NotInShard`] for a tensor that its shard lacks;
    /// [`ErrorKind::Io`]; and, for each file, the errors of
    /// [`Header::parse`](crate::header::Header::parse).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// [`open`](Checkpoint::open) with limits for each header.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Checkpoint::open).
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::open_by(path, limits, |path| FileSource::open(path))
    }

    /// One file that is open already, such as standard input where that is a file. `name` stands
    /// for its path in errors and in [`CheckpointFile::path`]; nothing is looked for under it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] for anything but a regular file; [`ErrorKind::Io`]; those of
    /// [`Header::parse`](crate::header::Header::parse).
    pub fn from_file(file: File, name: impl Into<PathBuf>) -> Result<Self> {
        let path = name.into();
        let open = || -> Result<_> {
            let source = FileSource::of(file, &path).map_err(ErrorKind::Io)?;
            if !source.file().metadata().map_err(ErrorKind::Io)?.is_file() {
                return Err(ErrorKind::NotAFile { found: "a special file" }.into());
            }
            SafeTensors::from_source(source)
        };
        let archive = open().map_err(|error| error.in_path(&path))?;
        Self::from_single(CheckpointFile { path, archive })
    }
}
