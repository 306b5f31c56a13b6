//! [`Siblings`]: the files next to a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::index::Index;
use crate::checkpoint::store::{Boxed, FileKind, Store, StoreEntry, Version};
use crate::file::io::hidden::{BACKUP_MAGIC, header_backup};
use crate::file::io::{ReadAt, next_to};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;

/// A [`Store`] without its type of files, so that a [`Checkpoint`] can keep it. Only indexes and
/// small files are read from it.
pub(crate) type Siblings = dyn Store<File = Box<dyn ReadAt>>;

impl Siblings {
    fn files_of_index(&self, index: &Path) -> Result<Vec<PathBuf>> {
        Ok(Index::read(self, index, &Limits::default())?.paths_next_to(index))
    }

    /// Returns the bytes of a file, at most this many; `None` if there is none. Links on a local
    /// disk must not lead out of the directory, except links of the checkpoint's own file.
    pub(crate) fn read(&self, path: &Path, is_own: bool, most: u64) -> Result<Option<Vec<u8>>> {
        match self.kind(path) {
            Ok(Some(FileKind::File)) => {}
            Ok(_) => return Ok(None),
            // Credentials may allow some files only, as in a signed address.
            Err(error) if is_refused(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        if let (Some(home), Some(name), false) = (path.parent(), path.file_name(), is_own)
            && let Err(error) = next_to::find(home, name)
            // Nothing on the disk has the path of a file in another store.
            && matches!(error.kind(), ErrorKind::NotAFile { .. })
        {
            return Err(error);
        }
        let file = self.open(path)?;
        let len = file.byte_len();
        if len > most {
            let problem = format!("expected at most {most} bytes, found {len}");
            return Err(Error::io(std::io::Error::other(problem), path));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|error| Error::io(error, path))?;
        Ok(Some(bytes))
    }

    /// Returns the number of bytes of a file.
    pub(crate) fn byte_len(&self, path: &Path) -> Result<u64> {
        Ok(self.open(path)?.byte_len())
    }

    /// Writes the bytes of a file.
    pub(crate) fn copy(&self, path: &Path, out: &mut dyn Write) -> Result<()> {
        copy(&self.open(path)?, path, out)
    }

    /// Returns `true` if a file is a backup of a header; `false` if there is none, or if it cannot
    /// be read.
    fn is_header_backup(&self, path: &Path) -> bool {
        let mut found = [0; BACKUP_MAGIC.len()];
        let read = self.open(path).map(|file| file.read_exact_at(&mut found, 0));
        matches!(read, Ok(Ok(()))) && found == BACKUP_MAGIC
    }
}

pub(crate) fn copy(file: &impl ReadAt, path: &Path, out: &mut dyn Write) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let at = |error| Error::io(error, path);
    let mut piece = vec![0; file.byte_len().min(PIECE) as usize];
    let mut position = 0;
    while position < file.byte_len() {
        piece.truncate((file.byte_len() - position).min(PIECE) as usize);
        file.read_exact_at(&mut piece, position).map_err(at)?;
        out.write_all(&piece)?;
        position += piece.len() as u64;
    }
    file.check_unchanged().map_err(at)
}

pub(crate) fn is_refused(error: &Error) -> bool {
    let kind = std::io::ErrorKind::PermissionDenied;
    matches!(error.kind(), ErrorKind::Io(error) if error.kind() == kind)
}

impl<S: ReadAt> Checkpoint<S> {
    /// Checks that the files and the index have not changed since they were opened, as far as
    /// sources and store can detect: everything read before came from one checkpoint.
    pub fn check_unchanged(&self) -> Result<()> {
        if let (Some(index), Some(siblings)) = (&self.about.index, &self.about.siblings)
            && siblings.version(index)? != self.about.index_version
        {
            let error = std::io::Error::other("the index has changed since it was opened");
            return Err(Error::io(error, index));
        }
        self.files().iter().try_for_each(|shard| {
            let unchanged = shard.archive.source().check_unchanged();
            unchanged.map_err(|error| Error::from(ErrorKind::Io(error)).in_path(&shard.path))
        })
    }

    /// [Checks that nothing has changed](Self::check_unchanged) if a save to this file or directory
    /// would undo another writer's save.
    #[doc(hidden)]
    pub fn check_before_replacing(&self, place: impl AsRef<Path>) -> Result<()> {
        self.check_unchanged()?;
        // Nothing is there that could be undone.
        let Some(place) = canonical(place.as_ref()) else { return Ok(()) };
        for file in self.files() {
            let directory = file.path().parent().unwrap_or(Path::new(""));
            let is_place = |path: &Path| canonical(path).as_ref() == Some(&place);
            if !is_place(file.path()) && !is_place(directory) {
                continue;
            }
            let is_replaced = file.archive.source().is_replaced();
            if is_replaced.map_err(|error| Error::io(error, file.path()))? {
                let error = std::io::Error::other("the file has been replaced since it was opened");
                return Err(Error::io(error, file.path()));
            }
        }
        Ok(())
    }
}

fn canonical(path: &Path) -> Option<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::fs::canonicalize(path).ok()
}

impl<S> Checkpoint<S> {
    pub(crate) fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        self.about.siblings.as_ref().map_or(Ok(Vec::new()), |siblings| siblings.list(directory))
    }

    /// `None` also for an unknown version.
    pub(crate) fn version_of(&self, file: &Path) -> Option<Version> {
        self.about.siblings.as_ref()?.version(file).ok()?
    }

    /// Returns the path and the bytes of a small file next to the index or the first file, such as
    /// `config.json`; `None` if the store has none, or denies it.
    ///
    /// ```
    /// use safetensors_core::checkpoint::store::MemoryStore;
    /// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
    ///
    /// let bias = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let file = serialize([("bias", bias)], &SaveOptions::new())?;
    /// let files = [("gpt/model.safetensors", file), ("gpt/config.json", b"{}".to_vec())];
    /// let store = MemoryStore::from_iter(files);
    /// let checkpoint = Checkpoint::open_in(store, "gpt", &Limits::default())?;
    /// let (path, bytes) = checkpoint.read_beside("config.json", 1 << 20)?.unwrap();
    /// assert_eq!((path.to_str(), &*bytes), (Some("gpt/config.json"), &b"{}"[..]));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] for a file over `most` bytes; [`ErrorKind::NotAFile`], also for a link
    /// that leads out of the directory.
    pub fn read_beside(&self, name: &str, most: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
        self.catalog.read_beside(name, most)
    }

    /// Sets the store of the files next to the checkpoint's or, with `is_directory`, in its path.
    #[doc(hidden)]
    pub fn in_store(self, store: impl Store + 'static, is_directory: bool) -> Self {
        self.with_siblings(Arc::new(Boxed(store)), is_directory)
    }

    pub(crate) fn with_siblings(mut self, siblings: Arc<Siblings>, is_directory: bool) -> Self {
        let first = || self.files().first().map(|file| &*file.path);
        if let Some(path) = self.about.index.as_deref().or_else(first).map(Path::to_owned) {
            let siblings = Arc::clone(&siblings);
            self.about.home = match path.parent() {
                Some(home) if !is_directory => Some(home.to_owned()),
                _ => Some(path.clone()),
            };
            self.catalog.table.beside = Some(Arc::new(move |name, most| {
                let found = if is_directory { path.join(name) } else { path.with_file_name(name) };
                let bytes = siblings.read(&found, found == path, most)?;
                Ok(bytes.map(|bytes| (found, bytes)))
            }));
        }
        self.about.siblings = Some(siblings);
        self
    }

    // Opening an index that cannot be read gives its error.
    pub(crate) fn files_of_other_index(&self, index: &Path) -> Vec<PathBuf> {
        let files = self.about.siblings.as_ref().map(|siblings| siblings.files_of_index(index));
        files.and_then(Result::ok).unwrap_or_default()
    }

    pub(crate) fn header_backup_of(&self, file: &Path) -> Option<PathBuf> {
        let backup = header_backup(file);
        let is_there = self.about.siblings.as_ref()?.is_header_backup(&backup);
        is_there.then_some(backup)
    }

    pub(crate) fn shadowed_index(&self) -> Result<Option<PathBuf>> {
        let (Some(siblings), [shard], true) = (
            &self.about.siblings,
            self.files(),
            self.about.is_of_directory && self.about.index.is_none(),
        ) else {
            return Ok(None);
        };
        if shard.path.file_name() != Some(crate::checkpoint::names::STANDARD_FILE.as_ref()) {
            return Ok(None);
        }
        let index = shard.path.with_file_name(crate::checkpoint::names::STANDARD_INDEX);
        Ok((siblings.kind(&index)? == Some(FileKind::File)).then_some(index))
    }
}
