//! [`Destination`]: the directory of a new delta, or of the result of deltas.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, WritableDirectory};
use safetensors_core::checkpoint::{CheckpointPath, FilePattern, LocalDirectory, OtherFiles};
use safetensors_core::{
    Checkpoint, Error, ErrorKind as CoreKind, ReadAt, Result, SaveOptions, ShardOptions,
};

use crate::format::{FILE, INDEX};
use crate::options::Options;
use crate::published::UNFINISHED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum New {
    Delta,
    Checkpoint,
}

/// New files in a hidden directory, which take their places together. Other files stay.
pub(crate) struct Destination {
    directory: LocalDirectory,
    path: PathBuf,
    options: Options,
    main: String,
    /// The other new files, in the order of their renames.
    beside: Vec<String>,
    pub(crate) left_out: Vec<PathBuf>,
}

impl Options {
    /// Checks, as [`make`](crate::make()) does, that a delta may be written to the directory.
    ///
    /// # Errors
    ///
    /// [`NotADelta`](CoreKind::NotADelta) if the directory has a checkpoint;
    /// [`FileExists`](CoreKind::FileExists) if it has a delta and [`Options::overwrite`] is off.
    pub fn check_delta(&self, directory: impl AsRef<Path>) -> Result<()> {
        self.check_destination(directory.as_ref(), New::Delta)
    }

    /// A delta replaces only a delta, a checkpoint only a checkpoint.
    pub(crate) fn create(&self, directory: &Path, new: New) -> Result<Destination> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        if new == New::Delta {
            self.check_reader()?;
        }
        self.check_destination(directory, new)?;
        let each = SaveOptions::new().durable(self.durable).overwrite(self.overwrite);
        let options = ShardOptions::new().save_options(each.replace_read_only(self.overwrite));
        Ok(Destination {
            directory: LocalDirectory::create(directory, &options)?,
            path: directory.to_owned(),
            options: self.clone(),
            main: String::new(),
            beside: Vec::new(),
            left_out: Vec::new(),
        })
    }

    pub(crate) fn check_free(&self, path: &Path) -> Result<()> {
        if !self.overwrite && fs::symlink_metadata(path).is_ok() {
            return Err(Error::from(CoreKind::FileExists).in_path(path));
        }
        Ok(())
    }

    /// Files that open as neither a checkpoint nor a delta stay.
    pub(crate) fn check_destination(&self, directory: &Path, new: New) -> Result<()> {
        let at = |error: Error| error.in_path(directory);
        match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => _ = listed.map_err(|error| at(error.into()))?,
        }
        let found = match CheckpointPath::find(directory) {
            // A delta with files of tensors next to it cannot be opened.
            Err(error) => match error.kind() {
                CoreKind::NoCheckpoint { found, .. }
                    if found.is_empty() || new == New::Checkpoint =>
                {
                    return Ok(());
                }
                _ => return Err(error),
            },
            Ok(found) => found,
        };
        if !self.overwrite {
            return Err(at(CoreKind::FileExists.into()));
        }
        let (CheckpointPath::File(path) | CheckpointPath::Index(path)) = &found;
        // An epoch of a training opens as the delta below it.
        let is_below = path.parent() != Some(directory);
        match (found.files(), new) {
            (Ok(_), New::Checkpoint) => Ok(()),
            (Ok(_), New::Delta) => Err(at(CoreKind::NotADelta.into())),
            (Err(error), New::Delta)
                if matches!(error.kind(), CoreKind::IsDelta { .. }) && !is_below =>
            {
                Ok(())
            }
            (Err(error), _) => Err(error),
        }
    }
}

impl Destination {
    pub(crate) fn staging(&self) -> &Path {
        self.directory.staging()
    }

    pub(crate) fn locate(&self, error: Error) -> Error {
        self.directory.locate(error)
    }

    /// Fails if the directory would not open as the new checkpoint, or a file must not be replaced.
    pub(crate) fn set_main(&mut self, main: &str, files: &[String]) -> Result<()> {
        self.main = main.to_owned();
        files
            .iter()
            .map(String::as_str)
            .chain([main])
            .try_for_each(|file| self.check_free(file))?;
        check_alone(&self.path, main, files)
    }

    pub(crate) fn add(&mut self, name: String) {
        self.beside.push(name);
    }

    pub(crate) fn put_first(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.staging().join(name);
        fs::write(&path, text).map_err(|error| Error::from(error).in_path(path))?;
        self.beside.insert(0, name.into());
        Ok(())
    }

    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let main = CheckpointPath::find(self.staging().join(&self.main))?;
        let mut files = Vec::new();
        for file in main.files()? {
            let name = file.strip_prefix(self.staging()).unwrap_or(&file);
            files.push(name.to_string_lossy().into_owned());
        }
        files.sort_unstable();
        Ok(files)
    }

    pub(crate) fn copy(&mut self, others: &OtherFiles) -> Result<()> {
        for name in others.names() {
            self.directory.write_other(name, &|out| others.write_to(name, out))?;
            self.add(name.to_owned());
        }
        self.left_out = others.left_out().to_vec();
        Ok(())
    }

    /// Skips files that are added. Replaces existing ones.
    pub(crate) fn copy_other_files<S: ReadAt>(&mut self, version: &Checkpoint<S>) -> Result<()> {
        let mut others = OtherFiles::new(version, &self.path)?;
        others.leave(|name| name.ends_with(UNFINISHED));
        self.beside.iter().for_each(|name| others.remove(name));
        others.names().try_for_each(|name| self.check_free(name))?;
        self.copy(&others)
    }

    pub(crate) fn check_free(&self, name: &str) -> Result<()> {
        self.options.check_free(&self.path.join(name))
    }

    /// Returns the files not copied. Fails if another writer has replaced `seen`, which was read.
    pub(crate) fn commit<B: ReadAt>(self, seen: Option<&Checkpoint<B>>) -> Result<Vec<PathBuf>> {
        let Self { mut directory, path, main, beside, left_out, .. } = self;
        let mut staged = directory.staged(&main, beside)?;
        staged.begin()?;
        if let Some(seen) = seen {
            seen.check_before_replacing(path)?;
        }
        staged.commit()?;
        Ok(left_out)
    }
}

/// `main`: the single file or index.
pub(crate) fn check_alone(directory: &Path, main: &str, files: &[String]) -> Result<()> {
    if [FILE, INDEX].contains(&main) {
        return Ok(());
    }
    let is_index = matches!(CheckpointPath::from_name(main), Some(CheckpointPath::Index(_)));
    let stem = main.split(".safetensors").next().unwrap_or(main);
    let pattern = format!("{stem}{{suffix}}.safetensors").parse::<FilePattern>().ok();
    let mut others: Vec<_> = LocalStore.list(directory)?;
    others.retain(|entry| {
        let is_other = match CheckpointPath::from_name(&entry.name) {
            Some(CheckpointPath::Index(_)) => true,
            Some(CheckpointPath::File(_)) => !is_index || entry.name == FILE,
            None => false,
        };
        let is_own = entry.name == main
            || files.contains(&entry.name)
            || pattern.as_ref().is_some_and(|pattern| {
                pattern.matches(&entry.name) || pattern.index_name() == entry.name
            });
        entry.kind == FileKind::File && is_other && !is_own
    });
    if others.is_empty() {
        return Ok(());
    }
    let others = others.into_iter().map(|entry| entry.name).collect();
    Err(Error::from(CoreKind::NotAlone { file: main.into(), others }).in_path(directory))
}
