//! The checkpoint before a save, which stays loadable until the new one is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::checkpoint::index::Index;
use crate::checkpoint::names::{STANDARD_FILE, stem};
use crate::checkpoint::open::locate::{CheckpointPath, locate};
use crate::checkpoint::store::{FileKind, Store, is_not_found};
use crate::file::io::{SafeTensors, failpoint};
use crate::format::error::{Error, ErrorKind, IndexProblem, Result};
use crate::format::header::Limits;

/// Returns the checkpoint that the index describes or, without an index, the one file that the
/// directory opens as; `None` if there is none, or if it is malformed.
pub(crate) fn current<T: Store>(
    store: &T,
    directory: &Path,
    index: Option<&PathBuf>,
) -> Result<Option<Index>> {
    failpoint::hit("read the old checkpoint").map_err(|error| Error::io(error, directory))?;
    let found = match index {
        // A foreign one that another replaces stays whole, too.
        Some(index) => Index::read_any(store, index, &highest_limits()).map(Some),
        None => of_one_file(store, directory),
    };
    unless_broken(found)
}

fn of_one_file<T: Store>(store: &T, directory: &Path) -> Result<Option<Index>> {
    let CheckpointPath::File(path) = locate(store, directory)? else { return Ok(None) };
    let name = path.file_name().and_then(|name| name.to_str());
    // The directory opens as the standard file until that is removed, and needs no index.
    let Some(name) = name.filter(|name| *name != STANDARD_FILE) else { return Ok(None) };
    let archive = SafeTensors::from_source_with(store.open(&path)?, &highest_limits())
        .map_err(|error| error.in_path(&path))?;
    let names: Vec<_> = archive.tensors().map(|tensor| tensor.name().to_owned()).collect();
    if names.is_empty() {
        // No index can describe a file without tensors.
        return Ok(None);
    }
    Ok(Some(Index { shards: BTreeMap::from([(name.to_owned(), names)]), ..Index::default() }))
}

/// Also returns second names that an interrupted commit has given to files.
pub(crate) fn old_files<T: Store>(
    store: &T,
    directory: &Path,
    new: &[&str],
) -> Result<BTreeSet<String>> {
    let mut files = opened_files(store, directory)?;
    let shards: Vec<_> = files.iter().cloned().chain(new.iter().map(|&file| file.into())).collect();
    let folders: BTreeSet<_> = shards.iter().filter_map(|file| Path::new(file).parent()).collect();
    for folder in folders {
        let listed = match store.list(&directory.join(folder)) {
            Err(error) if is_not_found(&error) => continue,
            listed => listed?,
        };
        for entry in listed.into_iter().filter(|entry| entry.kind == FileKind::File) {
            let Some(name) = folder.join(entry.name).to_str().map(str::to_owned) else { continue };
            let is_of = |file: &String| stem(file).is_some_and(|it| stem(&name) == Some(it));
            if !shards.contains(&name) && shards.iter().any(is_of) {
                files.insert(name);
            }
        }
    }
    Ok(files)
}

fn opened_files<T: Store>(store: &T, directory: &Path) -> Result<BTreeSet<String>> {
    let Ok(found) = locate(store, directory) else { return Ok(BTreeSet::new()) };
    let name = found.path().strip_prefix(directory).ok().and_then(Path::to_str);
    // Such as a foreign index further below, which belongs to an epoch.
    let Some(name) = name.filter(|name| Path::new(name).parent() == Some(Path::new(""))) else {
        return Ok(BTreeSet::new());
    };
    let mut files = BTreeSet::from([name.to_owned()]);
    if let CheckpointPath::Index(index) = &found {
        let index = unless_broken(Index::read_any(store, index, &highest_limits()).map(Some))?;
        files.extend(index.into_iter().flat_map(|index| index.shards.into_keys()));
    }
    Ok(files)
}

// A checkpoint that only opens with higher limits must stay loadable, too.
pub(crate) fn highest_limits() -> Limits {
    Limits {
        // The most that any reader accepts.
        header_bytes: u32::MAX.into(),
        tensors: usize::MAX,
        ndim: usize::MAX,
        metadata_entries: usize::MAX,
        index_bytes: u32::MAX.into(),
        index_entries: usize::MAX,
    }
}

/// `None` for a missing or malformed checkpoint.
fn unless_broken(found: Result<Option<Index>>) -> Result<Option<Index>> {
    match found {
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Io(_)
                    | ErrorKind::TooLargeForMemory { .. }
                    | ErrorKind::BadIndex { problem: IndexProblem::TooLarge { .. } }
            ) =>
        {
            Err(error)
        }
        Err(_) => Ok(None),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::store::LocalStore;
    use crate::checkpoint::tests::{Before, prepare};

    /// It opens with higher limits, so a save must keep it loadable.
    #[test]
    fn an_index_over_the_default_limits_is_a_checkpoint() {
        let directory = prepare(Before::Shards(2));
        let index = directory.path().join("model.safetensors.index.json");
        let text = fs::read_to_string(&index).unwrap();
        let (before, after) = text.split_once("\"metadata\": {").unwrap();
        // Maps are filled fastest from their end, with keys that differ early.
        let entries: String = (0..=Limits::default().index_entries)
            .rev()
            .map(|entry| format!("\"{entry:07}\": \"\",\n"))
            .collect();
        fs::write(&index, format!("{before}\"metadata\": {{{entries}{after}")).unwrap();
        Index::read(&LocalStore, &index, &Limits::default()).unwrap_err();
        let found = current(&LocalStore, directory.path(), Some(&index)).unwrap().unwrap();
        assert_eq!(found.shards.len(), 2);
    }

    #[test]
    fn an_index_that_is_too_large_to_read_stops_a_save() {
        let directory = prepare(Before::Shards(2));
        let index = directory.path().join("model.safetensors.index.json");
        fs::File::create(&index).unwrap().set_len(u64::from(u32::MAX) + 1).unwrap();
        let error = current(&LocalStore, directory.path(), Some(&index)).unwrap_err();
        let ErrorKind::BadIndex { problem } = error.kind() else { unreachable!("{error}") };
        assert!(matches!(problem, IndexProblem::TooLarge { .. }), "{error}");
    }
}
