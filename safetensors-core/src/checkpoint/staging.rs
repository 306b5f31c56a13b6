//! [`Staging`]: a checkpoint of several files that takes the place of another in steps, each of
//! which leaves one of the two whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::current::current;
use super::destination::refuse_other_than_files;
use super::directories::{NewDirectories, TempDirectory};
use super::index::Index;
use super::names::{STANDARD_FILE, set_aside};
use super::owned::{Owned, Stale, overtaken};
use super::store::{LocalStore, Store, Version};
use super::{Contention, FilePattern, ShardOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;
use crate::io::identity::Identity;
use crate::io::lock::DirectoryLock;
use crate::io::unfinished::Steps;
use crate::save::atomic::{remove_header_backup, replaceable, sync, sync_directory};
use crate::save::permissions::take_over;

/// A checkpoint that is being written into a hidden directory beside the one that it will replace.
///
/// Several files cannot be renamed at once, and the new shards may have the names of the old ones.
/// So at every moment one file decides what opens, and is replaced or removed at once:
/// `model.safetensors` if it is there, or else the index. No file that the index names is touched
/// while it names it.
///
/// 1. All new files are written, and have reached the disk, before anything else changes. Then the
///    directory is locked.
/// 2. If the new shards need names that the index in place uses, those old shards get a second name
///    (a hard link, or a copy where the file system has no links), and an index with these second
///    names replaces the old one. If there is no index but one file of another name than
///    `model.safetensors`, an index with that file is put in place, so that the shards to come do
///    not make the directory ambiguous.
/// 3. The new files get their names. Nothing refers to them yet, unless the checkpoint is the one
///    file `model.safetensors`: then it opens from here on.
/// 4. The new index replaces the one in place. A checkpoint of one file goes through an index too
///    if it replaces one that has an index.
/// 5. Files of the old checkpoint and second names are removed, first `model.safetensors`, without
///    which the new index counts, and at last the index, if the new checkpoint has one file.
///
/// The names at the end are those of the Hub, which a generation number in each name would not be.
/// After an interruption the next save goes the same way from whatever index it finds, and clears
/// up. A process that reads the old index, and the shards only after they were replaced, sees that
/// the index has become another one, and begins anew (`opening.rs`).
///
/// Where the lock excludes nobody, another save may do the same in between. Each looks, before it
/// replaces the index and at the end, whether the files are those that it has written, and fails
/// if they are not. Each removes only what was there before it began.
pub(crate) struct Staging {
    directory: PathBuf,
    pattern: FilePattern,
    durable: bool,
    contention: Contention,
    /// What the directory had in the beginning, if it must not change until the save is done.
    before: Option<[Option<Version>; 2]>,
    temp: TempDirectory,
    /// The directories that were made for it, which go if nothing is put into them. Dropped after
    /// the temporary one in them.
    made: NewDirectories,
    replace_read_only: bool,
}

impl Staging {
    /// Prepares to save a checkpoint to a directory, which is created if need be.
    pub(crate) fn create(directory: &Path, options: &ShardOptions) -> Result<Self> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
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
            durable: options.save_options.durable,
            contention: options.contention,
            before: None,
            temp,
            made,
            replace_read_only: options.save_options.replace_read_only,
        };
        if staging.contention == Contention::Fail {
            // Somebody who is at it is found before hours of writing, not after.
            drop(staging.lock()?);
            staging.before = Some(staging.versions());
        }
        Ok(staging)
    }

    /// Where a new file is to be written.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.temp.path().join(file)
    }

    /// Where a file will be in the end: for messages.
    pub(crate) fn destination(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Puts the new checkpoint, whose files are all written, in the place of what the directory
    /// has, unless `check` fails, which is called before anything changes.
    pub(crate) fn commit(mut self, new: &Index, check: impl FnOnce() -> Result<()>) -> Result<()> {
        let files: Vec<&str> = new.shards().map(|(file, _)| file).collect();
        let single = files == [self.pattern.file_name(0, 1)];
        let index = self.destination(&self.pattern.index_name());
        // What can be refused is refused before anything changes.
        let json = new.to_json().map_err(|error| error.in_path(&index))?;
        let _lock = self.lock()?;
        if self.before.take().is_some_and(|before| before != self.versions()) {
            return Err(self.busy());
        }
        for path in files.iter().map(|file| self.destination(file)).chain([index.clone()]) {
            refuse_other_than_files(&path)
                .and_then(|()| replaceable(&path, self.replace_read_only))
                .map_err(|error| error.in_path(&path))?;
        }
        check()?;
        let mut stale = Stale::find(&self.directory, &self.pattern, &files)?;
        let mut owned = Owned::default();
        for file in &files {
            owned.add(&self.path(file), self.destination(file))?;
        }

        let _steps = Steps::begin();
        let mut in_place = identity(&index)?;
        let old = match in_place {
            Some(_) => current(&self.directory, Some(&index))?,
            // Before one file there is nothing to do: it is replaced, or stands beside another.
            None if single => None,
            None => current(&self.directory, None)?,
        };
        if let Some(old) = old {
            let in_the_way: Vec<&str> =
                files.iter().copied().filter(|file| old.shards.contains_key(*file)).collect();
            if in_place.is_none() || !in_the_way.is_empty() {
                in_place = Some(self.move_aside(old, &in_the_way, &index, &mut stale)?);
            }
        }
        for file in &files {
            self.rename(&self.path(file), &self.destination(file))?;
        }
        // `model.safetensors` opens before any index does, and any one file where there is no index.
        let opens = single && (in_place.is_none() || files == [STANDARD_FILE]);
        if opens {
            self.sync_new_names()?;
        } else {
            self.sync_names()?;
        }
        owned.check(&self.directory)?;
        if identity(&index)? != in_place {
            return Err(overtaken(&index, &self.directory));
        }
        // An index of no tensors would be refused. If it is one file without tensors that replaces
        // a sharded checkpoint, there is nothing that could stand between the two.
        let has_tensors = new.shards().any(|(_, names)| !names.is_empty());
        match in_place {
            Some(in_place) if opens || (single && !has_tensors) => {
                stale.add_first(index, in_place);
            }
            None if single => {}
            _ => {
                let written = self.write_index(&json, &index)?;
                if single {
                    stale.add_written(&written, index.clone())?;
                } else {
                    owned.add(&written, index.clone())?;
                }
                self.rename(&written, &index)?;
            }
        }
        if !single && stale.shadows(&self.destination(STANDARD_FILE)) {
            // Until that file is gone, the directory opens as it.
            self.sync_names()?;
            stale.remove_first(&self.path("removed"))?;
        }
        // The new checkpoint is in its place. Errors from here on say so.
        self.sync_new_names()?;
        stale.remove(&self.path("removed"))?;
        self.sync_new_names()?;
        if self.durable {
            self.made.sync().map_err(|error| self.not_durable(error))?;
        }
        owned.check(&self.directory)
    }

    /// Locks the directory against other saves, or says that somebody else has.
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

    /// The present versions of what decides which checkpoint the directory has.
    fn versions(&self) -> [Option<Version>; 2] {
        [self.pattern.file_name(0, 1), self.pattern.index_name()]
            .map(|name| LocalStore.version(&self.destination(&name)).unwrap_or(None))
    }

    /// Gives old shards second names and puts an index with these in place, whose identity it
    /// returns.
    fn move_aside(
        &self,
        mut old: Index,
        in_the_way: &[&str],
        index: &Path,
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
        self.rename(&written, index)?;
        // From here on the index relies on them, whatever fails next.
        for link in aside.links.drain(..) {
            stale.add(link)?;
        }
        self.sync_names()?;
        own.ok_or_else(|| overtaken(index, &self.directory))
    }

    /// Gives a file of the directory a second name: a link, or a copy where there are no links.
    fn link(&self, file: &str, name: &str) -> Result<PathBuf> {
        let (from, to) = (self.destination(file), self.destination(name));
        if failpoint::hit("link").and_then(|()| fs::hard_link(&from, &to)).is_ok() {
            return Ok(to);
        }
        let copy = self.path(name);
        let copied = failpoint::hit("copy").and_then(|()| {
            // Through a file that is open for writing: only such a one can be synchronised on every
            // system.
            let mut file = File::create(&copy)?;
            io::copy(&mut File::open(&from)?, &mut file)?;
            if self.durable { sync(&file) } else { Ok(()) }
        });
        copied.map_err(|error| Error::io(error, &to))?;
        self.rename(&copy, &to)?;
        Ok(to)
    }

    /// Writes an index, which does not have its name yet.
    fn write_index(&self, json: &[u8], index: &Path) -> Result<PathBuf> {
        let temporary = self.path("index.json");
        let written = failpoint::hit("write the index").and_then(|()| {
            fs::write(&temporary, json)?;
            if self.durable { sync(&File::options().write(true).open(&temporary)?) } else { Ok(()) }
        });
        written.map_err(|error| Error::io(error, index))?;
        Ok(temporary)
    }

    /// Gives a file another name. A link that has it is replaced itself, not what it leads to: in
    /// the Hub's cache that would be a file that other revisions of the model share.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        failpoint::hit("rename")
            .and_then(|()| take_over(from, to))
            .and_then(|()| fs::rename(from, to))
            .map_err(|error| Error::io(error, to))?;
        remove_header_backup(to);
        Ok(())
    }

    /// Waits until the directory's names have reached the disk, if that is asked for.
    fn sync_names(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        sync_directory(&self.directory).map_err(|error| Error::io(error, &self.directory))
    }

    /// [`sync_names`](Self::sync_names), when the new checkpoint is in its place.
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

/// The identity of what has a name; `None` if nothing has it.
fn identity(path: &Path) -> Result<Option<Identity>> {
    Identity::at(path).map_err(|error| Error::io(error, path))
}

/// The second names of old shards, which are removed again if no index comes to refer to them.
struct Aside {
    links: Vec<PathBuf>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        for link in &self.links {
            // Should this fail too, the next save removes them.
            let _ = failpoint::hit("remove").and_then(|()| fs::remove_file(link));
        }
    }
}
