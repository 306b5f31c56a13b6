//! Files in a cache of the Hub, which Python and this project share.
//!
//! In a repository's directory, `snapshots/COMMIT` has a revision's files, as links to `blobs`
//! where the system has links. A blob may be a link to a store for all repositories.

use std::fs;
use std::path::Path;

use super::SaveOptions;
use crate::file::io::hidden::directory;
use crate::format::error::{ErrorKind, Result};

/// The kernel's limit.
pub(super) const MAX_LINKS: usize = 40;

pub(crate) fn check_cached(path: &Path, options: &SaveOptions) -> Result<()> {
    if options.replace_cached { Ok(()) } else { refuse_cached(path) }
}

/// Fails with [`ErrorKind::InHubCache`] for a file in a cache, or a link to one.
pub(crate) fn refuse_cached(path: &Path) -> Result<()> {
    let mut at = path.to_owned();
    for _ in 0..=MAX_LINKS {
        if at.symlink_metadata().is_err() {
            break;
        }
        if is_in_cache(&at) {
            return Err(ErrorKind::InHubCache.into());
        }
        match fs::read_link(&at) {
            Ok(target) => at = directory(&at).join(target),
            Err(_) => break,
        }
    }
    Ok(())
}

/// Returns `true` for a blob or an entry of a snapshot, after links of its directory.
fn is_in_cache(path: &Path) -> bool {
    let Ok(directory) = fs::canonicalize(directory(path)) else { return false };
    let has = |repo: &Path, name: &str| repo.join(name).is_dir();
    let is_blob = directory.ends_with("blobs")
        && directory.parent().is_some_and(|repo| has(repo, "snapshots"));
    let is_snapshot = |revision: &Path| {
        let commit = revision.file_name().unwrap_or_default().as_encoded_bytes();
        let Some(snapshots) = revision.parent().filter(|it| it.ends_with("snapshots")) else {
            return false;
        };
        commit.len() == 40
            && commit.iter().all(u8::is_ascii_hexdigit)
            && snapshots.parent().is_some_and(|repo| has(repo, "blobs") || has(repo, "refs"))
    };
    is_blob || directory.ancestors().any(is_snapshot)
}
