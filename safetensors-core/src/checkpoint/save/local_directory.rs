//! [`LocalDirectory`]: a directory on disk to save to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::destination::{files_of, refuse_irreplaceable, refuse_long_names, refuse_to_hide};
use crate::checkpoint::store::{CopyFile, LocalStore, Store, Version, Versions, WritableDirectory};
use crate::checkpoint::{Contention, FilePattern, ShardOptions};
use crate::file::io::hidden::remove_header_backup;
use crate::file::io::identity::Identity;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::unfinished::Steps;
use crate::file::io::{FileSource, failpoint};
use crate::file::save::SaveOptions;
use crate::file::save::atomic::{sync, sync_directory};
use crate::file::save::directories::NewDirectories;
use crate::file::save::permissions::{Rights, rename_over, take_over};
use crate::file::save::temporary::TempDirectory;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::TensorSource;

/// A directory of the local disk, for [`save_sharded_to`](crate::checkpoint::save_sharded_to). New
/// files are written into a hidden directory in it, and get their names under a lock.
///
/// ```
/// use safetensors_core::checkpoint::{LocalDirectory, save_sharded_to};
/// use safetensors_core::{Checkpoint, ShardOptions, TensorView};
///
/// let dir = tempfile::tempdir()?;
/// let options = ShardOptions::new();
/// let mut directory = LocalDirectory::create(dir.path().join("new"), &options)?;
/// let bias = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// save_sharded_to(&mut directory, [("bias", bias)], &options)?;
/// assert_eq!(Checkpoint::open(dir.path().join("new"))?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(hidden)]
pub struct LocalDirectory {
    // Ends with the lock, before new directories are removed if they are empty.
    steps: Option<Steps>,
    lock: Option<DirectoryLock>,
    pub(crate) directory: PathBuf,
    pub(crate) options: ShardOptions,
    /// The [`versions`](Self::versions) that must not change until the save is done.
    before: Option<[Option<Version>; 2]>,
    /// No index has these yet.
    second_names: SecondNames,
    temp: TempDirectory,
    // Removed if they are empty, so `temp`, which is in them, is dropped before.
    made: NewDirectories,
    /// For new files that replace no file of the same name.
    rights: Option<Rights>,
    folders: BTreeSet<PathBuf>,
    is_locked_by_caller: bool,
    removed: usize,
}

impl LocalDirectory {
    /// Prepares to save to a directory, which is created if it does not exist, with the options of
    /// the save. Existing files that it would refuse are an error now.
    #[doc(hidden)]
    pub fn create(directory: impl AsRef<Path>, options: &ShardOptions) -> Result<Self> {
        let directory = directory.as_ref();
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        refuse_long_names(directory, options.pattern())?;
        if directory.is_dir() {
            // The commit checks this again. Here it comes before hours of writing.
            let beside = options.with_beside(&[]);
            refuse_irreplaceable(directory, options.pattern(), &beside, &options.save_options)?;
            refuse_to_hide(directory)?;
        }
        Self::prepare(directory, options)
    }

    fn prepare(directory: &Path, options: &ShardOptions) -> Result<Self> {
        let failed = |error| Error::io(error, directory);
        let made = NewDirectories::create_all(directory).map_err(failed)?;
        failpoint::hit("create").map_err(failed)?;
        let index = directory.join(options.pattern().index_name());
        let temp = TempDirectory::create(&index).map_err(failed)?;
        let mut created = Self {
            steps: None,
            lock: None,
            directory: directory.into(),
            options: options.clone(),
            before: None,
            second_names: SecondNames::default(),
            temp,
            made,
            rights: None,
            folders: BTreeSet::new(),
            is_locked_by_caller: false,
            removed: 0,
        };
        if options.contention == Contention::Fail {
            // Another save that is under way is found before hours of writing, not after.
            drop(created.lock()?);
            created.before = Some(created.versions());
        }
        Ok(created)
    }

    /// Like [`create`](Self::create), by a caller who keeps the lock until the end.
    pub(crate) fn create_locked(
        directory: &Path,
        options: &ShardOptions,
        _lock: &DirectoryLock,
    ) -> Result<Self> {
        // No other process is busy there, so nothing fails.
        let options = options.clone().contention(Contention::Wait);
        Ok(Self { is_locked_by_caller: true, ..Self::prepare(directory, &options)? })
    }

    /// Returns the hidden directory, to write files to that [`staged`](Self::staged) then names.
    #[doc(hidden)]
    pub fn staging(&self) -> &Path {
        self.temp.path()
    }

    pub(crate) fn hidden(&self, file: &str) -> PathBuf {
        self.temp.path().join(file)
    }

    pub(crate) fn destination(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    fn lock(&self) -> Result<DirectoryLock> {
        let lock = match self.options.contention {
            Contention::Wait => DirectoryLock::wait_for(&self.directory).map(Some),
            Contention::Fail => DirectoryLock::try_for(&self.directory),
        };
        lock.map_err(|error| Error::io(error, &self.directory))?.ok_or_else(|| self.busy())
    }

    fn busy(&self) -> Error {
        Error::from(ErrorKind::DirectoryBusy).in_path(&self.directory)
    }

    /// The versions of the single file and the index, which decide the checkpoint.
    fn versions(&self) -> [Option<Version>; 2] {
        let pattern = self.options.pattern();
        [pattern.file_name(0, 1), pattern.index_name()]
            .map(|name| LocalStore.version(&self.destination(&name)).unwrap_or(None))
    }

    pub(crate) fn save_options(&self) -> &SaveOptions {
        &self.options.save_options
    }

    /// Makes a hard link, or a copy where there are none.
    fn link(&self, file: &str, name: &str) -> Result<PathBuf> {
        let from = self.destination(file);
        let to = self.destination(name);
        if failpoint::hit("link").and_then(|()| fs::hard_link(&from, &to)).is_ok() {
            return Ok(to);
        }
        let copy = self.hidden(name);
        let copied = failpoint::hit("copy").and_then(|()| {
            // The copy is written through an open file, because some systems can synchronise only a
            // file that is open for writing.
            let mut file = File::create(&copy)?;
            let from = FileSource::open_now(&from).map_err(Error::through_io)?;
            io::copy(&mut from.file(), &mut file)?;
            if self.save_options().durable { sync(&file) } else { Ok(()) }
        });
        copied.map_err(|error| Error::io(error, &to))?;
        self.take_over(&copy, &to)?;
        rename(&copy, &to)?;
        Ok(to)
    }

    fn take_over(&self, from: &Path, to: &Path) -> Result<()> {
        failpoint::hit("rename")
            .and_then(|()| take_over(from, to, self.rights))
            .map_err(|error| Error::io(error, to))
    }
}

// A link is replaced, not its target: in the Hub's cache other revisions share that.
fn rename(from: &Path, to: &Path) -> Result<()> {
    rename_over(from, to).map_err(|error| Error::io(error, to))?;
    remove_header_backup(to);
    Ok(())
}

impl WritableDirectory for LocalDirectory {
    type Version = Identity;
    type Store = LocalStore;

    fn store(&self) -> &LocalStore {
        &LocalStore
    }

    fn path(&self) -> PathBuf {
        self.directory.clone()
    }

    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()> {
        let path = self.hidden(name);
        crate::file::save::save(&path, tensors, options)
            .map_err(|error| error.moved(&path, &self.destination(name)))
    }

    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        let copied = LocalStore::write(&self.hidden(name), copy, self.save_options().durable);
        copied.map_err(|error| error.in_path(self.destination(name)))
    }

    fn begin(&mut self, pattern: &FilePattern, new: &[&str]) -> Result<Versions<Identity>> {
        if !self.is_locked_by_caller {
            self.lock = Some(self.lock()?);
        }
        if self.before.take().is_some_and(|before| before != self.versions()) {
            return Err(self.busy());
        }
        let new = self.options.with_beside(new);
        refuse_irreplaceable(&self.directory, pattern, &new, self.save_options())?;
        if !self.is_locked_by_caller && !self.options.dcp {
            refuse_to_hide(&self.directory)?;
        }
        let found = self.files(pattern)?;
        self.rights = Rights::of_all(found.keys().map(|name| self.destination(name)));
        self.steps = Some(Steps::begin());
        Ok(found)
    }

    fn files(&self, pattern: &FilePattern) -> Result<Versions<Identity>> {
        let mut names = files_of(&self.directory, pattern)?;
        names.push(pattern.index_name());
        let mut found = BTreeMap::new();
        for name in names {
            if let Some(identity) = self.version_of(&name)? {
                found.insert(name, identity);
            }
        }
        Ok(found)
    }

    fn version_of(&self, name: &str) -> Result<Option<Identity>> {
        let path = self.destination(name);
        Identity::at(&path).map_err(|error| Error::io(error, &path))
    }

    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&Identity>)],
    ) -> Result<Option<Identity>> {
        let from = self.hidden(name);
        let to = self.destination(name);
        let own = Identity::at(&from).map_err(|error| Error::io(error, &to))?;
        if let Some(folder) = Path::new(name).parent().filter(|it| !it.as_os_str().is_empty()) {
            let folder = self.directory.join(folder);
            self.made.add(&folder).map_err(|error| Error::io(error, &folder))?;
            self.folders.insert(folder);
        }
        self.take_over(&from, &to)?;
        self.check_versions(others)?;
        rename(&from, &to)?;
        Ok(own)
    }

    fn take_back(&mut self, name: &str, version: &Identity) -> Result<()> {
        let path = self.destination(name);
        take_back(&path, &self.hidden(name), version).map_err(|error| Error::io(error, &path))
    }

    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()> {
        for (file, second) in names {
            let link = self.link(file, second)?;
            self.second_names.0.push(link);
        }
        Ok(())
    }

    fn replace(
        &mut self,
        name: &str,
        bytes: Vec<u8>,
        before: Option<&Identity>,
    ) -> Result<Option<Identity>> {
        let temporary = self.hidden(".index");
        let path = self.destination(name);
        let durable = self.save_options().durable;
        let written = failpoint::hit("write the index").and_then(|()| {
            let mut file = File::create(&temporary)?;
            io::Write::write_all(&mut file, &bytes)?;
            if durable { sync(&file) } else { Ok(()) }
        });
        let own = written.and_then(|()| Identity::at(&temporary));
        let own = own.map_err(|error| Error::io(error, &path))?;
        self.take_over(&temporary, &path)?;
        if self.version_of(name)?.as_ref() != before {
            return Ok(None);
        }
        rename(&temporary, &path)?;
        // The index names them now, so they must stay even if a later step fails.
        self.second_names.0.clear();
        Ok(own)
    }

    fn remove(&mut self, name: &str, version: &Identity) -> Result<()> {
        let path = self.destination(name);
        // Each has its own name, because a file that is open may keep it on Windows.
        self.removed += 1;
        let hidden = self.hidden(&format!(".removed-{}", self.removed));
        let removed = remove_own(&path, *version, &hidden);
        removed.map_err(|error| error.in_path(&path))?;
        remove_header_backup(&path);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if !self.save_options().durable {
            return Ok(());
        }
        // A directory comes after its subdirectories, because it has their names.
        let below = self.folders.iter().rev().flat_map(|folder| folder.ancestors());
        let below = below.filter(|it| it.starts_with(&self.directory) && **it != self.directory);
        for directory in below.chain([&*self.directory]) {
            sync_directory(directory).map_err(|error| Error::io(error, directory))?;
        }
        Ok(())
    }

    fn is_certain(&self) -> bool {
        true
    }

    fn release(&mut self) {
        self.steps = None;
        self.lock = None;
    }

    fn finish(&mut self) -> Result<()> {
        if !self.save_options().durable {
            return Ok(());
        }
        self.made.sync().map_err(|error| Error::io(error, &self.directory))
    }
}

/// Removed on drop.
#[derive(Default)]
struct SecondNames(Vec<PathBuf>);

impl Drop for SecondNames {
    fn drop(&mut self) {
        for link in &self.0 {
            // If this fails too, the next save removes them.
            let _ = failpoint::hit("remove").and_then(|()| fs::remove_file(link));
        }
    }
}

/// Removes a file of this identity. After [`ErrorKind::LeftBehind`] it is not at its path.
fn remove_own(path: &Path, identity: Identity, hidden: &Path) -> Result<()> {
    failpoint::hit("remove")?;
    if Identity::at(path)? != Some(identity) {
        return Ok(());
    }
    match fs::rename(path, hidden) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    }
    remove_hidden(path, identity, hidden).map_err(|error| ErrorKind::LeftBehind(error).into())
}

fn remove_hidden(path: &Path, identity: Identity, hidden: &Path) -> io::Result<()> {
    failpoint::hit("remove the renamed file")?;
    if Identity::at(hidden)? == Some(identity) {
        return fs::remove_file(hidden);
    }
    give_back(hidden, path)
}

/// Renames a file of this version to its hidden name; another one stays.
fn take_back(path: &Path, hidden: &Path, version: &Identity) -> io::Result<()> {
    failpoint::hit("take back")?;
    if Identity::at(path)? != Some(*version) {
        return Ok(());
    }
    fs::rename(path, hidden)?;
    if Identity::at(hidden)? == Some(*version) { Ok(()) } else { give_back(hidden, path) }
}

/// Renames another writer's new file back, unless its name is taken by now.
fn give_back(hidden: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(hidden, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::rename(hidden, path),
        _ => fs::remove_file(hidden),
    }
}

impl std::fmt::Debug for LocalDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalDirectory").field(&self.directory).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_is_meant_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("model.safetensors"), "old").unwrap();
        fs::write(at("model-00001-of-00002.safetensors"), "old").unwrap();
        let mut directory = LocalDirectory::create(dir.path(), &ShardOptions::new()).unwrap();
        let found = directory.files(&FilePattern::default()).unwrap();
        assert_eq!(found.len(), 2);
        fs::write(at("new"), "new").unwrap();
        fs::rename(at("new"), at("model-00001-of-00002.safetensors")).unwrap();
        found.iter().for_each(|(name, version)| directory.remove(name, version).unwrap());
        let left = files_of(dir.path(), &FilePattern::default()).unwrap();
        assert_eq!(left, ["model-00001-of-00002.safetensors"]);
        assert_eq!(fs::read_to_string(at(&left[0])).unwrap(), "new");
    }
}
