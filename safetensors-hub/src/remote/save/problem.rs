//! The errors of saves to a directory.

use std::io;

use safetensors_core::{Error, ErrorKind};

/// The error of a store.
pub(super) fn failed(error: io::Error) -> Error {
    ErrorKind::Io(error).into()
}

/// The error if another writer has replaced a file.
pub(super) fn overtaken(file: &str) -> Error {
    ErrorKind::Overtaken { file: file.into() }.into()
}

/// The error if the new checkpoint is in place, and an old file could not be removed. `shown` is
/// the path of the directory.
pub(super) fn left_behind(error: io::Error, name: &str, shown: &str) -> Error {
    Error::from(ErrorKind::LeftBehind(error)).in_file(format!("{shown}/{name}"))
}

/// The error if the single file of the earlier checkpoint could not be removed. The directory opens
/// as that file, although the new index is in place.
pub(super) fn still_old(error: &io::Error, single: &str, shown: &str) -> Error {
    let message = format!(
        "the new checkpoint is complete, but the directory still opens as the earlier one; \
         remove {single} to finish the save ({error})"
    );
    let error = ErrorKind::Io(io::Error::new(error.kind(), message));
    Error::from(error).in_file(format!("{shown}/{single}"))
}
