//! Saves a record through a file in memory, which burn writes with one copy instead of two.

use std::path::Path;
use std::{fs, io};

use burn::store::RecordError;
use burn::train::checkpoint::{Checkpoint as Record, CheckpointerError};
use burn_store::burn_pack::Reader;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, ErrorKind, Result};

use super::EpochError;
use super::error::of_record;

/// The same for all runs, so that each removes leftovers of the others.
const NAME: &str = "safetensors-record";

/// Makes a file that goes when it is dropped. Errors of the system name `staging` without the
/// hidden directory.
pub(super) fn file_of<R: Record>(record: R, staging: &Path) -> Result<(Reader, AtomicDirectory)> {
    let directory = directory_in(staging)?;
    let path = directory.path().join("record.bpk");
    let saved = record.save(path.clone()).map_err(of_checkpointer);
    saved.map_err(|error| error.in_path(staging))?;
    let reader = Reader::from_file(&path).map_err(of_record);
    Ok((reader.map_err(|error| directory.locate(error.in_path(&path)))?, directory))
}

/// Makes a directory that the next process removes if this one is killed.
pub(super) fn directory_in(staging: &Path) -> Result<AtomicDirectory> {
    let path = staging.join(NAME);
    // It is not created: a directory of another name would not be in memory.
    let found = fs::metadata(staging).map_err(|error| Error::from(error).in_path(&path));
    found.and_then(|_| AtomicDirectory::create(&path))
}

fn of_checkpointer(error: CheckpointerError) -> Error {
    match error {
        CheckpointerError::Record(RecordError::Io(text)) => match kind_of(&text) {
            Some(error) => ErrorKind::Io(error).into(),
            None => EpochError::Record(text).into(),
        },
        CheckpointerError::Record(error) => of_record(error),
        CheckpointerError::IOError(error) => ErrorKind::Io(error).into(),
        other => EpochError::Record(other.to_string()).into(),
    }
}

/// Finds `(os error 28)` at the end of burn's text.
fn kind_of(text: &str) -> Option<io::Error> {
    let code = text.strip_suffix(')')?.rsplit_once("(os error ")?.1;
    code.parse().ok().map(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_keeps_its_kind() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(kind_of(&full.to_string()).is_none());
        for code in [2, 28] {
            let error = io::Error::from_raw_os_error(code);
            let text = format!("cannot write to 'record.bpk': {error}");
            let found = kind_of(&text).unwrap();
            assert_eq!((found.raw_os_error(), found.kind()), (Some(code), error.kind()));
        }
        for text in ["", "(os error )", "os error 2", "(os error 2", "(os error x)"] {
            assert!(kind_of(text).is_none(), "{text}");
        }
    }
}
