//! Files in a cache of the Hub, which Python and this project share.
//!
//! A cache has a directory for each repository. In it, `snapshots/COMMIT` has the files of a
//! revision, and `blobs` has their contents, once for all revisions. A file of a snapshot is a link
//! to its blob, or the file itself where the system has no links. A blob may be a link, too, to a
//! store for all repositories.

use std::fs;
use std::path::Path;

use super::SaveOptions;
use crate::file::io::hidden::directory;
use crate::format::error::{ErrorKind, Result};

/// The most links in a row that lead somewhere: the kernel's limit.
pub(super) const MAX_LINKS: usize = 40;

/// Like [`refuse_cached`], unless the options of a save allow it.
pub(crate) fn check_cached(path: &Path, options: &SaveOptions) -> Result<()> {
    if options.replace_cached { Ok(()) } else { refuse_cached(path) }
}

/// Fails if there is a file in a cache of the Hub at a path, or at the target of a link there.
///
/// # Errors
///
/// [`ErrorKind::InHubCache`].
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

/// Returns `true` if a path belongs to a blob, or is in a snapshot. A link at the path is not
/// followed, but the directories before it may be links.
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
