//! [`faults`]: every shard of an index that cannot be opened.

use std::path::Path;

use super::locate::locate;
use crate::checkpoint::index::Index;
use crate::checkpoint::store::Store;
use crate::checkpoint::{CheckpointPath, Opener};
use crate::format::error::Error;
use crate::format::header::Limits;

/// Lists at most one error for each shard of an index. Empty if the path leads to no index, or the
/// index itself is at fault.
#[doc(hidden)]
pub fn faults<T: Store>(store: &T, path: &Path) -> Vec<Error> {
    let limits = &Limits::default();
    let Ok(CheckpointPath::Index(path)) = locate(store, path) else { return Vec::new() };
    let Ok(index) = Index::read(store, &path, limits) else { return Vec::new() };
    Opener { store, limits, joins: true }.faults(&path, &index)
}
