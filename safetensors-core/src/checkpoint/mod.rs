//! [`Checkpoint`]: one file, or an index of shards, seen as one set of tensors; how one is saved in
//! several files; and where the files may lie ([`store`]).

mod current;
mod destination;
mod directories;
mod index;
mod index_json;
mod index_read;
mod locate;
mod mmap;
mod names;
mod open;
mod opening;
mod options;
mod owned;
mod pattern;
#[cfg(test)]
mod races;
mod save;
mod siblings;
mod size;
mod split;
#[cfg(test)]
mod split_tests;
mod staging;
pub mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use destination::check as check_directory;
use index::Index;
pub use locate::CheckpointPath;
pub(crate) use names::{STANDARD_FILE, STANDARD_INDEX};
pub use options::{Contention, ShardOptions};
pub use pattern::FilePattern;
pub use save::{SavedShards, save_sharded};
pub(crate) use save::{plan as plan_shards, save_sharded_if};
pub use size::MaxShardSize;
pub(crate) use split::{Split, split_into_shards};

use crate::error::{Error, ErrorKind, Result};
use crate::header::{Metadata, NameTable, TensorInfo, is_reserved};
use crate::io::{FileSource, ReadAt, SafeTensors};
use crate::load::{LazyTensor, LoadOptions};
use crate::tensor::TensorBuf;

/// The tensors of a model, wherever they lie: in one file, or in the shards that an index file
/// names.
///
/// [`open`](Checkpoint::open) takes the path of a file, of an index, or of the directory that holds
/// either. Headers are read at once, tensors when asked for. With the default `S` reads are
/// positional: safe even if the files change. With [`mmap`](Checkpoint::mmap) tensors can be lent
/// without a copy.
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
pub struct Checkpoint<S = FileSource> {
    shards: Vec<CheckpointFile<S>>,
    /// Every tensor: shards in order, each shard's tensors in file order.
    places: Vec<Place>,
    /// From a name to its place. Nothing for a single file, whose header has that table.
    table: Option<NameTable>,
    /// Names that the metadata gives to tensors besides their own, with the tensors' places.
    aliases: BTreeMap<String, Place>,
    /// That of all files and the index. Nothing for a single file, whose header has it.
    metadata: Option<Metadata>,
    index: Option<PathBuf>,
    index_total_size: Option<u64>,
    /// The index that was opened, as its store tells it from others.
    index_version: Option<store::Version>,
    /// What lies beside the files; nothing for a file that was open already.
    siblings: Option<Arc<dyn siblings::Siblings>>,
    /// Whether it is what a directory opens as.
    is_of_directory: bool,
}

impl<S: fmt::Debug> fmt::Debug for Checkpoint<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("index", &self.index)
            .field("shards", &self.shards)
            .field("metadata", &self.metadata)
            .field("aliases", &self.aliases)
            .finish_non_exhaustive()
    }
}

/// One file of a [`Checkpoint`].
#[derive(Debug)]
pub struct CheckpointFile<S = FileSource> {
    path: PathBuf,
    archive: SafeTensors<S>,
}

impl<S> CheckpointFile<S> {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's header and source.
    pub fn safetensors(&self) -> &SafeTensors<S> {
        &self.archive
    }
}

/// Where a tensor lies: which shard, and which of the shard's tensors.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: usize,
    position: usize,
}

impl<S: ReadAt> Checkpoint<S> {
    fn assemble(
        shards: Vec<CheckpointFile<S>>,
        places: Vec<Place>,
        index: Option<(&Index, PathBuf)>,
    ) -> Self {
        let (index, path) = index.unzip();
        let mut checkpoint = Self {
            shards,
            places,
            table: None,
            aliases: BTreeMap::new(),
            metadata: None,
            index: path,
            index_total_size: index.and_then(|index| index.total_size),
            index_version: None,
            siblings: None,
            is_of_directory: false,
        };
        if index.is_some() {
            let mut table = NameTable::default();
            let name_at = |i: usize| checkpoint.name_at(i);
            table.reserve(checkpoint.places.len(), name_at);
            for i in 0..checkpoint.places.len() {
                table.insert(name_at(i), i, name_at);
            }
            checkpoint.table = Some(table);
        }

        let mut metadata = Metadata::new();
        let mut aliases = BTreeMap::new();
        let of_files = checkpoint.shards.iter().map(|shard| shard.archive.metadata());
        for (key, value) in of_files.chain(index.map(|index| &index.metadata)).flatten() {
            // Metadata can say anything. It gives a tensor another name only where both names allow
            // it.
            if !is_reserved(key)
                && let (None, Some(kept)) = (checkpoint.position(key), checkpoint.position(value))
            {
                aliases.entry(key.clone()).or_insert(checkpoint.places[kept]);
            }
            if checkpoint.table.is_some() {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        checkpoint.metadata = checkpoint.table.is_some().then_some(metadata);
        checkpoint.aliases = aliases;
        checkpoint
    }

    /// Reads all tensors in parallel, in the order of [`tensors`](Checkpoint::tensors).
    ///
    /// # Errors
    ///
    /// Those of [`LazyTensor::read`].
    pub fn read_all(&self, options: &LoadOptions) -> Result<Vec<TensorBuf>> {
        let tensors: Vec<_> = self.tensors().collect();
        crate::load::read_tensors(&tensors, options)
    }

    /// Reads the tensors of these names, or [aliases](Checkpoint::aliases), in parallel, in this
    /// order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`], before anything is read, and those of
    /// [`read_tensors`](crate::load::read_tensors).
    pub fn read_named<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        let tensors =
            names.into_iter().map(|name| self.tensor(name.as_ref())).collect::<Result<Vec<_>>>()?;
        crate::load::read_tensors(&tensors, options)
    }
}

impl<S> Checkpoint<S> {
    /// The tensors: shards in order of file name, each shard's tensors in file order. Each is there
    /// once, under the name that it has in its file; [`aliases`](Checkpoint::aliases) are its other
    /// names.
    pub fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.places.iter().filter_map(|&place| self.lazy(place))
    }

    /// The names under which tensors were not saved because they share the storage of another, each
    /// with the tensor that was saved, sorted.
    ///
    /// `safetensors.torch.save_model`, `huggingface_hub` and
    /// [`SaveOptions::tied`](crate::SaveOptions::tied) record them in the metadata of a file or of
    /// the index: the dropped name, with the kept one as its value. An entry counts if its value is
    /// the name of a tensor and its key is not, and if the key has no meaning of its own, as
    /// `format`, `modelspec.*`, [attributes](crate::header::attributes()) and the
    /// [digests](crate::digest) have. An entry that means something else and has the name of a
    /// tensor by chance cannot be told apart.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, LazyTensor<'_, S>)> {
        self.aliases.iter().filter_map(|(name, &place)| Some((name.as_str(), self.lazy(place)?)))
    }

    /// The tensor of this name or [alias](Checkpoint::aliases), if there is one. One hash and one
    /// comparison for a name, a search among the aliases for what is none; nothing is read or
    /// allocated.
    pub fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        let place = match self.position(name) {
            Some(i) => self.places.get(i),
            None => self.aliases.get(name),
        };
        place.and_then(|&place| self.lazy(place))
    }

    /// The tensor of this name or [alias](Checkpoint::aliases).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`], naming the tensor and the file or index.
    pub fn tensor(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.get(name).ok_or_else(|| {
            let error = Error::from(ErrorKind::TensorNotFound).in_tensor(name);
            match self.index.as_deref().or_else(|| self.shards.first().map(CheckpointFile::path)) {
                Some(path) => error.in_path(path),
                None => error,
            }
        })
    }

    /// The number of tensors, without aliases.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The `__metadata__` of all files together, and the strings in the index's `metadata`; where
    /// two differ, the first has its way, and the index comes last.
    pub fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        let of_file = || self.shards.first().map(|file| file.archive.metadata());
        self.metadata.as_ref().or_else(of_file).unwrap_or(&NONE)
    }

    /// The files, in order of their names.
    pub fn files(&self) -> &[CheckpointFile<S>] {
        &self.shards
    }

    /// The path of the index, if there is one.
    pub fn index(&self) -> Option<&Path> {
        self.index.as_deref()
    }

    /// What the index says of the bytes of all tensors. Not checked: writers count in different
    /// ways, or wrongly.
    pub fn index_total_size(&self) -> Option<u64> {
        self.index_total_size
    }

    /// The tensors that files have and the index does not send there, which the checkpoint
    /// therefore does not have from these files.
    pub fn unindexed(&self) -> impl Iterator<Item = (&CheckpointFile<S>, TensorInfo<'_>)> {
        self.shards.iter().enumerate().flat_map(|(shard, file)| {
            // The places are sorted by shard and position.
            let start = self.places.partition_point(|place| place.shard < shard);
            let end = self.places.partition_point(|place| place.shard <= shard);
            let mut mapped = self.places[start..end].iter().peekable();
            let tensors = file.archive.header().iter().enumerate();
            tensors.filter_map(move |(position, info)| {
                let is_mapped = mapped.next_if(|place| place.position == position).is_some();
                (!is_mapped).then_some((file, info))
            })
        })
    }

    fn position(&self, name: &str) -> Option<usize> {
        match &self.table {
            Some(table) => table.find(name, |i| self.name_at(i)),
            None => self.shards.first()?.archive.header().position(name),
        }
    }

    fn name_at(&self, i: usize) -> &str {
        self.lazy(self.places[i]).map_or("", |tensor| tensor.name())
    }

    fn lazy(&self, place: Place) -> Option<LazyTensor<'_, S>> {
        let shard = self.shards.get(place.shard)?;
        let info = shard.archive.header().tensor_at(place.position)?;
        Some(LazyTensor::new(info, &shard.archive, Some(&shard.path)).in_file(place.shard))
    }
}
