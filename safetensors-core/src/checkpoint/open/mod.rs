//! Opening a checkpoint: by path, from a store, or from an open source.

pub(super) mod faults;
mod foreign;
mod joined;
pub(super) mod locate;
mod mmap;
mod open_async;
pub(super) mod opening;
pub(super) mod siblings;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::store::{Boxed, FileKind, LocalStore, OpenedBy, Store};
use crate::checkpoint::{Assembled, Checkpoint, CheckpointFile, CheckpointPath};
use crate::file::io::{FileSource, ReadAt};
use crate::format::error::Result;
#[cfg(doc)]
use crate::format::error::{ErrorKind, RankProblem};
use crate::format::header::Limits;
use opening::Opener;

impl Checkpoint {
    /// Opens a file, an index (`*.json`), or a directory. In a directory this finds
    /// `model.safetensors`, otherwise the index `model.safetensors.index.json`, otherwise the only
    /// other index, otherwise the only `*.safetensors` file. While
    /// [`save_sharded`](crate::save_sharded) replaces the checkpoint, it opens the old one or the
    /// new one.
    ///
    /// # Parts of tensors
    ///
    /// The parts that ranks have saved open as joined tensors:
    ///
    /// - of [`RankSaver`](crate::ranks::RankSaver) or `safetensors convert --ranks`: the directory
    ///   or its index;
    /// - of PyTorch's `HuggingFaceStorageWriter(save_distributed=True)` or
    ///   [`ShardOptions::dcp`](crate::ShardOptions::dcp): the directory, with all of its
    ///   `*.safetensors` files.
    ///
    /// PyTorch's files record neither their number nor shapes, so **a missing last part of
    /// PyTorch's files is not noticed**, unless the caller compares the shapes, for example by
    /// [`RankPlan::check_tensors`](crate::ranks::RankPlan::check_tensors).
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let values = [1_u8, 2, 3, 4];
    /// // Two ranks write a column each.
    /// for (rank, column) in [[1_u8, 3], [2, 4]].iter().enumerate() {
    ///     let info = format!(r#"{{"w": {{"saved_offsets": [0, {rank}]}}}}"#);
    ///     let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
    ///     let name = format!("shard-0000{}-model-00001-of-00001.safetensors", rank + 1);
    ///     let part = TensorView::from_slice(&[2, 1], column)?;
    ///     save(dir.path().join(name), [("w", part)], &options)?;
    /// }
    /// let checkpoint = Checkpoint::open(dir.path())?;
    /// assert_eq!(checkpoint.tensor("w")?.read()?.as_slice::<u8>()?, values);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NoCheckpoint`] for a directory that holds none or several;
    ///   [`ErrorKind::BadIndex`]; [`ErrorKind::NotInShard`]; [`ErrorKind::KeepsChanging`]; and as
    ///   for [`Header::parse`](crate::header::Header::parse).
    /// - [`RankProblem::PartsOfTensors`] for the path of a file with parts;
    ///   [`RankProblem::BadParts`] for parts that do not fit together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(LocalStore, path, &Limits::default())
    }
}

impl<S: ReadAt + 'static> Checkpoint<Assembled<S>> {
    /// Opens a checkpoint in a [`Store`], for example in memory. Call
    /// [`into_stored`](Checkpoint::into_stored) to lend its bytes.
    pub fn open_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        let store = Arc::new(store);
        let path = path.as_ref();
        let opener = Opener { store: &*store, limits, joins: true };
        let opened = opener.open(path, || locate::locate(&*store, path))?;
        Ok(opened.with_siblings(Arc::new(Boxed(store)), false))
    }
}

impl Checkpoint<FileSource> {
    /// Opens several files as one checkpoint, without an index. They are sorted by their paths.
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
    /// [`ErrorKind::InTwoFiles`] for a tensor that two of the files have.
    pub fn open_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let mut paths: Vec<_> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        paths.sort();
        let opener = Opener { store: &LocalStore, limits: &Limits::default(), joins: false };
        Ok(opener.each(&paths)?.in_store(LocalStore, false))
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Makes a checkpoint of a single source: bytes in memory, borrowed or owned, or any other
    /// [`ReadAt`]. `name` is its path in errors.
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
    pub fn from_source(source: S, name: impl Into<PathBuf>) -> Result<Self> {
        Self::from_single(CheckpointFile::read(name.into(), source)?)
    }

    /// Makes a checkpoint of several sources, each with its path for errors, like
    /// [`open_files`](Self::open_files).
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
    pub fn from_sources<P: Into<PathBuf>>(
        sources: impl IntoIterator<Item = (P, S)>,
    ) -> Result<Self> {
        let mut files = Vec::new();
        for (path, source) in sources {
            files.push(CheckpointFile::read(path.into(), source)?);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self::from_files(files)
    }

    /// Opens a checkpoint with another way to open each file, for example to hold it in memory, so
    /// that tensors can be lent as [views](crate::LazyTensor::view):
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
    /// A path that ends in `.safetensors` or `.json` is passed to `open`, on several threads. Any
    /// other is looked up on the disk; see also [`open_in`](Checkpoint::open_in).
    ///
    /// # Errors
    ///
    /// As for [`open`](Checkpoint::open); [`RankProblem::PartsOfTensors`].
    pub fn open_by(
        path: impl AsRef<Path>,
        limits: &Limits,
        open: impl Fn(&Path) -> Result<S> + Sync,
    ) -> Result<Self> {
        let path = path.as_ref();
        let opener = Opener { store: &OpenedBy(&open), limits, joins: false };
        let opened = opener.open(path, || locate_by_name(path))?;
        let siblings = OpenedBy(|path: &Path| FileSource::open(path));
        opened.with_siblings(Arc::new(Boxed(siblings)), false).into_stored()
    }
}

fn locate_by_name(path: &Path) -> Result<CheckpointPath> {
    let is_named = path.extension().is_some_and(|end| end == "safetensors" || end == "json");
    if !is_named && matches!(LocalStore.kind(path), Ok(Some(FileKind::Directory))) {
        return locate::locate(&LocalStore, path);
    }
    Ok(CheckpointPath::by_extension(path))
}
