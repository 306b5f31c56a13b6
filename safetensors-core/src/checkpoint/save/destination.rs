//! Checks of a directory before a save.

use std::path::Path;

use crate::checkpoint::names::STANDARD_FILE;
use crate::checkpoint::open::opening::Opener;
use crate::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use crate::checkpoint::{CheckpointPath, FilePattern};
use crate::file::hash::{Change, check_records};
use crate::file::io::names::refuse_impossible;
use crate::file::save::SaveOptions;
use crate::file::save::atomic::{refuse_other_than_directory, refuse_special, replaceable};
use crate::file::save::cached::check_cached;
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::Limits;

/// Checks that files of the pattern can be saved to a directory, and that it then opens as them.
pub(crate) fn check(
    directory: &Path,
    pattern: &FilePattern,
    files: &[&str],
    options: &SaveOptions,
) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    refuse_long_names(directory, pattern)?;
    // A missing directory will be created in its nearest ancestor that exists.
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())
        .unwrap_or(Path::new("."));
    refuse_other_than_directory(there).map_err(|error| error.in_path(directory))?;
    if there != directory {
        return Ok(());
    }
    refuse_irreplaceable(directory, pattern, files, options)?;
    refuse_to_hide(directory)?;
    let index = pattern.index_name();
    let &[file] = files else { return Ok(()) };
    if file != pattern.file_name(0, 1) || file == STANDARD_FILE {
        return Ok(());
    }
    refuse_others(directory, file, |name| name == file || name == index || pattern.matches(name))
}

/// Fails for other files and indexes next to which `file` would not be found.
pub(crate) fn refuse_others(
    directory: &Path,
    file: &str,
    is_own: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut others = Vec::new();
    for StoreEntry { name, kind } in LocalStore.list(directory)? {
        if kind == FileKind::File && CheckpointPath::from_name(&name).is_some() && !is_own(&name) {
            others.push(name);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    refuse_to_hide(directory)?;
    others.sort_unstable();
    Err(Error::from(ErrorKind::NotAlone { file: file.into(), others }).in_path(directory))
}

/// Fails for parts of tensors: the directory would open as the new checkpoint next to them.
pub(crate) fn refuse_to_hide(directory: &Path) -> Result<()> {
    let opener = Opener { store: &LocalStore, limits: &Limits::default(), joins: false };
    let hides_parts = match CheckpointPath::find(directory) {
        Ok(CheckpointPath::Index(_)) => false,
        Ok(CheckpointPath::File(file)) => {
            file.file_name() != Some(STANDARD_FILE.as_ref()) && opener.has_parts(&file)
        }
        Err(error) => opener.is_of_parts(directory, &error),
    };
    if hides_parts {
        return Err(Error::from(RankProblem::HidesParts).in_path(directory));
    }
    Ok(())
}

pub(crate) fn refuse_long_names(directory: &Path, pattern: &FilePattern) -> Result<()> {
    let longest = directory.join(pattern.longest_name());
    refuse_impossible(&longest).map_err(|error| Error::io(error, &longest))
}

/// Fails for a directory, a special file, or one that must stay by the options.
pub(crate) fn refuse_irreplaceable(
    directory: &Path,
    pattern: &FilePattern,
    files: &[&str],
    options: &SaveOptions,
) -> Result<()> {
    let mut names: Vec<_> = files.iter().map(|&file| file.to_owned()).collect();
    names.push(pattern.index_name());
    names.extend(files_of(directory, pattern)?);
    for path in names.iter().map(|name| directory.join(name)) {
        refuse_special(path.symlink_metadata())
            .and_then(|()| replaceable(&path, options))
            .and_then(|_| check_cached(&path, options))
            .and_then(|_| check_records(&path, &path, Change::File))
            .map_err(|error| error.in_path(&path))?;
    }
    Ok(())
}

pub(crate) fn files_of(directory: &Path, pattern: &FilePattern) -> Result<Vec<String>> {
    let names = LocalStore.list(directory)?.into_iter().map(|entry| entry.name);
    Ok(names.filter(|name| pattern.matches(name)).collect())
}
