//! [`Staging`]: a checkpoint of several files that takes the place of another in steps, each of which leaves one of the two whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::FilePattern;
use super::directories::{NewDirectories, TempDirectory};
use super::index::Index;
use super::locate::{CheckpointPath, list, locate};
use super::pattern::set_aside;
use crate::error::{Error, ErrorKind, Result};
use crate::header::Limits;
use crate::io::unfinished::Steps;
use crate::io::{FileSource, SafeTensors, failpoint};
use crate::save::SaveOptions;
use crate::save::atomic::{
    refuse_other_than_directory, remove_header_backup, replaceable, sync, sync_directory,
};
use crate::save::permissions::take_over;

/// A checkpoint that is being written into a hidden directory beside the one that it will replace.
///
/// Several files cannot be renamed at once, and the new shards may have the names of the old ones.
/// So the index is what decides at every moment: it is replaced by renaming, and no file that it
/// names is touched while it names it.
///
/// 1. All new files are written, and have reached the disk, before anything else changes.
/// 2. If the new shards need names that the index in place uses, those old shards get a second name
///    (a hard link, or a copy where the file system has no links), and an index with these second
///    names replaces the old one. If there is no index but one file, an index with that file is put
///    in place, so that the shards to come do not make the directory ambiguous.
/// 3. The new files get their names. Nothing refers to them yet.
/// 4. The new index replaces the one in place. From here on the new checkpoint is what opens. A
///    checkpoint of one file goes through an index too if it replaces one that has an index.
/// 5. Files of the old checkpoint and second names are removed, and at last the index, if the new
///    checkpoint has one file.
///
/// The names at the end are those of the Hub, which a generation number in each name would not be.
/// After an interruption the next save goes the same way from whatever index it finds, and clears
/// up. A process that reads the old index, and the shards only after they were replaced, is not
/// helped by this; nothing is that does not keep old shards forever.
pub(crate) struct Staging {
    directory: PathBuf,
    pattern: FilePattern,
    durable: bool,
    temp: TempDirectory,
    /// The directories that were made for it, which go if nothing is put into them. Dropped after
    /// the temporary one in them.
    made: NewDirectories,
    replace_read_only: bool,
}

impl Staging {
    /// Prepares to save a checkpoint to a directory, which is created if need be.
    pub(crate) fn create(
        directory: &Path,
        pattern: &FilePattern,
        options: &SaveOptions,
    ) -> Result<Self> {
        let SaveOptions { durable, replace_read_only, .. } = *options;
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let create = || {
            let made = NewDirectories::create_all(directory)?;
            failpoint::hit("create")?;
            Ok((TempDirectory::create(&directory.join(pattern.index_name()))?, made))
        };
        let (temp, made) = create().map_err(|error| Error::io(error, directory))?;
        Ok(Self {
            directory: directory.into(),
            pattern: pattern.clone(),
            durable,
            temp,
            made,
            replace_read_only,
        })
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
    /// has.
    pub(crate) fn commit(self, new: &Index) -> Result<()> {
        let files: Vec<&str> = new.shards().map(|(file, _)| file).collect();
        let single = files == [self.pattern.file_name(0, 1)];
        let index = self.destination(&self.pattern.index_name());
        // What can be refused is refused before anything changes.
        let json = new.to_json().map_err(|error| error.in_path(&index))?;
        for path in files.iter().map(|file| self.destination(file)).chain([index.clone()]) {
            refuse_other_than_files(&path)
                .and_then(|()| replaceable(&path, self.replace_read_only))
                .map_err(|error| error.in_path(&path))?;
        }
        let _steps = Steps::begin();
        let has_index = index.symlink_metadata().is_ok();
        if let Some(old) = self.current(has_index.then_some(&*index)) {
            let in_the_way: Vec<&str> =
                files.iter().copied().filter(|file| old.shards.contains_key(*file)).collect();
            let ambiguous = !has_index && !single;
            if ambiguous || (has_index && !in_the_way.is_empty()) {
                self.move_aside(old, &in_the_way, &index)?;
            }
        }
        for file in &files {
            self.rename(&self.path(file), &self.destination(file))?;
        }
        // An index of no tensors would be refused. If it is one file without tensors that replaces
        // a sharded checkpoint, there is nothing that could stand between the two.
        if !single
            || (index.symlink_metadata().is_ok()
                && new.shards().any(|(_, names)| !names.is_empty()))
        {
            self.sync_names()?;
            let written = self.write_index(&json, &index)?;
            self.rename(&written, &index)?;
        }
        // The new checkpoint is in its place. Errors from here on say so.
        self.sync_new_names()?;
        self.remove_stale(&files)?;
        if single {
            remove(&index).map_err(|error| left_behind(error, &index))?;
        }
        self.sync_new_names()?;
        if !self.durable {
            return Ok(());
        }
        let synced = self.made.sync();
        synced.map_err(|error| Error::from(ErrorKind::NotDurable(error)).in_path(&self.directory))
    }

    /// The checkpoint that the directory opens as, or that the pattern's index describes; nothing
    /// if it is not complete, as then there is nothing to keep loadable. A checkpoint without
    /// tensors counts for nothing here: no index can describe it.
    fn current(&self, index: Option<&Path>) -> Option<Index> {
        let current = match index {
            Some(index) => Index::read(index, &Limits::default()).ok()?,
            None => {
                let Ok(CheckpointPath::File(file)) = locate(&self.directory) else { return None };
                let archive = SafeTensors::from_source(FileSource::open(&file).ok()?).ok()?;
                let names: Vec<_> =
                    archive.tensors().map(|tensor| tensor.name().to_owned()).collect();
                let shards = BTreeMap::from([(file.file_name()?.to_str()?.to_owned(), names)]);
                Index { shards, ..Index::default() }
            }
        };
        let complete = current
            .shards()
            .all(|(file, names)| !names.is_empty() && self.destination(file).is_file());
        complete.then_some(current)
    }

    /// Gives old shards second names and puts an index with these in place.
    fn move_aside(&self, mut old: Index, in_the_way: &[&str], index: &Path) -> Result<()> {
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
        self.rename(&written, index)?;
        // From here on the index relies on them, whatever fails next.
        aside.links.clear();
        self.sync_names()
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
        let synced = sync_directory(&self.directory);
        synced.map_err(|error| Error::from(ErrorKind::NotDurable(error)).in_path(&self.directory))
    }

    /// Removes every file whose name is of the pattern, except the new ones.
    fn remove_stale(&self, files: &[&str]) -> Result<()> {
        let mut stale = list(&self.directory)?;
        stale.retain(|name| self.pattern.matches(name) && !files.contains(&name.as_str()));
        stale
            .iter()
            .map(|name| self.destination(name))
            .try_for_each(|path| remove(&path).map_err(|error| left_behind(error, &path)))
    }
}

/// The second names of old shards, which are removed again if no index comes to refer to them.
struct Aside {
    links: Vec<PathBuf>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        for link in &self.links {
            // Should this fail too, the next save removes them.
            let _ = remove(link);
        }
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match failpoint::hit("remove").and_then(|()| fs::remove_file(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn left_behind(error: io::Error, path: &Path) -> Error {
    Error::from(ErrorKind::LeftBehind(error)).in_path(path)
}

/// Checks whether a directory can have these files, which are named after the pattern, as far as
/// that is known beforehand.
///
/// One file has no index. It is found only if it is alone, so no other file of tensors may be there
/// and no other index.
pub(crate) fn check(directory: &Path, pattern: &FilePattern, files: &[&str]) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    // What is not there yet will be made in the nearest directory above that is.
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())
        .unwrap_or(Path::new("."));
    refuse_other_than_directory(there).map_err(|error| error.in_path(directory))?;
    let index = pattern.index_name();
    for path in files.iter().chain([&index.as_str()]).map(|file| directory.join(file)) {
        refuse_other_than_files(&path).map_err(|error| error.in_path(&path))?;
    }
    let &[file] = files else { return Ok(()) };
    if file != pattern.file_name(0, 1) || there != directory {
        return Ok(());
    }
    let mut others = list(directory)?;
    others.retain(|name| {
        let is_own = name == file || *name == index || pattern.matches(name);
        !is_own && CheckpointPath::from_name(name).is_some()
    });
    if others.is_empty() {
        return Ok(());
    }
    Err(Error::from(ErrorKind::NotAlone { file: file.into(), others }).in_path(directory))
}

/// Refuses to take the place of something that is neither a file nor a link.
fn refuse_other_than_files(path: &Path) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => "a directory",
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => "a special file",
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ErrorKind::Io(error).into());
        }
        _ => return Ok(()),
    };
    Err(ErrorKind::NotAFile { found }.into())
}
