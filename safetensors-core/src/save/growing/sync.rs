//! Syncing: saves the steps so far, in case the process is killed.
//!
//! Each sync writes one safetensors file with the new tensors and steps, as atomically and durably
//! as any other save. Files that a reader may open never change, and nothing is synced twice.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::{fs, io};

use super::body::Home;
use super::series::{Series, SeriesState};
use super::synced::{Growth, file_name, last_file, synced_directory};
use super::{GrowingEntry, GrowingWriter, Whole, finished};
use crate::error::{Error, ErrorKind, Result};
use crate::header::{AXIS_PREFIX, CONTINUES_KEY};
use crate::io::hidden::directory;
use crate::io::lock::GrowingLock;
use crate::io::positional::read_exact_at;
use crate::load::streaming::PIECE;
use crate::save::SaveOptions;
use crate::save::atomic::{destination, sync_directory};
use crate::save::spec::Spec;
use crate::save::stream::StreamWriter;
use crate::save::tensor_writer::TensorWriter;

/// The directory of synced steps, and the right to write to it and to its file.
#[derive(Debug)]
pub(super) struct Synced {
    directory: PathBuf,
    _lock: GrowingLock,
    /// Whether this run has created it.
    made: bool,
    /// The number of files in it.
    files: u32,
}

/// A new tensor, or the new steps of one.
enum News<'a> {
    Whole(&'a Whole),
    Steps(&'a Series, MutexGuard<'a, SeriesState>),
}

impl GrowingWriter {
    /// Writes all tensors and steps that are new since the last call to a separate file, and waits
    /// until the file has reached the disk (unless [`durable`](SaveOptions::durable) is off). If
    /// the process is killed afterwards, [`recover_synced`](super::recover_synced) restores them.
    ///
    /// For `run.safetensors` the files are `run.safetensors.synced/00000001.safetensors` and so on.
    /// Each is a complete file that every reader can open. It has the tensors that were added or
    /// began to grow since the file before it, and the new steps of each growing tensor.
    /// [`finish`](Self::finish) removes the directory. Until then, all synced steps are on the disk
    /// twice. If another program removes the directory, the next call writes everything again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SyncedStepsLeft`] if another run syncs to the same directory;
    /// [`ErrorKind::Io`]. Earlier files stay. The next sync writes what this one did not.
    pub fn sync(&self) -> Result<()> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let (entries, mut metadata) = {
            let tensors = self.lock();
            (tensors.list.clone(), tensors.metadata.clone())
        };
        if synced.is_lost() {
            synced.restart()?;
            entries.iter().for_each(|entry| forget(entry));
        }
        let mut news: Vec<_> = entries.iter().filter_map(News::of).collect();
        if news.is_empty() {
            return Ok(());
        }
        let shapes: Vec<_> = news.iter().map(News::shape).collect();
        let specs: Vec<_> =
            news.iter().zip(&shapes).map(|(news, shape)| news.spec(shape)).collect();
        if self.before.is_some() {
            metadata.insert(CONTINUES_KEY.into(), String::new());
        }
        for news in &news {
            if let News::Steps(series, _) = news {
                let growth = Growth { axis: series.axis, kept: series.kept_steps() };
                metadata.insert(format!("{AXIS_PREFIX}{}", series.name), growth.to_string());
            }
        }
        let options = SaveOptions { metadata, durable: self.options.durable, ..SaveOptions::new() };
        let write = |synced: &mut Synced| {
            self.body.flush().map_err(ErrorKind::Io)?;
            synced.begin(options.durable)?;
            let path = synced.directory.join(file_name(synced.files + 1));
            let writer = StreamWriter::create_for(&path, &specs, &options)?;
            for news in &news {
                let tensor = writer.tensor(news.name())?;
                self.write_news(news, tensor).map_err(|error| error.in_tensor(news.name()))?;
            }
            writer.finish()?;
            synced.files += 1;
            Ok(())
        };
        write(&mut synced).map_err(|error: Error| error.in_path(&self.path))?;
        news.iter_mut().for_each(News::mark);
        Ok(())
    }

    /// Syncs if this tensor, which is about to grow, has grown enough since it was synced.
    pub(super) fn sync_if_due(&self, series: &Series) -> Result<()> {
        if self.sync_every == 0 {
            return Ok(());
        }
        let is_due = {
            let state = series.lock();
            state.steps - series.new_steps(&state).start >= self.sync_every
        };
        if is_due { self.sync() } else { Ok(()) }
    }

    fn write_news(&self, news: &News<'_>, tensor: TensorWriter<'_>) -> Result<()> {
        match news {
            News::Whole(whole) => {
                let file = self.body.file_of(&whole.place.home);
                let mut buffer = vec![0; whole.place.len.min(PIECE as u64) as usize];
                for start in (0..whole.place.len).step_by(PIECE) {
                    let piece = &mut buffer[..(whole.place.len - start).min(PIECE as u64) as usize];
                    let from = whole.place.start + start;
                    read_exact_at(file, piece, from).map_err(ErrorKind::Io)?;
                    tensor.write_bytes_at(start, piece)?;
                }
                Ok(())
            }
            News::Steps(series, state) => {
                let write = &mut |offset, bytes: &[u8]| tensor.write_bytes_at(offset, bytes);
                series.write_steps(state, &self.body, series.new_steps(state), write)
            }
        }
    }
}

impl Synced {
    /// The directory of a run that writes to `path`, or an error if another run is alive.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let lock = GrowingLock::try_for(&destination(path)?).map_err(ErrorKind::Io)?;
        let lock = lock.ok_or(ErrorKind::FileBusy)?;
        Ok(Self { directory: synced_directory(path), _lock: lock, made: false, files: 0 })
    }

    /// [`new`](Self::new), or an error if an earlier run has left steps there.
    pub(super) fn in_place_of(path: &Path) -> Result<Self> {
        let synced = Self::new(path)?;
        // A run that was killed before its first sync leaves an empty directory.
        if fs::remove_dir(&synced.directory).is_ok() || !synced.directory.is_dir() {
            return Ok(synced);
        }
        if !finished::is_finished(path, &synced.directory)? {
            return Err(synced.left());
        }
        let files = last_file(&synced.directory)?.unwrap_or(0);
        finished::remove(&synced.directory, files)
            .map_err(|error| Error::io(error, &synced.directory))?;
        Ok(synced)
    }

    /// Whether this run has synced steps, and another program has removed them. Without the first
    /// file, none can be recovered.
    fn is_lost(&self) -> bool {
        let first = match self.files {
            0 => self.directory.clone(),
            _ => self.directory.join(file_name(1)),
        };
        self.made && matches!(first.try_exists(), Ok(false))
    }

    /// Forgets what this run has synced.
    fn restart(&mut self) -> Result<()> {
        finished::remove_files(&self.directory, self.files)
            .map_err(|error| Error::io(error, &self.directory))?;
        self.files = 0;
        self.made = self.directory.is_dir();
        Ok(())
    }

    /// Creates the directory, unless this run has done so.
    fn begin(&mut self, durable: bool) -> Result<()> {
        if self.made {
            return Ok(());
        }
        fs::create_dir(&self.directory).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.left(),
            _ => Error::io(error, &self.directory),
        })?;
        self.made = true;
        if durable {
            sync_directory(directory(&self.directory))
                .map_err(|error| Error::io(error, &self.directory))?;
        }
        Ok(())
    }

    fn left(&self) -> Error {
        ErrorKind::SyncedStepsLeft { directory: self.directory.display().to_string() }.into()
    }

    /// Says that the finished file is about to be put in place.
    pub(super) fn mark_finishing(&self, durable: bool) -> Result<()> {
        if !self.made || self.is_lost() {
            return Ok(());
        }
        finished::mark(&self.directory, self.files, durable)
    }

    /// Removes the files. The finished file has all of their tensors.
    pub(super) fn remove(self) -> Result<()> {
        if !self.made {
            return Ok(());
        }
        let removed = finished::remove(&self.directory, self.files);
        removed.map_err(|error| Error::from(ErrorKind::LeftBehind(error)).in_path(&self.directory))
    }
}

impl<'a> News<'a> {
    /// The new part of a tensor, if there is one.
    fn of(entry: &'a Arc<GrowingEntry>) -> Option<Self> {
        match &**entry {
            GrowingEntry::Whole(whole) => {
                let is_new =
                    whole.written.load(Ordering::Acquire) && !whole.synced.load(Ordering::Relaxed);
                is_new.then_some(Self::Whole(whole))
            }
            GrowingEntry::Growing(series) => {
                let state = series.lock();
                (state.synced != Some(state.steps)).then_some(Self::Steps(series, state))
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Whole(whole) => &whole.name,
            Self::Steps(series, _) => &series.name,
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Self::Whole(whole) => whole.shape.clone(),
            Self::Steps(series, state) => {
                let Range { start, end } = series.new_steps(state);
                series.shape(end - start)
            }
        }
    }

    fn spec<'s>(&'s self, shape: &'s [usize]) -> Spec<'s> {
        let dtype = match self {
            Self::Whole(whole) => whole.dtype,
            Self::Steps(series, _) => series.dtype,
        };
        Spec { name: self.name(), dtype, shape }
    }

    /// Remembers that it was synced.
    fn mark(&mut self) {
        match self {
            Self::Whole(whole) => whole.synced.store(true, Ordering::Relaxed),
            Self::Steps(_, state) => state.synced = Some(state.steps),
        }
    }
}

/// Forgets that a tensor was synced. One of the file that is appended to needs no sync.
fn forget(entry: &GrowingEntry) {
    match entry {
        GrowingEntry::Whole(whole) => {
            whole.synced.store(matches!(whole.place.home, Home::Before(_)), Ordering::Relaxed);
        }
        GrowingEntry::Growing(series) => series.lock().synced = None,
    }
}
