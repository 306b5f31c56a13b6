//! Checkpoints: the tensors of a model, in one file or in several.
//!
//! [`Checkpoint`] opens files and refuses ones that do not belong together, [`save_sharded`]
//! replaces a checkpoint, and a [`store`] is the place of the files.
//!
//! | files | are about |
//! |---|---|
//! | `names.rs`, `pattern.rs`, `index/` | names of files; the index |
//! | `open/` | finding and opening all files |
//! | `save/` | dividing tensors over files, replacing a checkpoint |
//! | `other_files/` | a model's other files |
//! | `pieces/` | joined pieces of tensors |
//! | `computed/` | tensors that are computed when they are read |
//! | `arranged/` | tensors that are stacks, slices, transposes of others |
//! | `boxed.rs` | checkpoints of any source as one type |
//! | `store/` | places of files |

mod arranged;
mod boxed;
mod computed;
mod index;
mod names;
mod open;
mod other_files;
mod pattern;
mod pieces;
mod save;
mod segments;
pub mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use arranged::Arranged;
pub(crate) use arranged::{Form, Join};
pub(crate) use boxed::Leaves;
pub use computed::Computed;
pub(crate) use computed::NewTensor;
pub(crate) use computed::files::Replacement;
#[doc(hidden)]
pub use computed::strided::Strided;
pub(crate) use computed::strided::piece::{Piece, Span};
pub(crate) use computed::tensor::{ComputedTensor, failed, read_numbers};
pub(crate) use index::Index;
pub(crate) use names::{STANDARD_FILE, STANDARD_INDEX};
pub use open::faults::faults;
pub use open::locate::CheckpointPath;
pub(crate) use open::opening::Opener;
#[doc(hidden)]
pub use other_files::{NEWEST, OtherFiles};
pub use pattern::FilePattern;
pub use pieces::assembled::Assembled;
pub(crate) use pieces::dcp::record as record_dcp;
pub(crate) use pieces::divided::{PartRecord, Record, record as record_parts};
pub use pieces::whole_tensor::{TensorPiece, WholeTensor};
pub(crate) use save::commit_parts::check_alone;
pub(crate) use save::destination::{check as check_directory, files_of};
pub use save::local_directory::LocalDirectory;
pub use save::options::{Contention, ShardOptions};
pub use save::size::MaxShardSize;
pub(crate) use save::split::{Split, split_into_shards};
pub use save::staged::{SavedShards, StagedShards};
pub(crate) use save::{plan as plan_shards, write_others};
pub use save::{save_sharded, save_sharded_to, stage_sharded_to};
#[cfg(test)]
pub(crate) use tests::fill_of;

use crate::file::io::ReadAt;
pub use crate::file::load::catalog::CheckpointFile;
use crate::file::load::catalog::{Catalog, CatalogPlace};
use crate::file::load::{LazyTensor, LoadOptions, read_slices, read_tensors};
use crate::format::error::{Error, RankProblem, Result};
use crate::format::header::{Metadata, TensorInfo};
use crate::format::slice::TensorPart;
use crate::format::tensor::TensorBuf;

/// The tensors of a model, in one file or in the shards that an index names.
///
/// [`open`](Checkpoint::open) takes the path of a file, an index, or their directory, and checks
/// the headers. Tensors are read on request, each into a new buffer; a file that has changed is an
/// error. With [`mmap`](Checkpoint::mmap) tensors can also be borrowed.
///
/// ```
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(
///     &path,
///     [("weight", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)],
///     &SaveOptions::new(),
/// )?;
///
/// let checkpoint = Checkpoint::open(dir.path())?;
/// for tensor in checkpoint.tensors() {
///     println!(
///         "{} {} {:?} {} bytes",
///         tensor.name(),
///         tensor.dtype(),
///         tensor.shape(),
///         tensor.byte_len()
///     );
/// }
/// let weight = checkpoint.tensor("weight")?.read()?;
/// assert_eq!(weight.into_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Checkpoint<S = Assembled> {
    catalog: Catalog<S>,
    about: About,
}

#[derive(Clone, Default)]
struct About {
    index: Option<PathBuf>,
    index_total_size: Option<u64>,
    /// `None` if the store does not know it.
    index_version: Option<store::Version>,
    /// `None` for a file that was already open.
    siblings: Option<Arc<open::siblings::Siblings>>,
    home: Option<PathBuf>,
    is_of_directory: bool,
    is_joined: bool,
}

impl<S: fmt::Debug> fmt::Debug for Checkpoint<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("index", &self.about.index)
            .field("catalog", &self.catalog)
            .field("metadata", &self.catalog.table.metadata)
            .finish_non_exhaustive()
    }
}

impl<S: ReadAt> Checkpoint<S> {
    fn assemble(
        files: Vec<CheckpointFile<S>>,
        places: Vec<CatalogPlace>,
        index: Option<(&Index, PathBuf)>,
    ) -> Self {
        let (index, path) = index.unzip();
        let mut catalog = Catalog::new(files, places, index.map(|index| &index.metadata));
        catalog.table.metadata = (!catalog.is_single_file()).then(|| {
            let mut metadata = Metadata::new();
            let of_files = catalog.files().iter().map(|file| file.archive.metadata());
            for (key, value) in of_files.chain(index.map(|index| &index.metadata)).flatten() {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
            pieces::divided::forget(&mut metadata);
            metadata
        });
        let index_total_size = index.and_then(|index| index.total_size);
        Self { catalog, about: About { index: path, index_total_size, ..About::default() } }
    }

    /// Returns a tensor by name or [alias](Checkpoint::aliases).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`](crate::ErrorKind::TensorNotFound), with [similar
    /// names](Error::similar); [`ErrorKind::Quantization`](crate::ErrorKind::Quantization) for a
    /// quantised weight under other names.
    pub fn tensor(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// Returns the error of reading a tensor that does not exist.
    #[doc(hidden)]
    pub fn missing(&self, name: &str) -> Error {
        let weights = self.catalog.weights().unwrap_or_default();
        if let Some(weight) = weights.into_iter().find(|weight| weight.name == name) {
            return self.in_first_path(weight.codes().in_tensor(name));
        }
        let aliases = self.aliases().map(|(alias, _)| alias);
        let names = self.tensors().map(|tensor| tensor.name()).chain(aliases);
        self.in_first_path(Error::not_found(name, names))
    }

    /// Reads all tensors like [`read_tensors`], in the order of [`tensors`](Checkpoint::tensors).
    pub fn read_all(&self, options: &LoadOptions) -> Result<Vec<TensorBuf>> {
        read_tensors(&self.tensors().collect::<Vec<_>>(), options)
    }

    /// Reads the tensors of these names, or [aliases](Checkpoint::aliases), in parallel, in this
    /// order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`](crate::ErrorKind::TensorNotFound), before anything is read;
    /// otherwise as for [`read_tensors`].
    pub fn read_named<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let tensors =
            names.into_iter().map(|name| self.tensor(name.as_ref())).collect::<Result<Vec<_>>>()?;
        read_tensors(&tensors, options)
    }

    /// Reads parts of the tensors of these names, or [aliases](Checkpoint::aliases), in parallel,
    /// in this order. Only the bytes of the parts are read, and small gaps between them.
    ///
    /// ```
    /// use safetensors_core::slice::{RankPart, TensorPart};
    /// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// let values = [1_u8, 2, 3, 4];
    /// let tensors =
    ///     ["up", "down"].map(|name| (name, TensorView::from_slice(&[2, 2], &values).unwrap()));
    /// save(&path, tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let parts = [
    ///     ("up", TensorPart::span(0, 1, 1)),
    ///     ("down", TensorPart::Rank(RankPart::new(1, 0, 2))),
    /// ];
    /// let bufs = checkpoint.read_parts(parts, &LoadOptions::new())?;
    /// assert_eq!(bufs[0].as_slice::<u8>()?, [3, 4]);
    /// assert_eq!(bufs[1].as_slice::<u8>()?, [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`read_named`](Self::read_named) and, before any data is read,
    /// [`TensorPart::ranges`].
    pub fn read_parts<N: AsRef<str>>(
        &self,
        parts: impl IntoIterator<Item = (N, TensorPart)>,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let parts = parts.into_iter().map(|(name, part)| self.tensor(name.as_ref())?.slice(part));
        read_slices(&parts.collect::<Result<Vec<_>>>()?, options)
    }
}

impl<S> Checkpoint<S> {
    /// Returns the tensors, without [aliases](Checkpoint::aliases): shards in order of file name,
    /// each shard's tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.catalog.tensors()
    }

    /// Returns the aliases, sorted, each with its tensor. Tensors that share a storage are saved
    /// once, and aliases are their other names.
    ///
    /// `safetensors.torch.save_model`, `huggingface_hub` and
    /// [`SaveOptions::tied`](crate::SaveOptions::tied) record an alias in the metadata as a key,
    /// with the tensor's name as the value. An entry is an alias if its value names a tensor, even
    /// by chance, and its key neither names one nor has a fixed meaning, such as `format` or
    /// `modelspec.*`.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, LazyTensor<'_, S>)> {
        self.catalog.aliases()
    }

    /// Finds a tensor by name or [alias](Checkpoint::aliases), in one or two lookups. Nothing is
    /// read.
    pub fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        self.catalog.get(name)
    }

    /// Returns the position among [`tensors`](Checkpoint::tensors) of a tensor by name or
    /// [alias](Checkpoint::aliases).
    #[doc(hidden)]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.catalog.position(name)
    }

    /// Returns the tensor at a position among [`tensors`](Checkpoint::tensors).
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let values = [1_u8, 2];
    /// let tensors =
    ///     ["q", "k"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let position = checkpoint.position("k");
    /// assert_eq!(position.and_then(|k| checkpoint.tensor_at(k)).unwrap().name(), "k");
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn tensor_at(&self, position: usize) -> Option<LazyTensor<'_, S>> {
        self.catalog.tensor_at(position)
    }

    /// Returns the number of tensors, without aliases.
    pub fn len(&self) -> usize {
        self.catalog.places().len()
    }

    /// Returns `true` if there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.catalog.places().is_empty()
    }

    /// Returns the `__metadata__` of all files, and the strings in the index's `metadata`. If a key
    /// is there twice, the first file has precedence, and the index comes last.
    pub fn metadata(&self) -> &Metadata {
        self.catalog.metadata()
    }

    /// Returns the files, in order of their names.
    pub fn files(&self) -> &[CheckpointFile<S>] {
        self.catalog.files()
    }

    /// Returns the [files](Self::files) as they are stored, for digests, layouts and positions of
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`RankProblem::PartsOfTensors`] for joined parts of ranks;
    /// [`into_parts`](Checkpoint::into_parts) returns their files.
    pub fn stored_files(&self) -> Result<&[CheckpointFile<S>]> {
        if self.about.is_joined {
            return Err(self.in_first_path(RankProblem::PartsOfTensors.into()));
        }
        Ok(self.files())
    }

    /// Adds the path of the index or the first file to an error.
    #[doc(hidden)]
    pub fn in_first_path(&self, error: Error) -> Error {
        let first = || self.files().first().map(CheckpointFile::path);
        match self.index_path().or_else(first) {
            Some(path) => error.in_path(path),
            None => error,
        }
    }

    /// Sets whether the checkpoint was opened by its directory.
    #[must_use]
    #[doc(hidden)]
    pub fn of_directory(mut self, is_of_directory: bool) -> Self {
        self.about.is_of_directory = is_of_directory;
        self
    }

    /// Returns `true` if the checkpoint was opened by its directory, so that other files in it
    /// belong to it.
    #[doc(hidden)]
    pub fn is_of_directory(&self) -> bool {
        self.about.is_of_directory
    }

    /// Returns the path of the index, if there is one.
    pub fn index_path(&self) -> Option<&Path> {
        self.about.index.as_deref()
    }

    /// Returns the `total_size` of the index: the number of bytes of all tensors. It is not
    /// checked, because some writers count wrongly.
    #[doc(hidden)]
    pub fn index_total_size(&self) -> Option<u64> {
        self.about.index_total_size
    }

    /// Returns the tensors that the index does not map to their file. They are not part of the
    /// checkpoint.
    #[doc(hidden)]
    pub fn unindexed(&self) -> impl Iterator<Item = (&CheckpointFile<S>, TensorInfo<'_>)> {
        self.files().iter().enumerate().flat_map(|(number, file)| {
            let places = self.catalog.places();
            // The places are sorted by file and position.
            let start = places.partition_point(|place| place.file < number);
            let end = places.partition_point(|place| place.file <= number);
            let mut mapped = places[start..end].iter().peekable();
            let tensors = file.archive.header().iter().enumerate();
            tensors.filter_map(move |(position, info)| {
                let is_mapped = mapped.next_if(|place| place.position == position).is_some();
                (!is_mapped).then_some((file, info))
            })
        })
    }
}
