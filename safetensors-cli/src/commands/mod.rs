//! One file or folder for each command: its arguments, its `run`, and code that only it needs.

pub(crate) mod browse;
pub(crate) mod cache;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod digest;
pub(crate) mod download;
pub(crate) mod extract;
pub(crate) mod inspect;
pub(crate) mod manual;
pub(crate) mod map;
pub(crate) mod metadata;
pub(crate) mod modelspec;
pub(crate) mod plan;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod verify;
