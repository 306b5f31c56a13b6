//! [`Owned`] and [`Stale`]: the files of a directory that a save has written, and those that it may
//! remove.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::FilePattern;
use super::store::{LocalStore, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;
use crate::io::identity::Identity;

/// The files that a save puts into a directory. Each is recognised by its identity, because another
/// writer may have put its own file under the same name.
#[derive(Default)]
pub(super) struct Owned {
    files: Vec<(PathBuf, Identity)>,
    /// How many of them are in place.
    placed: usize,
}

impl Owned {
    /// Adds the file at `written`, which is about to be renamed to `destination`.
    pub(super) fn add(&mut self, written: &Path, destination: PathBuf) -> Result<()> {
        match Identity::at(written) {
            Ok(Some(identity)) => self.files.push((destination, identity)),
            Ok(None) => return Err(Error::io(io::ErrorKind::NotFound.into(), &destination)),
            Err(error) => return Err(Error::io(error, &destination)),
        }
        Ok(())
    }

    /// Remembers that the next file is in place.
    pub(super) fn place(&mut self) {
        self.placed += 1;
    }

    /// Checks that the last file that was put in place is still there. Another save would have
    /// replaced or removed it, with all before it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overtaken`]; [`ErrorKind::Io`].
    pub(super) fn check_last(&self, directory: &Path) -> Result<()> {
        check(&self.files[self.placed.saturating_sub(1)..self.placed], directory)
    }

    /// Checks that each name still leads to the file that was written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overtaken`] if another writer has put a file in the place of one of them;
    /// [`ErrorKind::Io`].
    pub(super) fn check(&self, directory: &Path) -> Result<()> {
        check(&self.files, directory)
    }
}

fn check(files: &[(PathBuf, Identity)], directory: &Path) -> Result<()> {
    for (path, identity) in files {
        let found = Identity::at(path).map_err(|error| Error::io(error, path))?;
        if found != Some(*identity) {
            return Err(overtaken(path, directory));
        }
    }
    Ok(())
}

/// The error if another writer has replaced a file of this save.
pub(super) fn overtaken(path: &Path, directory: &Path) -> Error {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Error::from(ErrorKind::Overtaken { file }).in_path(directory)
}

/// The names of every file of the pattern, except the new ones. The single file, which has no shard
/// number, comes first: the new index may count only without it.
pub(crate) fn stale_files(
    directory: &Path,
    pattern: &FilePattern,
    new: &[&str],
) -> Result<Vec<String>> {
    let names = LocalStore.list(directory)?.into_iter().map(|entry| entry.name);
    let mut names: Vec<_> =
        names.filter(|name| pattern.matches(name) && !new.contains(&name.as_str())).collect();
    let single = pattern.file_name(0, 1);
    names.sort_unstable_by(|a, b| (*a != single, a).cmp(&(*b != single, b)));
    Ok(names)
}

/// The files of an earlier checkpoint, which are removed when the new one is in place. They are
/// those that existed when the save began to change the directory. Files that other writers add
/// later stay, whatever their names.
pub(super) struct Stale {
    files: Vec<(PathBuf, Identity)>,
}

impl Stale {
    /// Finds the files of an earlier checkpoint, as [`stale_files`] names them.
    pub(super) fn find(directory: &Path, pattern: &FilePattern, new: &[&str]) -> Result<Self> {
        let mut stale = Self { files: Vec::new() };
        let names = stale_files(directory, pattern, new)?;
        names.iter().try_for_each(|name| stale.add(directory.join(name)))?;
        Ok(stale)
    }

    /// The paths of the files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().map(|(path, _)| path)
    }

    /// Adds a file, if it exists, to be removed last.
    pub(super) fn add(&mut self, path: PathBuf) -> Result<()> {
        let identity = Identity::at(&path).map_err(|error| Error::io(error, &path))?;
        self.files.extend(identity.map(|identity| (path, identity)));
        Ok(())
    }

    /// Adds the file at `written`, which is about to be renamed to `destination`, to be removed
    /// last.
    pub(super) fn add_written(&mut self, written: &Path, destination: PathBuf) -> Result<()> {
        let identity = Identity::at(written).map_err(|error| Error::io(error, &destination))?;
        self.files.extend(identity.map(|identity| (destination, identity)));
        Ok(())
    }

    /// Adds a file to be removed first.
    pub(super) fn add_first(&mut self, path: PathBuf, identity: Identity) {
        self.files.insert(0, (path, identity));
    }

    /// Whether this file is the first to be removed.
    pub(super) fn shadows(&self, file: &Path) -> bool {
        self.files.first().is_some_and(|(path, _)| path == file)
    }

    /// Removes the first file, if there is one. The new checkpoint does not open before that, so
    /// only an error after that is [`ErrorKind::LeftBehind`].
    pub(super) fn remove_first(&mut self, hidden: &Path) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let (path, identity) = self.files.remove(0);
        let gone = remove_own(&path, identity, hidden).map_err(|error| Error::io(error, &path))?;
        gone.map_err(|error| left_behind(error, &path))
    }

    /// Removes the files, each by way of the name `hidden`.
    pub(super) fn remove(&self, hidden: &Path) -> Result<()> {
        for (path, identity) in &self.files {
            let removed = remove_own(path, *identity, hidden).flatten();
            removed.map_err(|error| left_behind(error, path))?;
        }
        Ok(())
    }
}

/// The error if an old file could not be removed, and the new checkpoint is in place.
pub(super) fn left_behind(error: io::Error, path: &Path) -> Error {
    Error::from(ErrorKind::LeftBehind(error)).in_path(path)
}

/// Removes a file if it has this identity. Another writer could replace it between the check and
/// the removal. So it is first renamed to `hidden`, which no other writer uses, and checked again.
///
/// After the outer error the file is at its path, after the inner one it is not.
fn remove_own(path: &Path, identity: Identity, hidden: &Path) -> io::Result<io::Result<()>> {
    failpoint::hit("remove")?;
    if Identity::at(path)? != Some(identity) {
        return Ok(Ok(()));
    }
    match fs::rename(path, hidden) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(())),
        result => result?,
    }
    Ok(remove_hidden(path, identity, hidden))
}

fn remove_hidden(path: &Path, identity: Identity, hidden: &Path) -> io::Result<()> {
    failpoint::hit("remove the renamed file")?;
    if Identity::at(hidden)? == Some(identity) {
        return fs::remove_file(hidden);
    }
    // The renamed file is a new one of another writer. It gets its name back, unless that name is
    // taken again.
    match fs::hard_link(hidden, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::rename(hidden, path),
        _ => fs::remove_file(hidden),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_is_meant_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("model.safetensors"), "old").unwrap();
        fs::write(at("model-00001-of-00002.safetensors"), "old").unwrap();
        let pattern = FilePattern::default();
        let stale = Stale::find(directory.path(), &pattern, &["model-00002-of-00002.safetensors"]);
        fs::write(at("new"), "new").unwrap();
        fs::rename(at("new"), at("model-00001-of-00002.safetensors")).unwrap();
        fs::write(at("model-00003-of-00003.safetensors"), "later").unwrap();
        stale.unwrap().remove(&at("hidden")).unwrap();
        let mut left: Vec<_> = LocalStore.list(directory.path()).unwrap();
        left.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let left: Vec<_> = left.into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, ["model-00001-of-00002.safetensors", "model-00003-of-00003.safetensors"]);
        assert_eq!(fs::read_to_string(at(&left[0])).unwrap(), "new");
    }
}
