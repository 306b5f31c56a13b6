//! Removes the leftovers of killed saves.
//!
//! If each of 100,000 saves listed the files of the others, that would be 5·10⁹ entries. So a
//! process lists a large directory again only after a save for each of its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::lock::lock_leftover;
use crate::file::io::hidden::{TEMPORARY_LOCK, checkpoint_of_temporary, checkpoints_of};
use crate::file::io::identity::unless_missing;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::remove::remove_hidden;
use crate::format::parallel::lock;

/// In the temporary directory.
pub(super) const NEW: &str = "new";

/// In the temporary directory, replaced by the new one.
pub(super) const OLD: &str = "old";

/// In the temporary directory. The destination holds the rest of an old directory, which is being
/// removed file by file.
pub(super) const REST: &str = "rest";

/// Smaller directories are listed at each save.
const FEW: usize = 1000;

static LISTED: Listings = Listings(Mutex::new(BTreeMap::new()));

/// Removes what killed saves have left of a checkpoint, which has a file `file_name`, and of the
/// directory's lock. Errors are ignored.
// In a directory of more than 1000 entries, other processes' leftovers since the last listing are
// removed later.
pub(super) fn remove_leftovers(directory: &Path, file_name: &OsStr) {
    DirectoryLock::clear(directory);
    let Ok(key) = std::path::absolute(directory) else { return };
    for name in LISTED.temporaries(key, &checkpoints_of(file_name), || list(directory)) {
        let _ = remove_leftover(&directory.join(name), &directory.join(file_name));
    }
}

pub(crate) fn remove_leftovers_now(directory: &Path, file_name: &OsStr) {
    let Some(listed) = list(directory) else { return };
    for name in listed.temporaries(&checkpoints_of(file_name)) {
        let _ = remove_leftover(&directory.join(name), &directory.join(file_name));
    }
}

/// Of large directories, by absolute path.
struct Listings(Mutex<BTreeMap<PathBuf, Listed>>);

#[derive(Default)]
struct Listed {
    entries: usize,
    saves: usize,
    /// By checkpoint.
    temporaries: BTreeMap<String, Vec<OsString>>,
}

impl Listings {
    /// Calls `list` if it is time to look.
    fn temporaries(
        &self,
        directory: PathBuf,
        checkpoints: &BTreeSet<String>,
        list: impl FnOnce() -> Option<Listed>,
    ) -> Vec<OsString> {
        if let Some(known) = lock(&self.0).get_mut(&directory)
            && known.saves < known.entries
        {
            known.saves += 1;
            return known.temporaries(checkpoints);
        }
        // Other threads do not wait for this.
        let Some(listed) = list() else { return Vec::new() };
        let found = listed.temporaries(checkpoints);
        if listed.entries > FEW {
            _ = lock(&self.0).insert(directory, listed);
        } else {
            _ = lock(&self.0).remove(&directory);
        }
        found
    }
}

impl Listed {
    fn temporaries(&self, checkpoints: &BTreeSet<String>) -> Vec<OsString> {
        let found = checkpoints.iter().filter_map(|checkpoint| self.temporaries.get(checkpoint));
        found.flatten().cloned().collect()
    }
}

fn list(directory: &Path) -> Option<Listed> {
    let mut listed = Listed::default();
    for entry in fs::read_dir(directory).ok()?.filter_map(Result::ok) {
        listed.entries += 1;
        let name = entry.file_name();
        if let Some(checkpoint) = checkpoint_of_temporary(&name) {
            listed.temporaries.entry(checkpoint).or_default().push(name);
        }
    }
    Some(listed)
}

/// Removes something that no process has locked, unless it holds all that is left of `destination`.
fn remove_leftover(path: &Path, destination: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_file() {
        let Some(_leftover) = lock_leftover(path)? else { return Ok(()) };
        return fs::remove_file(path);
    }
    if !kind.is_dir() || is_between(path, destination)? {
        return Ok(());
    }
    match lock_leftover(&path.join(TEMPORARY_LOCK)) {
        Ok(Some(lock)) => remove_hidden(path, Some(lock)),
        Ok(None) => Ok(()),
        // Its creator may be about to create the lock, and makes another directory if this one is
        // gone. If the creator comes first, the directory is not empty, and stays.
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir(path),
        Err(error) => Err(error),
    }
}

/// Returns `true` if the old directory was moved aside, or is perhaps only a part, and the new one
/// is not in place.
pub(super) fn is_between(hidden: &Path, path: &Path) -> io::Result<bool> {
    let is_in = |name| is_there(&hidden.join(name));
    Ok(is_in(NEW)? && (is_in(REST)? || is_in(OLD)? && !is_there(path)?))
}

pub(super) fn is_there(path: &Path) -> io::Result<bool> {
    Ok(unless_missing(fs::symlink_metadata(path))?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each save makes the directory one entry larger.
    #[test]
    fn saves_one_by_one_read_few_entries() {
        let listings = Listings(Mutex::new(BTreeMap::new()));
        let (mut read, mut lists) = (0, 0);
        for entries in 0..100_000 {
            let list = || {
                read += entries;
                lists += 1;
                Some(Listed { entries, ..Listed::default() })
            };
            let of = checkpoints_of(format!("step-{entries}").as_ref());
            assert!(listings.temporaries("steps".into(), &of, list).is_empty());
        }
        assert!(read < 1_000_000, "{read}");
        // Looking never ends altogether.
        assert!(lists > FEW + 5, "{lists}");
    }

    #[test]
    fn leftovers_in_a_large_directory_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for i in 0..FEW {
            fs::write(at(&format!("{i}.safetensors")), "").unwrap();
        }
        let left = |file: &str| format!(".{file}.safetensors.aB3dE6.tmp");
        let remove = |file: &str| {
            remove_leftovers(directory.path(), format!("{file}.safetensors").as_ref());
            !at(&left(file)).exists()
        };
        for file in ["7", "77", "8"] {
            fs::write(at(&left(file)), "").unwrap();
        }
        // The first save lists the directory, and the others remember its entries.
        assert!(remove("7") && at(&left("77")).exists() && at(&left("8")).exists());
        assert!(remove("8") && at(&left("77")).exists());
        // Another process is killed afterwards. A later save removes its leftovers.
        fs::write(at(&left("9")), "").unwrap();
        assert!(!remove("9"));
        assert!((0..=2 * FEW).any(|_| remove("9")));
        fs::write(at(&left("9")), "").unwrap();
        remove_leftovers_now(directory.path(), "9.safetensors".as_ref());
        assert!(!at(&left("9")).exists() && remove("77"));
    }
}
