//! Opening a checkpoint: by path, from a store, or from a file that is already open.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::opening::{ATTEMPTS, join, open_each, open_from};
use super::store::{AsyncFile, AsyncStore, FileKind, LocalStore, OpenedBy, PerhapsLocal, Store};
use super::{CheckpointFile, CheckpointPath, locate};
use crate::checkpoint::Checkpoint;
use crate::file::io::{AsyncReadAt, FileSource, ReadAt, SafeTensors};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;

impl Checkpoint {
    /// Opens a file, an index (`*.json`), or a directory. In a directory this finds
    /// `model.safetensors`, or else the index `model.safetensors.index.json`, or else the only
    /// other index, or else the only `*.safetensors` file.
    ///
    /// An index is treated as hostile: its size is limited, duplicate keys are refused, and shard
    /// names must be plain relative paths to regular `*.safetensors` files. Its `total_size` is not
    /// trusted.
    ///
    /// If [`save_sharded`](crate::save_sharded) replaces the checkpoint meanwhile, this opens the
    /// old one or the new one, never a mixture: if the index has changed after its shards were
    /// opened, everything is opened again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCheckpoint`] for a directory that holds none or several;
    /// [`ErrorKind::BadIndex`]; [`ErrorKind::NotInShard`] for a tensor that its shard lacks;
    /// [`ErrorKind::KeepsChanging`] for a checkpoint that is replaced again and again;
    /// [`RankProblem::PartsOfTensors`](crate::error::RankProblem::PartsOfTensors) for files that
    /// only [`open_whole`](Checkpoint::open_whole) opens; [`ErrorKind::Io`]; and, for each file, the
    /// errors of [`Header::parse`](crate::header::Header::parse).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(LocalStore, path, &Limits::default())
    }

    /// Opens a checkpoint of one file that is already open, such as standard input if that is a
    /// file. `name` is its path in errors and in [`CheckpointFile::path`]; no file is opened under
    /// it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`] for anything but a regular file; [`ErrorKind::Io`]; the errors of
    /// [`Header::parse`](crate::header::Header::parse).
    pub fn from_file(file: File, name: impl Into<PathBuf>) -> Result<Self> {
        let path = name.into();
        let open = || -> Result<_> {
            let source = FileSource::of(file, &path).map_err(ErrorKind::Io)?;
            if !source.file().metadata().map_err(ErrorKind::Io)?.is_file() {
                return Err(ErrorKind::NotAFile { found: "a special file" }.into());
            }
            SafeTensors::from_source(source)
        };
        let archive = open().map_err(|error| error.in_path(&path))?;
        Self::from_single(CheckpointFile { path, archive })
    }
}

impl Checkpoint {
    /// Opens several files as one checkpoint, without an index. Each path names a file. The
    /// order of the paths does not matter: the files are sorted by their paths.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, ErrorKind, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let [a, b] = ["a.safetensors", "b.safetensors"].map(|name| dir.path().join(name));
    /// let values = [1_u8, 2];
    /// save(&a, [("first", TensorView::from_slice(&[2], &values)?)], &SaveOptions::new())?;
    /// save(&b, [("second", TensorView::from_slice(&[2], &values)?)], &SaveOptions::new())?;
    ///
    /// assert_eq!(Checkpoint::open_files([&a, &b])?.len(), 2);
    /// let error = Checkpoint::open_files([&a, &a]).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::InTwoFiles { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InTwoFiles`] for a tensor that two of the files have; [`ErrorKind::Io`]; and,
    /// for each file, the errors of [`Header::parse`](crate::header::Header::parse).
    pub fn open_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let mut paths: Vec<_> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        paths.sort();
        let checkpoint = open_each(&LocalStore, &paths, &Limits::default())?;
        Ok(checkpoint.in_store(LocalStore, false))
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// The checkpoint of one source: bytes in memory, borrowed or owned, or whatever else
    /// implements [`ReadAt`]. `name` stands for a path in errors and in [`CheckpointFile::path`].
    /// Nothing is looked for under it.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let weight = TensorView::from_slice(&[2], &[1_u8, 2])?;
    /// let bytes = serialize([("weight", weight)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(&bytes[..], "bytes in memory")?;
    /// assert_eq!(checkpoint.tensor("weight")?.view()?.data(), [1, 2]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`SafeTensors::from_source`].
    pub fn from_source(source: S, name: impl Into<PathBuf>) -> Result<Self> {
        let path = name.into();
        let archive = SafeTensors::from_source(source).map_err(|error| error.in_path(&path))?;
        Self::from_single(CheckpointFile { path, archive })
    }

    /// Several sources as one checkpoint, without an index; each comes with the path that stands
    /// for it in errors. The order does not matter: the files are sorted by their paths.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let bytes = |name| {
    ///     let values = [1_u8, 2];
    ///     let view = TensorView::from_slice(&[2], &values).unwrap();
    ///     serialize([(name, view)], &SaveOptions::new()).unwrap()
    /// };
    /// let checkpoint = Checkpoint::from_sources([("one", bytes("a")), ("two", bytes("b"))])?;
    /// assert_eq!(checkpoint.len(), 2);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InTwoFiles`] for a tensor that two of the sources have; the errors of
    /// [`SafeTensors::from_source`].
    pub fn from_sources<P: Into<PathBuf>>(
        sources: impl IntoIterator<Item = (P, S)>,
    ) -> Result<Self> {
        let mut files = Vec::new();
        for (path, source) in sources {
            let path = path.into();
            let archive = SafeTensors::from_source(source).map_err(|error| error.in_path(&path))?;
            files.push(CheckpointFile { path, archive });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        join(files)
    }

    /// [`open`](Checkpoint::open) for files that do not lie on the local disk, but for example in
    /// memory. [`Store`] has examples.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Checkpoint::open) and of the store.
    pub fn open_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        let (store, path) = (Arc::new(store), path.as_ref());
        open_from(&*store, store.clone(), path, limits, || locate::locate(&*store, path))
    }

    /// [`open`](Checkpoint::open) with another way to open each file, for example to hold it in
    /// memory, so that tensors can be lent as [views](crate::LazyTensor::view):
    ///
    /// ```
    /// use safetensors_core::io::FileSource;
    /// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// # let tensors = [("weight", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)];
    /// # save(&path, tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::open_by(&path, &Limits::default(), |path| {
    ///     FileSource::open(path)?.read_to_vec()
    /// })?;
    /// assert_eq!(checkpoint.tensor("weight")?.view()?.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A path that ends in `.safetensors` or `.json` means a file or an index, which need not lie
    /// on the disk. `open` opens the index and its shards. Every other path is looked up on the
    /// disk, where it may be a directory. To look up directories elsewhere too, use
    /// [`open_in`](Checkpoint::open_in).
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Checkpoint::open) and of the function `open`. Several threads call it
    /// at once if there are several shards.
    pub fn open_by(
        path: impl AsRef<Path>,
        limits: &Limits,
        open: impl Fn(&Path) -> Result<S> + Sync,
    ) -> Result<Self> {
        let path = path.as_ref();
        let locate = || {
            let is_named =
                path.extension().is_some_and(|end| end == "safetensors" || end == "json");
            let is_directory = || matches!(LocalStore.kind(path), Ok(Some(FileKind::Directory)));
            if !is_named && is_directory() {
                locate::locate(&LocalStore, path)
            } else {
                Ok(CheckpointPath::by_extension(path))
            }
        };
        open_from(&OpenedBy(&open), Arc::new(PerhapsLocal), path, limits, locate)
    }
}

impl<S: AsyncReadAt + 'static> Checkpoint<AsyncFile<S>> {
    /// [`open_in`](Checkpoint::open_in) that does not block while it fetches. Only headers and the
    /// index are fetched, those of all shards at once, and the first 64 KiB of each file.
    /// [`AsyncStore`] has an example, and reads the tensors. Other ways to open are for
    /// [`AsyncStore::run`].
    ///
    /// An index that is replaced meanwhile is noticed if its source has a
    /// [version](AsyncReadAt::version).
    ///
    /// # Errors
    ///
    /// The errors of [`open_in`](Checkpoint::open_in).
    /// [`RankProblem::BadParts`](crate::error::RankProblem::BadParts) for an index whose files may
    /// have parts of tensors, because the store cannot list the others.
    pub async fn open_async<O, F>(
        store: &AsyncStore<S, O>,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self>
    where
        O: Fn(PathBuf) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>>,
    {
        let path = path.as_ref();
        for _ in 0..ATTEMPTS {
            let open = |store: &AsyncStore<S, O>| {
                (Self::open_in(store.clone(), path, limits), store.clone())
            };
            let (opened, store) = store.run(|store| Ok(open(store))).await?;
            // This comes before the error is looked at: a shard may be missing because its index
            // was replaced.
            if store.has_current_indexes().await? {
                return opened;
            }
        }
        Err(Error::from(ErrorKind::KeepsChanging { attempts: ATTEMPTS }).in_path(path))
    }
}
