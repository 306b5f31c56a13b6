//! [`Checkpoint`]: one file, or an index of shards, seen as one set of tensors.

mod index;
mod locate;

use std::path::{Path, PathBuf};

use crate::names::NameTable;
use crate::source::FileSource;
use crate::{Error, ErrorKind, LazyTensor, Limits, LoadOptions, Metadata, ReadAt, Result, SafeTensors, TensorBuf};
use index::WeightMap;
use locate::Located;

/// The tensors of a model, wherever they lie: in one file, or in the shards that an index file names.
///
/// [`open`](Checkpoint::open) takes the path of a file, of an index, or of the directory that holds either. Headers are read
/// at once, tensors when asked for. With the default `S` reads are positional: safe even if the files change. With
/// [`mmap`](Checkpoint::mmap) tensors can be lent without a copy.
///
/// ```
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("weight", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(dir.path())?;
/// for tensor in checkpoint.tensors() {
///     println!("{} {} {:?} {} bytes", tensor.name(), tensor.dtype(), tensor.shape(), tensor.byte_len());
/// }
/// let weight = checkpoint.tensor("weight")?.read()?;
/// assert_eq!(weight.into_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint<S = FileSource> {
    shards: Vec<ShardFile<S>>,
    /// Every tensor: shards in order, each shard's tensors in file order.
    places: Vec<Place>,
    table: NameTable,
    metadata: Metadata,
    index: Option<PathBuf>,
}

/// One file of a [`Checkpoint`].
#[derive(Debug)]
pub struct ShardFile<S = FileSource> {
    path: PathBuf,
    archive: SafeTensors<S>,
}

impl<S> ShardFile<S> {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's header and source.
    pub fn archive(&self) -> &SafeTensors<S> {
        &self.archive
    }
}

/// Where a tensor lies: which shard, and which of the shard's tensors.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: usize,
    position: usize,
}

impl Checkpoint {
    /// Opens a file, an index file (`*.json`), or a directory that holds an index or exactly one `*.safetensors` file.
    ///
    /// An index is treated as hostile: its size is limited, duplicate keys are refused, and shard names must be plain
    /// relative paths to regular `*.safetensors` files. Its `total_size` is not trusted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCheckpoint`] for a directory that holds none or several; [`ErrorKind::BadIndex`];
    /// [`ErrorKind::NotInShard`] for a tensor that its shard lacks; [`ErrorKind::Io`]; and, for each file, the errors of
    /// [`Header::parse`](crate::Header::parse).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// [`open`](Checkpoint::open) with limits for each header.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Checkpoint::open).
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::open_by(path, limits, |path| FileSource::open(path))
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// [`open`](Checkpoint::open) with another way to open each file, for example to hold it in memory, so that tensors can be lent
    /// as [views](LazyTensor::view):
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, FileSource, Limits, SaveOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// # save(&path, [("weight", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::open_by(&path, &Limits::default(), |path| FileSource::open(path)?.read_to_vec())?;
    /// assert_eq!(checkpoint.tensor("weight")?.view()?.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`open`](Checkpoint::open) and of `open`.
    pub fn open_by(path: impl AsRef<Path>, limits: &Limits, open: impl Fn(&Path) -> Result<S>) -> Result<Self> {
        let open_shard = |path: PathBuf| -> Result<ShardFile<S>> {
            let archive = SafeTensors::read_header(open(&path)?, limits).map_err(|error| error.in_path(&path))?;
            Ok(ShardFile { path, archive })
        };
        match locate::locate(path.as_ref())? {
            Located::File(file) => Self::from_file(open_shard(file)?),
            Located::Index(index) => {
                let map = WeightMap::read(&index)?;
                let folder = index.parent().unwrap_or(Path::new(""));
                let shards = map.files().map(|file| open_shard(folder.join(file))).collect::<Result<_>>()?;
                Self::from_shards(shards, &map, index)
            }
        }
    }

    fn from_file(shard: ShardFile<S>) -> Result<Self> {
        let places = (0..shard.archive.header().len()).map(|position| Place { shard: 0, position }).collect();
        Self::assemble(vec![shard], places, None)
    }

    /// Only the tensors that the map sends to a shard are the checkpoint's: where two shards have one, the map decides.
    fn from_shards(shards: Vec<ShardFile<S>>, map: &WeightMap, index: PathBuf) -> Result<Self> {
        let mut places = Vec::new();
        for (shard, (file, names)) in map.shards().enumerate() {
            let header = shards[shard].archive.header();
            let start = places.len();
            for name in names {
                let Some(position) = header.position(name) else {
                    let error = Error::from(ErrorKind::NotInShard { shard: file.to_owned() });
                    return Err(error.in_tensor(name).in_path(&index));
                };
                places.push(Place { shard, position });
            }
            places[start..].sort_unstable_by_key(|place| place.position);
        }
        Self::assemble(shards, places, Some(index))
    }

    fn assemble(shards: Vec<ShardFile<S>>, places: Vec<Place>, index: Option<PathBuf>) -> Result<Self> {
        let mut metadata = Metadata::new();
        for shard in &shards {
            for (key, value) in shard.archive.metadata() {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let mut checkpoint = Self { shards, places, table: NameTable::default(), metadata, index };
        let mut table = NameTable::default();
        let name_at = |i: usize| checkpoint.lazy(checkpoint.places[i]).map_or("", |tensor| tensor.name());
        table.reserve(checkpoint.places.len(), name_at);
        for i in 0..checkpoint.places.len() {
            table.insert(name_at(i), i, name_at);
        }
        checkpoint.table = table;
        Ok(checkpoint)
    }

    /// Reads all tensors in parallel, in the order of [`tensors`](Checkpoint::tensors).
    ///
    /// # Errors
    ///
    /// Those of [`LazyTensor::read`].
    pub fn read_all(&self, options: &LoadOptions) -> Result<Vec<TensorBuf>> {
        let tensors: Vec<_> = self.tensors().collect();
        crate::loader::read(&tensors, options)
    }
}

impl<S> Checkpoint<S> {
    /// The tensors: shards in order of file name, each shard's tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.places.iter().filter_map(|&place| self.lazy(place))
    }

    /// The tensor of this name, if there is one. One hash and one comparison; nothing is read or allocated.
    pub fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        let name_at = |i: usize| self.lazy(self.places[i]).map_or("", |tensor| tensor.name());
        self.table.find(name, name_at).and_then(|i| self.lazy(self.places[i]))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`], naming the tensor and the file or index.
    pub fn tensor(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.get(name).ok_or_else(|| {
            let error = Error::from(ErrorKind::TensorNotFound).in_tensor(name);
            match self.index.as_deref().or_else(|| self.shards.first().map(ShardFile::path)) {
                Some(path) => error.in_path(path),
                None => error,
            }
        })
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The `__metadata__` of all files together; where two files differ, the first has its way.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The files, in order of their names.
    pub fn shards(&self) -> &[ShardFile<S>] {
        &self.shards
    }

    /// The path of the index, if there is one.
    pub fn index(&self) -> Option<&Path> {
        self.index.as_deref()
    }

    fn lazy(&self, place: Place) -> Option<LazyTensor<'_, S>> {
        let shard = self.shards.get(place.shard)?;
        let info = shard.archive.header().tensor_at(place.position)?;
        Some(LazyTensor::new(info, &shard.archive, Some(&shard.path)))
    }
}
