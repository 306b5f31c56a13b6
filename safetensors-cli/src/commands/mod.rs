//! The commands: one file each, with its arguments and its `run`.

pub(crate) mod inspect;
pub(crate) mod verify;
