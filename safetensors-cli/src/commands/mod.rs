//! The commands: one file each, with its arguments and its `run`.

pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod digest;
mod edit;
pub(crate) mod extract;
pub(crate) mod inspect;
pub(crate) mod map;
pub(crate) mod metadata;
pub(crate) mod modelspec;
pub(crate) mod stats;
pub(crate) mod verify;
