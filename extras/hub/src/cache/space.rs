//! Free space of a disk.

use std::path::Path;

/// Of the disk of a directory, which need not exist. `None` if unknown.
#[cfg(unix)]
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    let existing = dir.ancestors().find(|dir| dir.exists());
    let dir = existing.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(dir).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}
