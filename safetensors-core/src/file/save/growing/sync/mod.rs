//! Syncing: saves the steps so far, in case the process is killed.
//!
//! Each sync writes a file with the new tensors and steps. Files that a reader may open never
//! change, and nothing is synced twice.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::{fs, io};

use super::body::Home;
use super::finished::is_finished;
use super::series::{Series, SeriesState};
use super::steps::{Layers, write_layers};
use super::synced::{
    Growth, Listed, MARK, file_name, incomplete_directory, list, mark, synced_directory,
};
use super::{GrowingEntry, GrowingWriter, Shared, Whole, Writing};
use crate::file::io::failpoint;
use crate::file::io::hidden::directory;
use crate::file::io::identity::unless_missing;
use crate::file::io::lock::GrowingLock;
use crate::file::io::positional::read_exact_at;
use crate::file::save::SaveOptions;
use crate::file::save::atomic::{destination, sync_directory};
use crate::file::save::spec::Spec;
use crate::file::save::stream::StreamWriter;
use crate::file::save::temporary::{TempDirectory, lacks_space};
use crate::file::save::tensor_writer::TensorWriter;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{AXIS_PREFIX, CONTINUES_KEY};
use crate::format::parallel::lock;

/// The right to write to the directory and to its file.
#[derive(Debug)]
pub(super) struct Synced {
    /// After links.
    destination: PathBuf,
    directory: PathBuf,
    _lock: GrowingLock,
    /// Whether the files in it belong to this run.
    made: bool,
    files: u32,
}

struct News<'a> {
    entry: &'a GrowingEntry,
    /// Of a growing tensor.
    state: Option<MutexGuard<'a, SeriesState>>,
    shape: Vec<usize>,
}

impl GrowingWriter {
    /// Writes the tensors and steps since the last call to a file, and waits for the disk unless
    /// [`durable`](SaveOptions::durable) is off. If the process is killed, [`resume`](Self::resume)
    /// continues with them.
    ///
    /// For `run.safetensors` the files are `run.safetensors.synced/00000001.safetensors` and so on,
    /// readable each. Until [`finish`](Self::finish) removes the directory, synced steps are on the
    /// disk twice. If another program does, the next call writes everything again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SyncedStepsLeft`] if another run syncs to the directory;
    /// [`ErrorKind::AlreadyFinished`]; [`ErrorKind::Io`], after which the next sync writes the
    /// rest.
    pub fn sync(&self) -> Result<()> {
        let Self { shared } = self;
        let synced = shared.while_writing(|writing| shared.sync_files(writing));
        synced.map_err(|error| shared.locate(error))
    }
}

impl Shared {
    fn sync_files(&self, writing: &Writing) -> Result<()> {
        let mut synced = lock(&writing.synced);
        let (entries, mut metadata) = {
            let tensors = lock(&self.tensors);
            (tensors.list.clone(), tensors.metadata.clone())
        };
        if synced.is_lost() {
            synced.restart()?;
            entries.iter().for_each(|entry| forget(entry));
        }
        let mut news: Vec<_> = entries.iter().filter_map(News::new).collect();
        if news.is_empty() {
            return Ok(());
        }
        let specs: Vec<_> = news.iter().map(News::spec).collect();
        if writing.before.is_some() {
            metadata.insert(CONTINUES_KEY.into(), String::new());
        }
        for news in &news {
            if let GrowingEntry::Growing(series) = news.entry {
                let growth = Growth { axis: series.axis, kept: series.kept };
                metadata.insert(format!("{AXIS_PREFIX}{}", series.name), growth.to_string());
            }
        }
        let options = SaveOptions { metadata, durable: self.options.durable, ..SaveOptions::new() };
        writing.body.flush()?;
        synced.begin(options.durable)?;
        let path = synced.directory.join(file_name(synced.files + 1));
        let writer = StreamWriter::create_for(&path, &specs, &options)?;
        for news in &news {
            let name = news.entry.name();
            write_news(writing, news, writer.tensor(name)?)
                .map_err(|error| error.in_tensor(name))?;
        }
        writer.finish()?;
        synced.files += 1;
        news.iter_mut().for_each(News::mark);
        lock(&self.passes).sync();
        Ok(())
    }

    /// Syncs if a pass ends before the next step of this tensor, and there are enough new steps.
    pub(super) fn sync_if_due(&self, series: &Series, writing: &Writing) -> Result<()> {
        let sync_every = self.sync_every.load(Ordering::Relaxed);
        if sync_every == 0 {
            return Ok(());
        }
        let next = lock(&series.state).rank;
        let is_due = lock(&self.passes).is_due(next, sync_every);
        if is_due { self.sync_files(writing) } else { Ok(()) }
    }
}

fn write_news(writing: &Writing, news: &News<'_>, tensor: TensorWriter<'_>) -> Result<()> {
    let write = &mut |offset, bytes: &[u8]| tensor.write_bytes_at(offset, bytes);
    match (news.entry, &news.state) {
        (GrowingEntry::Whole(Whole { place, .. }), _) => {
            let (file, start) = writing.body.locate(&place.home, place.start)?;
            let read = |buf: &mut [u8], offset| read_exact_at(file, buf, start + offset);
            write_layers(Layers { outer: 1, inner: place.len }, 1, &read, write)
        }
        (GrowingEntry::Growing(series), Some(state)) => {
            series.write_steps(state, &writing.body, series.new_steps(state), write)
        }
        (GrowingEntry::Growing(_), None) => Ok(()),
    }
}

impl Synced {
    /// Fails if another run of `path` is alive.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let destination = destination(path)?;
        let lock = GrowingLock::try_for(&destination)?;
        let lock = lock.ok_or(ErrorKind::FileBusy)?;
        let directory = synced_directory(&destination);
        Ok(Self { destination, directory, _lock: lock, made: false, files: 0 })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Finds steps of an earlier run that are not in the file, or removes the directory.
    pub(super) fn find(&mut self) -> Result<Option<Listed>> {
        let Some(listed) = list(&self.directory)? else { return Ok(None) };
        self.files = listed.last;
        let is_empty = listed.last == 0 && listed.marked.is_none();
        if is_empty || is_finished(&self.destination, &self.directory, &listed)? {
            self.retire(false).map_err(|error| error.in_path(&self.directory))?;
            self.files = 0;
            return Ok(None);
        }
        Ok(Some(listed))
    }

    /// Continues the files of an earlier run.
    pub(super) fn take_over(&mut self) {
        self.made = true;
    }

    /// Returns `true` if another program has removed the first file, without which no step can be
    /// recovered.
    fn is_lost(&self) -> bool {
        let first = match self.files {
            0 => self.directory.clone(),
            _ => self.directory.join(file_name(1)),
        };
        self.made && matches!(first.try_exists(), Ok(false))
    }

    fn restart(&mut self) -> Result<()> {
        self.retire(false).map_err(|error| error.in_path(&self.directory))?;
        self.files = 0;
        self.made = false;
        Ok(())
    }

    /// Creates the directory, unless this run has.
    fn begin(&mut self, durable: bool) -> Result<()> {
        if self.made {
            return Ok(());
        }
        match fs::create_dir(&self.directory) {
            // Something else than steps can be there.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if list(&self.directory)?.is_some_and(|listed| listed.last > 0) {
                    return Err(self.left());
                }
            }
            created => created.map_err(|error| Error::io(error, &self.directory))?,
        }
        self.made = true;
        if durable {
            sync_directory(directory(&self.directory))
                .map_err(|error| Error::io(error, &self.directory))?;
        }
        Ok(())
    }

    pub(super) fn left(&self) -> Error {
        ErrorKind::SyncedStepsLeft { directory: self.directory.display().to_string() }.into()
    }

    pub(super) fn mark_finishing(&self, durable: bool) -> Result<()> {
        if !self.made || self.is_lost() {
            return Ok(());
        }
        mark(&self.directory, self.files, durable)
    }

    pub(super) fn sync_name(&self, durable: bool) -> Result<()> {
        let synced = if durable { sync_directory(directory(&self.destination)) } else { Ok(()) };
        Ok(synced.map_err(ErrorKind::NotDurable)?)
    }

    /// Removes the directory, under another name, because a part must not be taken for all of it.
    /// Without one, or with files of others, its files go one by one, the first ones and the mark
    /// last.
    pub(super) fn retire(&self, durable: bool) -> Result<()> {
        let Some(listed) = list(&self.directory)? else { return Ok(()) };
        let retire = || {
            failpoint::hit("remove synced steps")?;
            let trash = if listed.has_others { None } else { self.move_away()? };
            if trash.is_none() {
                let names = (1..=listed.last).rev().map(file_name).chain([MARK.into()]);
                for file in names.map(|name| self.directory.join(name)) {
                    failpoint::hit("remove a synced file")?;
                    unless_missing(fs::remove_file(file))?;
                }
                if listed.has_others {
                    return Ok(());
                }
                // Saves that were killed may have left hidden files.
                unless_missing(fs::remove_dir_all(&self.directory))?;
            }
            if durable { sync_directory(directory(&self.destination)) } else { Ok(()) }
        };
        Ok(retire()?)
    }

    /// Returns `None` if the disk is too full, or the file system cannot rename it.
    fn move_away(&self) -> io::Result<Option<TempDirectory>> {
        let moved = TempDirectory::create(&self.destination).and_then(|trash| {
            fs::rename(&self.directory, trash.path().join("synced"))?;
            Ok(trash)
        });
        match moved {
            Err(error) if lacks_space(&error) || error.kind() == io::ErrorKind::CrossesDevices => {
                Ok(None)
            }
            moved => moved.map(Some),
        }
    }

    /// Renames a directory that cannot be recovered.
    pub(super) fn set_aside(&self) -> Result<PathBuf> {
        let mut names = (1..).map(|number| incomplete_directory(&self.destination, number));
        let free = names.find(|name| name.symlink_metadata().is_err()).unwrap_or_default();
        failpoint::hit("set synced steps aside")
            .and_then(|()| fs::rename(&self.directory, &free))
            .map_err(|error| Error::io(error, &self.directory))?;
        Ok(free)
    }
}

impl<'a> News<'a> {
    /// Returns the new part, if there is one.
    fn new(entry: &'a Arc<GrowingEntry>) -> Option<Self> {
        match &**entry {
            GrowingEntry::Whole(whole) => {
                let is_new =
                    whole.written.load(Ordering::Acquire) && !whole.synced.load(Ordering::Relaxed);
                is_new.then(|| Self { entry, state: None, shape: whole.shape.clone() })
            }
            GrowingEntry::Growing(series) => {
                let state = lock(&series.state);
                let Range { start, end } = series.new_steps(&state);
                let shape = series.shape(end - start);
                let is_new = state.synced != Some(state.steps);
                is_new.then_some(Self { entry, state: Some(state), shape })
            }
        }
    }

    fn spec(&self) -> Spec<'_> {
        Spec { name: self.entry.name(), dtype: self.entry.dtype(), shape: &self.shape }
    }

    fn mark(&mut self) {
        match (self.entry, &mut self.state) {
            (GrowingEntry::Whole(whole), _) => whole.synced.store(true, Ordering::Relaxed),
            (GrowingEntry::Growing(_), Some(state)) => state.synced = Some(state.steps),
            (GrowingEntry::Growing(_), None) => {}
        }
    }
}

// A tensor of the file that is appended to needs no sync.
fn forget(entry: &GrowingEntry) {
    match entry {
        GrowingEntry::Whole(whole) => {
            whole.synced.store(matches!(whole.place.home, Home::Before), Ordering::Relaxed);
        }
        GrowingEntry::Growing(series) => lock(&series.state).synced = None,
    }
}
