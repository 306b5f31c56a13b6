//! Directories of deltas, with their base in them.

use std::fs::File;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::io::FileSource;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Checkpoint, Error, ErrorKind, Result};
use safetensors_delta::{Options, open_linked};

pub(super) const FILE: &str = "model.safetensors";

/// The links to the base and the new checkpoint in the delta.
pub(super) const VERSIONS: [&str; 2] = ["base", "new"];

/// Returns the file of a complete checkpoint, or of the base of a delta.
pub(super) fn file_of(path: &Path) -> Result<PathBuf> {
    match CheckpointPath::find(path)? {
        CheckpointPath::File(file) => Ok(file),
        CheckpointPath::Index(index) if is_linked(path) => {
            let (base, _) = open_linked(path)?;
            Ok(base.files().first().map_or(index, |file| file.path().to_owned()))
        }
        CheckpointPath::Index(index) => {
            let found = "the index of several";
            Err(Error::from(ErrorKind::NotAFile { found }).in_path(index))
        }
    }
}

pub(super) fn is_linked(directory: &Path) -> bool {
    directory.join(VERSIONS[0]).is_dir()
}

/// Makes a complete checkpoint for the time of a call of `read`, and compares all digests.
pub(super) fn with_whole<T>(
    directory: &Path,
    read: impl FnOnce(&Checkpoint<FileSource>) -> Result<T>,
) -> Result<T> {
    let (base, chain) = open_linked(directory)?;
    let in_directory = |error| Error::io(error, directory);
    // The hidden directory is named after this one, which may be `.`.
    let hidden = AtomicDirectory::create(directory.canonicalize().map_err(in_directory)?)?;
    let whole = hidden.path().join("whole");
    let applied = chain.apply(&base, &whole, &Options::new().durable(false));
    applied.map_err(|error| hidden.locate(error))?;
    let file = File::open(whole.join(FILE)).map_err(in_directory)?;
    let path = directory.join(FILE);
    let checkpoint = Checkpoint::from_source(FileSource::from_file(file, &path)?, path)?;
    let result = read(&checkpoint);
    // Some systems cannot remove open files.
    drop(checkpoint);
    result
}
