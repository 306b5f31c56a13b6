//! Removing what killed saves have left behind.
//!
//! A leftover is found by its name, so the directory has to be listed. If each of 100,000 saves
//! listed a directory that holds what the others have saved, all of them together would read
//! 5·10⁹ entries. So a process remembers what it has found in a large directory, and lists that
//! directory again only after as many saves as it has entries. The saves then read a few entries
//! each, however many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::hidden::{header_backup, is_temporary, is_temporary_name, temporary_prefix};
use crate::io::lock::DirectoryLock;

/// A directory of at most this many entries is listed at each save.
const FEW: usize = 1000;

/// What was found in the large directories of this process.
static LISTED: Listings = Listings(Mutex::new(BTreeMap::new()));

/// Removes the temporary files and directories of a file that no process has locked, and the file of
/// the directory's lock: the files of saves whose process was killed. Errors are ignored, because a
/// leftover does not prevent the save.
///
/// In a directory of more than 1000 entries, those that another process has left since this one
/// listed the directory are removed later.
pub(super) fn remove_leftovers(directory: &Path, file_name: &OsStr) {
    DirectoryLock::clear(directory);
    let Ok(key) = std::path::absolute(directory) else { return };
    for name in LISTED.temporaries(key, &prefixes(file_name), || list(directory)) {
        let _ = remove_leftover(&directory.join(name));
    }
}

/// [`remove_leftovers`], also in a large directory.
pub(super) fn remove_leftovers_now(directory: &Path, file_name: &OsStr) {
    let Some(listed) = list(directory) else { return };
    for name in listed.of(&prefixes(file_name)) {
        let _ = remove_leftover(&directory.join(name));
    }
}

/// The beginnings of the names of a file's temporary files. An edit writes the backup of a header
/// under a temporary name, too.
fn prefixes(file_name: &OsStr) -> [OsString; 2] {
    let backup = header_backup(Path::new(file_name));
    [file_name, backup.file_name().unwrap_or_default()].map(temporary_prefix)
}

/// What was found in directories of many entries, by their absolute paths.
struct Listings(Mutex<BTreeMap<PathBuf, Listed>>);

/// What was found in a directory.
#[derive(Default)]
struct Listed {
    /// The number of its entries.
    entries: usize,
    /// The number of saves since then.
    saves: usize,
    /// The names of temporary files and directories.
    temporaries: BTreeSet<OsString>,
}

impl Listings {
    /// The names of temporary files that have one of these prefixes, as far as they are known. Calls
    /// `list` if it is time to look.
    fn temporaries(
        &self,
        directory: PathBuf,
        prefixes: &[OsString],
        list: impl FnOnce() -> Option<Listed>,
    ) -> Vec<OsString> {
        if let Some(known) = self.lock().get_mut(&directory)
            && known.saves < known.entries
        {
            known.saves += 1;
            return known.of(prefixes);
        }
        // Other threads do not wait for this.
        let Some(listed) = list() else { return Vec::new() };
        let found = listed.of(prefixes);
        if listed.entries > FEW {
            _ = self.lock().insert(directory, listed);
        } else {
            _ = self.lock().remove(&directory);
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Listed>> {
        // Nothing that can panic happens under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    /// The temporary files that have one of these prefixes.
    fn of(&self, prefixes: &[OsString]) -> Vec<OsString> {
        let of_prefix = |prefix: &OsString| {
            let begins = prefix.clone();
            let from = self.temporaries.range(prefix.clone()..);
            from.take_while(move |name| {
                name.as_encoded_bytes().starts_with(begins.as_encoded_bytes())
            })
        };
        let names = prefixes.iter().flat_map(|prefix| {
            of_prefix(prefix).filter(move |name| is_temporary(name, prefix)).cloned()
        });
        names.collect()
    }
}

/// Lists a directory; `None` if that is not possible.
fn list(directory: &Path) -> Option<Listed> {
    let mut listed = Listed::default();
    for entry in fs::read_dir(directory).ok()?.filter_map(Result::ok) {
        listed.entries += 1;
        let name = entry.file_name();
        if is_temporary_name(&name) {
            listed.temporaries.insert(name);
        }
    }
    Some(listed)
}

/// Removes a temporary file or directory if its lock is free.
#[cfg(unix)]
fn remove_leftover(path: &Path) -> io::Result<()> {
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    use super::lock::{Lock, is_at, lock};

    // Links are not followed, and opening a FIFO does not wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    if !matches!(lock(&file), Lock::Taken) || !is_at(&file, path).unwrap_or(false) {
        return Ok(());
    }
    if kind.is_dir() {
        return fs::remove_dir_all(path);
    }
    if kind.is_file() { fs::remove_file(path) } else { Ok(()) }
}

/// Removes a temporary file or directory that is not open.
#[cfg(windows)]
fn remove_leftover(path: &Path) -> io::Result<()> {
    use super::lock::open_leftover;
    use crate::io::hidden::{ID_LEN, TEMPORARY_SUFFIX};

    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_file() {
        let _leftover = open_leftover(path)?;
        return fs::remove_file(path);
    }
    let name = path.file_name().and_then(OsStr::to_str).filter(|_| kind.is_dir());
    let prefix = name.and_then(|it| it.get(..it.len() - ID_LEN - TEMPORARY_SUFFIX.len()));
    let Some((prefix, parent)) = prefix.zip(path.parent()) else { return Ok(()) };
    // What is in a directory cannot be removed while others are kept from it. So it gets a name that
    // its creator, who may be about to open it, does not know.
    let leftover = open_leftover(path)?;
    let mut names = tempfile::Builder::new();
    names.prefix(prefix).suffix(TEMPORARY_SUFFIX).rand_bytes(ID_LEN);
    let renamed = names.make_in(parent, |to| fs::rename(path, to))?;
    drop(leftover);
    fs::remove_dir_all(renamed.into_temp_path().keep()?)
}

/// On other systems leftovers cannot be told from files in use.
#[cfg(not(any(unix, windows)))]
fn remove_leftover(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 saves to a directory that each of them makes one entry larger.
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
            let name = prefixes(format!("step-{entries}").as_ref());
            assert!(listings.temporaries("steps".into(), &name, list).is_empty());
        }
        assert!(read < 1_000_000, "{read}");
        // Looking never ends altogether.
        assert!(lists > FEW + 5, "{lists}");
    }

    #[test]
    fn leftovers_in_a_large_directory() {
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
        // The first save lists the directory, and the others remember what is in it.
        assert!(remove("7") && at(&left("77")).exists() && at(&left("8")).exists());
        assert!(remove("8") && at(&left("77")).exists());
        // Another process is killed afterwards. A later save removes what it has left.
        fs::write(at(&left("9")), "").unwrap();
        assert!(!remove("9"));
        assert!((0..=2 * FEW).any(|_| remove("9")));
        fs::write(at(&left("9")), "").unwrap();
        remove_leftovers_now(directory.path(), "9.safetensors".as_ref());
        assert!(!at(&left("9")).exists() && remove("77"));
    }
}
