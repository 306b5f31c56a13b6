//! What may be at the place of a new delta, or of what deltas make of a checkpoint.

use std::io;
use std::path::Path;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::{Checkpoint, ErrorKind as CoreKind, ReadAt};

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// What takes the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum New {
    Delta,
    Checkpoint,
}

impl Options {
    /// Fails if a directory has something that is not to be replaced: a delta takes the place of
    /// what an index says to be a delta, and a checkpoint that of a checkpoint.
    pub(crate) fn check_destination(&self, directory: &Path, new: New) -> Result<()> {
        let at = |error: Error| error.in_path(directory);
        match std::fs::read_dir(directory).map(|mut entries| entries.next().transpose()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) | Ok(Err(error)) => return Err(at(error.into())),
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(_))) if !self.overwrite => return Err(at(CoreKind::FileExists.into())),
            Ok(Ok(Some(_))) => {}
        }
        let located = CheckpointPath::find(directory)?;
        match (located.files(), new) {
            (Ok(_), New::Checkpoint) => Ok(()),
            (Ok(_), New::Delta) => Err(at(CoreKind::NotADelta.into())),
            (Err(error), New::Delta) if matches!(error.kind(), CoreKind::IsDelta { .. }) => Ok(()),
            (Err(error), _) => Err(error),
        }
    }
}

/// Fails if files that are read lie in a directory that is to be replaced with all that is in it,
/// unless they are what is replaced: with `is_whole`, the directory itself.
pub(crate) fn refuse_inside<S: ReadAt>(
    directory: &Path,
    files: &Checkpoint<S>,
    is_whole: bool,
) -> Result<()> {
    // What is not there is not replaced.
    let Ok(replaced) = directory.canonicalize() else { return Ok(()) };
    let paths = || files.index_path().into_iter().chain(files.files().iter().map(|it| it.path()));
    let home = paths().next().and_then(Path::parent).and_then(|home| home.canonicalize().ok());
    if is_whole && home.as_ref() == Some(&replaced) {
        return Ok(());
    }
    let is_inside = |path: &Path| path.canonicalize().is_ok_and(|it| it.starts_with(&replaced));
    match paths().find(|path| is_inside(path)) {
        Some(path) => Err(Error::from(ErrorKind::InsideDestination).in_path(path)),
        None => Ok(()),
    }
}
