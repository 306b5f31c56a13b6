//! [`Staging`]: replacing a checkpoint of several files in steps. After each step the old or the
//! new checkpoint is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::current::current;
use super::destination::refuse_irreplaceable;
use super::directories::{NewDirectories, TempDirectory};
use super::index::Index;
use super::names::{STANDARD_FILE, set_aside};
use super::owned::{Owned, Stale, overtaken};
use super::store::{LocalStore, Store, Version};
use super::{Contention, FilePattern, ShardOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;
use crate::io::hidden::remove_header_backup;
use crate::io::identity::Identity;
use crate::io::lock::DirectoryLock;
use crate::io::unfinished::Steps;
use crate::save::SaveOptions;
use crate::save::atomic::{sync, sync_directory};
use crate::save::permissions::{Rights, take_over};

/// A new checkpoint, which is written into a hidden directory beside the one that it will replace.
///
/// Several files cannot be renamed at once, and new shards may have the names of old ones. So at
/// every moment a single file decides what the directory opens as: `model.safetensors` if it
/// exists, else the index. That file is replaced or removed in one step. No file changes while the
/// index names it.
///
/// 1. All new files are written, and have reached the disk, before anything else changes. Then the
///    directory is locked.
/// 2. If new shards need names that the current index uses, these old shards get a second name (a
///    hard link, or a copy if the file system has no links), and an index with the second names
///    replaces the current one. If there is no index, but one file of another name than
///    `model.safetensors`, an index of that file is written. Without it, the new shards would make
///    the directory ambiguous.
/// 3. The new files get their names. Nothing refers to them yet, unless the checkpoint is the one
///    file `model.safetensors`: then it opens from here on.
/// 4. The new index replaces the current one. A new checkpoint of one file also gets an index for
///    this step if the old one has an index.
/// 5. The files of the old checkpoint and the second names are removed. `model.safetensors` goes
///    first, because a directory that has it opens as it, and not by the index. If the new
///    checkpoint has one file, the index goes last.
///
/// A generation number in each name would be simpler, but the names would not be the Hub's.
/// After an interruption the next save takes the same steps, whatever index it finds, and removes
/// what was left behind. A process that reads the old index and then new shards notices that the
/// index has changed, and starts again (`opening.rs`).
///
/// On file systems without working locks, another save may take these steps at the same time. Each
/// save checks, before each renaming and at the end, that the index and its own files are still in
/// place, and fails if they are not. So it changes nothing more after another save is done. Each
/// removes only files that existed before it began.
pub(crate) struct Staging {
    directory: PathBuf,
    pattern: FilePattern,
    durable: bool,
    contention: Contention,
    /// The [`versions`](Self::versions) at the start, if they must not change until the save is
    /// done.
    before: Option<[Option<Version>; 2]>,
    temp: TempDirectory,
    /// The directories that were created for the checkpoint. They are removed if they are empty, so
    /// `temp`, which lies in them, must be dropped before: it comes first.
    made: NewDirectories,
    /// Which files may be replaced.
    save_options: SaveOptions,
    /// The rights of new files that replace no file of the same name: the rights of the old
    /// checkpoint's files.
    rights: Option<Rights>,
}

impl Staging {
    /// Prepares to save a checkpoint of these files to a directory, which is created if it does not
    /// exist.
    pub(crate) fn create(
        directory: &Path,
        files: &[String],
        options: &ShardOptions,
    ) -> Result<Self> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let save_options = &options.save_options;
        if directory.is_dir() {
            // The commit checks this again. Here it comes before hours of writing.
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            refuse_irreplaceable(directory, options.pattern(), &files, save_options)?;
        }
        let create = || {
            let made = NewDirectories::create_all(directory)?;
            failpoint::hit("create")?;
            let index = directory.join(options.pattern().index_name());
            Ok((TempDirectory::create(&index)?, made))
        };
        let (temp, made) = create().map_err(|error| Error::io(error, directory))?;
        let mut staging = Self {
            directory: directory.into(),
            pattern: options.pattern().clone(),
            durable: save_options.durable,
            save_options: save_options.clone(),
            contention: options.contention,
            before: None,
            temp,
            made,
            rights: None,
        };
        if staging.contention == Contention::Fail {
            // Another save that is under way is found before hours of writing, not after.
            drop(staging.lock()?);
            staging.before = Some(staging.versions());
        }
        Ok(staging)
    }

    /// The path to write a new file to.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.temp.path().join(file)
    }

    /// The final path of a file.
    pub(crate) fn destination(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Replaces the old checkpoint by the new one, whose files are all written. `check` is called
    /// before anything changes. If it fails, nothing changes.
    pub(crate) fn commit(mut self, new: &Index, check: impl FnOnce() -> Result<()>) -> Result<()> {
        // The lock ends before `self` does, which removes new directories if they are empty.
        let lock = self.lock()?;
        self.commit_locked(new, check, &lock)
    }

    /// [`commit`](Self::commit) by a caller who has locked the directory.
    pub(crate) fn commit_locked(
        &mut self,
        new: &Index,
        check: impl FnOnce() -> Result<()>,
        _lock: &DirectoryLock,
    ) -> Result<()> {
        let files: Vec<&str> = new.shards().map(|(file, _)| file).collect();
        let is_one_file = files == [self.pattern.file_name(0, 1)];
        let index = self.destination(&self.pattern.index_name());
        // All possible checks come before anything changes. An index is written for several files,
        // and for one file if the directory would open as the old index otherwise.
        let to_json = || new.to_json().map_err(|error| error.in_path(&index));
        let needs_index = !is_one_file || (files != [STANDARD_FILE] && identity(&index)?.is_some());
        let json = needs_index.then(to_json).transpose()?;
        if self.before.take().is_some_and(|before| before != self.versions()) {
            return Err(self.busy());
        }
        refuse_irreplaceable(&self.directory, &self.pattern, &files, &self.save_options)?;
        check()?;
        let mut stale = Stale::find(&self.directory, &self.pattern, &files)?;
        let replaced = files.iter().map(|file| self.destination(file)).chain([index.clone()]);
        self.rights = Rights::of_all(replaced.chain(stale.paths().cloned()));
        let mut owned = Owned::default();
        for file in &files {
            owned.add(&self.path(file), self.destination(file))?;
        }

        // Step 2.
        let _steps = Steps::begin();
        let mut current_index = identity(&index)?;
        let old = match current_index {
            Some(_) => current(&self.directory, Some(&index))?,
            // One new file needs no preparation: it replaces the old file, or lies beside it.
            None if is_one_file => None,
            None => current(&self.directory, None)?,
        };
        if let Some(old) = old {
            let in_the_way: Vec<&str> =
                files.iter().copied().filter(|file| old.shards.contains_key(*file)).collect();
            if current_index.is_none() || !in_the_way.is_empty() {
                current_index =
                    Some(self.move_aside(old, &in_the_way, &index, current_index, &mut stale)?);
            }
        }
        // Step 3.
        for file in &files {
            self.rename(&self.path(file), &self.destination(file), || {
                owned.check_last(&self.directory)?;
                self.check_index(&index, current_index)
            })?;
            owned.place();
        }
        // `model.safetensors` takes precedence over an index. Any other single file opens if there
        // is no index.
        let opens_without_index =
            is_one_file && (current_index.is_none() || files == [STANDARD_FILE]);
        if opens_without_index {
            // The new checkpoint is in place already.
            self.sync_new_names()?;
            self.check_placed(&owned)?;
        } else {
            self.sync_names()?;
            owned.check(&self.directory)?;
        }
        // Step 4. Readers refuse an index without tensors. So if one file without tensors replaces
        // a sharded checkpoint, the old index is removed and no other takes its place.
        let has_tensors = new.shards().any(|(_, names)| !names.is_empty());
        match current_index {
            Some(current_index) if opens_without_index || (is_one_file && !has_tensors) => {
                stale.add_first(index, current_index);
            }
            None if is_one_file => {}
            _ => {
                let json = json.map_or_else(to_json, Ok)?;
                let written = self.write_index(&json, &index)?;
                if is_one_file {
                    stale.add_written(&written, index.clone())?;
                } else {
                    owned.add(&written, index.clone())?;
                }
                self.rename(&written, &index, || self.check_index(&index, current_index))?;
            }
        }
        if !is_one_file && stale.shadows(&self.destination(STANDARD_FILE)) {
            // Step 5 begins. The directory opens as that file until it is removed.
            self.sync_names()?;
            stale.remove_first(&self.path("removed"))?;
        }
        // Step 5. The new checkpoint is in place. An error from here on is `NotDurable`,
        // `LeftBehind` or `Overtaken`.
        self.sync_new_names()?;
        stale.remove(&self.path("removed"))?;
        self.sync_new_names()?;
        if self.durable {
            self.made.sync().map_err(|error| self.not_durable(error))?;
        }
        self.check_placed(&owned)
    }

    /// Checks that the index is the one that was there before, or that there is none.
    fn check_index(&self, index: &Path, before: Option<Identity>) -> Result<()> {
        if identity(index)? == before { Ok(()) } else { Err(overtaken(index, &self.directory)) }
    }

    /// Checks that all files are where this save has put them. The new checkpoint is in place, so
    /// an error of looking for them must not look like that of a save that has changed nothing.
    fn check_placed(&self, owned: &Owned) -> Result<()> {
        owned.check(&self.directory).map_err(Error::in_place)
    }

    /// Locks the directory against other saves. Fails with [`ErrorKind::DirectoryBusy`] if another
    /// save holds the lock and this one must not wait.
    fn lock(&self) -> Result<DirectoryLock> {
        let lock = match self.contention {
            Contention::Wait => DirectoryLock::wait_for(&self.directory).map(Some),
            Contention::Fail => DirectoryLock::try_for(&self.directory),
        };
        lock.map_err(|error| Error::io(error, &self.directory))?.ok_or_else(|| self.busy())
    }

    fn busy(&self) -> Error {
        Error::from(ErrorKind::DirectoryBusy).in_path(&self.directory)
    }

    /// The current versions of the two files that decide what the directory opens as: the single
    /// file and the index.
    fn versions(&self) -> [Option<Version>; 2] {
        [self.pattern.file_name(0, 1), self.pattern.index_name()]
            .map(|name| LocalStore.version(&self.destination(&name)).unwrap_or(None))
    }

    /// Gives old shards second names, and replaces the index by one with these names. Returns the
    /// identity of that index.
    fn move_aside(
        &self,
        mut old: Index,
        in_the_way: &[&str],
        index: &Path,
        in_place: Option<Identity>,
        stale: &mut Stale,
    ) -> Result<Identity> {
        let mut aside = Aside { links: Vec::new() };
        for &file in in_the_way {
            let free = (1..).map(|number| set_aside(file, number));
            let Some(name) =
                free.into_iter().find(|name| self.destination(name).symlink_metadata().is_err())
            else {
                continue;
            };
            aside.links.push(self.link(file, &name)?);
            if let Some(names) = old.shards.remove(file) {
                old.shards.insert(name, names);
            }
        }
        // The second names must be on the disk before an index that relies on them.
        self.sync_names()?;
        let json = old.to_json().map_err(|error| error.in_path(index))?;
        let written = self.write_index(&json, index)?;
        let own = identity(&written)?;
        self.rename(&written, index, || self.check_index(index, in_place))?;
        // The index names the links now, so they must stay even if a later step fails.
        for link in aside.links.drain(..) {
            stale.add(link)?;
        }
        self.sync_names()?;
        own.ok_or_else(|| overtaken(index, &self.directory))
    }

    /// Gives a file of the directory a second name: a hard link, or a copy if the file system has
    /// no links.
    fn link(&self, file: &str, name: &str) -> Result<PathBuf> {
        let (from, to) = (self.destination(file), self.destination(name));
        if failpoint::hit("link").and_then(|()| fs::hard_link(&from, &to)).is_ok() {
            return Ok(to);
        }
        let copy = self.path(name);
        let copied = failpoint::hit("copy").and_then(|()| {
            // The copy is written through an open file, because some systems can synchronise only a
            // file that is open for writing.
            let mut file = File::create(&copy)?;
            io::copy(&mut File::open(&from)?, &mut file)?;
            if self.durable { sync(&file) } else { Ok(()) }
        });
        copied.map_err(|error| Error::io(error, &to))?;
        self.rename(&copy, &to, || Ok(()))?;
        Ok(to)
    }

    /// Writes an index under a temporary name, and returns its path.
    fn write_index(&self, json: &[u8], index: &Path) -> Result<PathBuf> {
        let temporary = self.path("index.json");
        let written = failpoint::hit("write the index").and_then(|()| {
            fs::write(&temporary, json)?;
            if self.durable { sync(&File::options().write(true).open(&temporary)?) } else { Ok(()) }
        });
        written.map_err(|error| Error::io(error, index))?;
        Ok(temporary)
    }

    /// Renames a file. If `to` is a link, the link is replaced and not the file that it leads to:
    /// in the Hub's cache other revisions of the model share that file.
    ///
    /// `check` is called just before. It finds another writer where locks have no effect.
    fn rename(&self, from: &Path, to: &Path, check: impl FnOnce() -> Result<()>) -> Result<()> {
        failpoint::hit("rename")
            .and_then(|()| take_over(from, to, self.rights))
            .map_err(|error| Error::io(error, to))?;
        check()?;
        fs::rename(from, to).map_err(|error| Error::io(error, to))?;
        remove_header_backup(to);
        Ok(())
    }

    /// Waits until the names in the directory have reached the disk, if the save is durable.
    fn sync_names(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        sync_directory(&self.directory).map_err(|error| Error::io(error, &self.directory))
    }

    /// [`sync_names`](Self::sync_names) when the new checkpoint is in place, which the error says.
    fn sync_new_names(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        sync_directory(&self.directory).map_err(|error| self.not_durable(error))
    }

    fn not_durable(&self, error: io::Error) -> Error {
        Error::from(ErrorKind::NotDurable(error)).in_path(&self.directory)
    }
}

/// The identity of the file at a path; `None` if there is none.
fn identity(path: &Path) -> Result<Option<Identity>> {
    Identity::at(path).map_err(|error| Error::io(error, path))
}

/// The second names of old shards. Those that no index names yet are removed when this is dropped.
struct Aside {
    links: Vec<PathBuf>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        for link in &self.links {
            // If this fails too, the next save removes them.
            let _ = failpoint::hit("remove").and_then(|()| fs::remove_file(link));
        }
    }
}
