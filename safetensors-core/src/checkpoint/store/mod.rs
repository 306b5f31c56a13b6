//! [`Store`]: the place of a checkpoint's files.
//!
//! [`Checkpoint::open`](crate::Checkpoint::open) opens files of the local disk,
//! [`Checkpoint::open_in`](crate::Checkpoint::open_in) files in memory ([`MemoryStore`]) or in any
//! other [`Store`].

mod async_file;
mod async_store;
mod fetch;
mod local;
mod memory;
mod writable;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use async_file::AsyncFile;
pub(super) use async_file::is_not_fetched;
pub use async_store::{AsyncStore, Fetched};
pub use local::LocalStore;
pub(super) use local::{OpenedBy, is_not_found};
pub use memory::{MemoryFile, MemoryStore};
pub use writable::{CopyFile, Versions, WritableDirectory};

use crate::file::io::{FileSource, ReadAt};
use crate::format::error::Result;

/// A place for the files of checkpoints: a disk, memory, a snapshot of a repository, an object
/// store.
///
/// Paths of files are names joined to the path that the user gave, such as `s3://bucket/model`. On
/// Windows they are joined by `\`: a store that has names with `/` should split paths into their
/// [components](Path::components).
///
/// Several threads open files at once. The methods block; see [`AsyncStore`] for programs that must
/// not wait.
///
/// ```
/// use safetensors_core::checkpoint::store::{StoreEntry, FileKind, MemoryFile, MemoryStore, Store};
/// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
/// use std::path::Path;
/// use std::sync::Mutex;
///
/// /// A store that remembers which files were opened.
/// struct Remembering {
///     files: MemoryStore,
///     opened: Mutex<Vec<String>>,
/// }
///
/// impl Store for Remembering {
///     type File = MemoryFile<Vec<u8>>;
///
///     fn open(&self, path: &Path) -> safetensors_core::Result<Self::File> {
///         self.opened.lock().unwrap().push(path.display().to_string());
///         self.files.open(path)
///     }
///
///     fn kind(&self, path: &Path) -> safetensors_core::Result<Option<FileKind>> {
///         self.files.kind(path)
///     }
///
///     fn list(&self, directory: &Path) -> safetensors_core::Result<Vec<StoreEntry>> {
///         self.files.list(directory)
///     }
/// }
///
/// let tensors = [("w", TensorView::from_slice(&[2], &[1_u8, 2])?)];
/// let file = serialize(tensors, &SaveOptions::new())?;
/// let store = std::sync::Arc::new(Remembering {
///     files: MemoryStore::from_iter([("gpt/model.safetensors", file)]),
///     opened: Mutex::default(),
/// });
/// let checkpoint = Checkpoint::open_in(store.clone(), "gpt", &Limits::default())?.into_stored()?;
/// assert_eq!(checkpoint.tensor("w")?.view()?.data(), [1, 2]);
/// assert_eq!(*store.opened.lock().unwrap(), ["gpt/model.safetensors"]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub trait Store: Send + Sync {
    /// An open file.
    type File: ReadAt;

    /// Opens a file, to be read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) of the kind
    /// [`NotFound`](std::io::ErrorKind::NotFound) if there is no such file;
    /// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile) if the path leads to something else.
    fn open(&self, path: &Path) -> Result<Self::File>;

    /// Returns the kind of file at a path, links followed; `None` if there is nothing. A failure to
    /// find out must be an error, not `None`.
    fn kind(&self, path: &Path) -> Result<Option<FileKind>>;

    /// Lists a directory, in any order. Names that are not UTF-8 may be skipped.
    ///
    /// A store that cannot list returns no entries. A directory then opens only by a standard name,
    /// and an index only if its files cannot have [parts of
    /// tensors](crate::error::RankProblem::PartsOfTensors).
    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>>;

    /// Returns the current version of a file, which differs as soon as the path leads to other
    /// bytes. `None`, the default, means that there is no such file, that its version is unknown,
    /// or that it never changes.
    fn version(&self, path: &Path) -> Result<Option<Version>> {
        let _ = path;
        Ok(None)
    }
}

impl<T: Store + ?Sized> Store for Arc<T> {
    type File = T::File;

    fn open(&self, path: &Path) -> Result<Self::File> {
        (**self).open(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        (**self).kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        (**self).list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        (**self).version(path)
    }
}

/// A [`Store`] with files of a single type, whatever the type in the store is.
#[doc(hidden)]
pub struct Boxed<T>(pub T);

impl<T: Store<File: 'static>> Store for Boxed<T> {
    type File = Box<dyn ReadAt>;

    fn open(&self, path: &Path) -> Result<Self::File> {
        Ok(Box::new(self.0.open(path)?))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.0.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        self.0.list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        self.0.version(path)
    }
}

/// The kind of a path in a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file, or anything else that is not a directory.
    File,
    /// A directory.
    Directory,
}

/// An entry of a directory of a [`Store`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The name, without the directory.
    pub name: String,
    /// The kind of the target, links followed. A dangling link counts as a file.
    pub kind: FileKind,
}

/// A version of a file of a [`Store`]. Equal versions mean equal bytes; the reverse need not hold.
#[derive(Clone)]
pub struct Version {
    text: String,
    // While it is open, the system gives its identity to no other file.
    _held: Option<Arc<FileSource>>,
}

impl Version {
    /// Makes a version from the identifier that the store uses, such as an ETag.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), _held: None }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Version").field(&self.text).finish()
    }
}
