//! The commands: one file each, with its arguments and its `run`.

pub(crate) mod inspect;
pub(crate) mod verify;

use std::path::Path;

use safetensors_core::{Checkpoint, Result};

/// Opens what a user named: a file, an index, or a directory that holds either.
fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path).map_err(|error| error.in_file(path.display()))
}
