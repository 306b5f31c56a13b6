//! [`Rewrite`]: makes a new checkpoint from others, without loading them into memory.

mod cast;
mod codes;
mod divided;
mod origin;
mod plan;
mod planned;
mod quantized;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

pub use plan::Plan;
pub use planned::PlannedTensor;

use crate::checkpoint::{
    Assembled, Checkpoint, LocalDirectory, SavedShards, ShardOptions, stage_sharded_to,
};
use crate::file::hash::{Change, forget};
use crate::file::io::ReadAt;
use crate::file::save::{SaveOptions, stage};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::header::{Metadata, join_entry, rename_attributes};
use crate::format::tensor::TensorSource;
use crate::format::tied::Tied;
use crate::model::quantized::Quantization;

/// The contents of a new checkpoint that is made from others: the tensors, their names and dtypes.
///
/// Data is read piece by piece, when the new checkpoint is saved, with a few MiB of memory for each
/// thread. Steps apply in the order of the calls, and their functions get the names and tensors
/// after the earlier steps. The destination may be one of the sources. [`plan`](Rewrite::plan)
/// returns the result beforehand. A tensor takes its [attributes](crate::header::attributes()) and
/// the id of a parameter of burn along.
///
/// # Tied weights
///
/// A tensor with several names is saved under one of them. The others are
/// [aliases](Checkpoint::aliases) in the metadata:
///
/// - a tensor that is [selected](Rewrite::select), [excluded](Rewrite::exclude) or
///   [cast](Rewrite::cast) takes its aliases along;
/// - each alias is recorded, with the new names of both;
/// - an alias becomes a separate tensor only if its own name is selected without its tensor, or
///   cast to another dtype.
///
/// ```
/// use safetensors_core::{
///     Checkpoint, ConvertOptions, Dtype, Rewrite, SaveOptions, ShardOptions, TensorSource,
///     TensorView, save,
/// };
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let values = [1.0_f32, 2.0, 3.0, 4.0];
/// let tensors = ["model.a", "model.b", "head"]
///     .map(|name| (name, TensorView::from_slice(&[4], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let saved = Rewrite::from_checkpoint(&checkpoint)
///     .select(|name, _| name.starts_with("model."))
///     .rename(|name| name.replace("model.", "encoder."))
///     .cast(&ConvertOptions::new(), |_, tensor| {
///         (tensor.dtype() == Dtype::F32).then_some(Dtype::BF16)
///     })?
///     .save_sharded(
///         dir.path().join("small"),
///         &ShardOptions::new().max_shard_size(8.into()),
///     )?;
/// assert_eq!((saved.files.len(), saved.total_size), (2, 16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
#[derive(Debug)]
pub struct Rewrite<'a, S = Assembled> {
    tensors: Vec<(String, PlannedTensor<'a, S>)>,
    metadata: Metadata,
    sources: Vec<&'a Checkpoint<S>>,
    /// The tensors before a selection left none; otherwise 0.
    deselected: usize,
    next_tie: u64,
    quantization: Option<Quantization>,
    /// The tie numbers of added tensors that fill a storage.
    added: HashMap<(u64, u64, Dtype, Vec<usize>), u64>,
    removed: BTreeSet<&'static str>,
}

impl<S> Default for Rewrite<'_, S> {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            metadata: Metadata::new(),
            sources: Vec::new(),
            deselected: 0,
            next_tie: 0,
            quantization: None,
            added: HashMap::new(),
            removed: BTreeSet::new(),
        }
    }
}

impl Rewrite<'_> {
    /// Makes an empty rewrite, without tensors and metadata.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Takes all tensors of a checkpoint, under all of their names, and its metadata without
    /// [digests](crate::digest).
    pub fn from_checkpoint(checkpoint: &'a Checkpoint<S>) -> Self {
        Self::default().merge(checkpoint)
    }

    /// Adds all tensors of another checkpoint. First rename or exclude tensors with duplicate
    /// names. If both have a metadata key, the earlier value stays. Ids of parameters and the
    /// numbers of records of burn are joined.
    pub fn merge(mut self, checkpoint: &'a Checkpoint<S>) -> Self {
        let mut ties = HashMap::new();
        let named =
            checkpoint.tensors().map(|tensor| (tensor.name(), tensor)).chain(checkpoint.aliases());
        for (name, tensor) in named {
            // An alias has the tensor that was kept, so this is the kept name.
            let tie = *ties.entry(tensor.name()).or_insert_with(|| take(&mut self.next_tie));
            self.tensors.push((name.to_owned(), PlannedTensor::from_lazy(name, tensor, tie)));
        }
        self.sources.push(checkpoint);
        // The entries of aliases are skipped, because saving makes new ones.
        let left_out: HashSet<_> = checkpoint.aliases().map(|(name, _)| name).collect();
        for (key, value) in
            checkpoint.metadata().iter().filter(|(key, _)| !left_out.contains(key.as_str()))
        {
            let earlier = self.metadata.entry(key.clone());
            earlier
                .and_modify(|earlier| join_entry(key, earlier, value))
                .or_insert_with(|| value.clone());
        }
        // Records of the source files do not apply to the new files.
        self.removed.extend(forget(&mut self.metadata, Change::File));
        self
    }

    /// Adds a tensor from another source: from memory, or from a file of another format. Its bytes
    /// are read when the new checkpoint is saved.
    ///
    /// Added tensors that [fill the same storage](crate::tied::Storage) with equal dtypes and
    /// shapes are tied, and written under the first of their sorted names.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Rewrite, SaveOptions, TensorBuf};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let step = TensorBuf::from_vec(vec![], vec![1000_i64])?;
    /// Rewrite::new().add("step", step)?.save(&path, &SaveOptions::new())?;
    /// assert_eq!(Checkpoint::open(&path)?.tensor("step")?.read()?.into_vec::<i64>()?, [1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(
        mut self,
        name: impl Into<String>,
        tensor: impl TensorSource + Send + 'a,
    ) -> Result<Self> {
        let name = name.into();
        // A tensor without bytes occupies no memory that it could share.
        let whole = tensor.storage().filter(|storage| {
            storage.byte_len > 0 && storage.contiguous && storage.range == (0..storage.byte_len)
        });
        let tie = match whole {
            Some(storage) => {
                let key = (storage.id, storage.byte_len, tensor.dtype(), tensor.shape().to_vec());
                *self.added.entry(key).or_insert_with(|| take(&mut self.next_tie))
            }
            None => take(&mut self.next_tie),
        };
        let planned = PlannedTensor::added(&name, tensor, tie)?;
        self.tensors.push((name, planned));
        Ok(self)
    }

    /// Keeps the tensors for which `keep` returns true, with all their aliases. If it returns true
    /// only for aliases of a tensor, the first of them replaces it. Saving fails if nothing is
    /// left.
    pub fn select(mut self, mut keep: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool) -> Self {
        // A tensor comes before its aliases.
        let mut kept = HashSet::new();
        self.retain(|name, planned| {
            if keep(name, planned) {
                kept.extend((!planned.alias).then_some(planned.tie));
                return true;
            }
            planned.alias && kept.contains(&planned.tie)
        });
        self
    }

    /// Skips the tensors for which `drop` returns true, with all their aliases. If it returns true
    /// for an alias only, the tensor stays.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Rewrite, SaveOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let tied = SaveOptions::new().metadata([("lm_head", "embed")]);
    /// save(&path, [("embed", weight), ("norm", weight)], &tied)?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let names = |rewrite: Rewrite| {
    ///     rewrite.tensors().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    /// };
    /// assert_eq!(names(Rewrite::from_checkpoint(&checkpoint).exclude(|name, _| name == "embed")), ["norm"]);
    /// assert_eq!(
    ///     names(Rewrite::from_checkpoint(&checkpoint).exclude(|name, _| name == "lm_head")),
    ///     ["embed", "norm"]
    /// );
    /// assert_eq!(
    ///     names(Rewrite::from_checkpoint(&checkpoint).select(|name, _| name == "lm_head")),
    ///     ["lm_head"]
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exclude(mut self, mut drop: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool) -> Self {
        let mut dropped = HashSet::new();
        self.retain(|name, planned| {
            if drop(name, planned) {
                dropped.extend((!planned.alias).then_some(planned.tie));
                return false;
            }
            !(planned.alias && dropped.contains(&planned.tie))
        });
        self
    }

    fn retain(&mut self, mut keep: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool) {
        let before = self.tensors.len();
        let mut dropped = HashSet::new();
        let left_out = self.tensors.extract_if(.., |(name, planned)| !keep(name, planned));
        dropped.extend(left_out.map(|(name, _)| name));
        // Of two tensors with one name, one may stay.
        self.tensors.iter().for_each(|(name, _)| _ = dropped.remove(name));
        rename_attributes(&mut self.metadata, &mut |name| {
            (!dropped.contains(name)).then(|| name.to_owned())
        });
        if self.tensors.is_empty() {
            self.deselected = self.deselected.max(before);
        }
    }

    // A selection of nothing is a mistake that could cost an existing checkpoint.
    fn refuse_deselected(&self) -> Result<()> {
        match self.deselected {
            found if found > 0 && self.tensors.is_empty() => {
                Err(ErrorKind::NothingSelected { found }.into())
            }
            _ => Ok(()),
        }
    }

    /// Renames every tensor to the name that `rename` returns for its current one.
    pub fn rename(mut self, mut rename: impl FnMut(&str) -> String) -> Self {
        let mut new_names = HashMap::new();
        for (name, _) in &mut self.tensors {
            let new = rename(name);
            new_names.insert(std::mem::replace(name, new.clone()), new);
        }
        rename_attributes(&mut self.metadata, &mut |name| {
            Some(new_names.get(name).cloned().unwrap_or_else(|| name.to_owned()))
        });
        self
    }

    /// Returns the metadata of the new checkpoint, which the options of a save override.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns all names with their tensors, as they will be saved. Tied weights are listed under
    /// each of their names; [`plan`](Rewrite::plan) shows which of them is written.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &PlannedTensor<'a, S>)> {
        self.tensors.iter().map(|(name, planned)| (name.as_str(), planned))
    }

    /// Saves everything to one file, as [`save`](crate::save()) does.
    ///
    /// # Errors
    ///
    /// As for [`save`](crate::save()); [`ErrorKind::Io`] if a source has
    /// [changed](Checkpoint::check_unchanged), or `path` is a source and has been replaced;
    /// [`ErrorKind::DoesNotFit`]; [`ErrorKind::NothingSelected`].
    pub fn save(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
        let path = path.as_ref();
        self.refuse_deselected().map_err(|error| error.in_path(path))?;
        let options = self.complete_options(options);
        let mut file = stage(path, self.tensors(), &options)?;
        let committed = file
            .begin_commit()
            .and_then(|()| self.check_before_replacing(path))
            .and_then(|()| file.commit_held());
        committed.map_err(|error| error.in_path(path))
    }

    /// Saves everything to a directory, in shards, as [`save_sharded`](crate::save_sharded) does.
    ///
    /// # Errors
    ///
    /// As for [`save_sharded`](crate::save_sharded), and as for [`save`](Rewrite::save) to one
    /// file.
    pub fn save_sharded(
        &self,
        directory: impl AsRef<Path>,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        let directory = directory.as_ref();
        self.refuse_deselected().map_err(|error| error.in_path(directory))?;
        let options = self.complete_shard_options(options);
        let mut place = LocalDirectory::create(directory, &options)?;
        let mut staged = stage_sharded_to(&mut place, self.tensors(), &options)?;
        staged.begin()?;
        self.check_before_replacing(directory)?;
        staged.commit()
    }

    /// Like [`complete_options`](Rewrite::complete_options), for several files.
    #[doc(hidden)]
    pub fn complete_shard_options(&self, options: &ShardOptions) -> ShardOptions {
        options.clone().save_options(self.complete_options(&options.save_options))
    }

    /// Checks that the sources and their indexes have not changed, for programs that write a
    /// [`plan`](Rewrite::plan) in another way.
    pub fn check_unchanged(&self) -> Result<()> {
        self.sources.iter().try_for_each(|source| source.check_unchanged())
    }

    fn check_before_replacing(&self, place: &Path) -> Result<()> {
        self.sources.iter().try_for_each(|source| source.check_before_replacing(place))
    }

    /// Completes the options as [`save`](Rewrite::save) does, with the metadata of the sources and
    /// with tied weights, for programs that write in another way. The options override the
    /// metadata.
    #[doc(hidden)]
    pub fn complete_options(&self, options: &SaveOptions) -> SaveOptions {
        let own = options.metadata.clone();
        let mut options =
            SaveOptions { metadata: self.metadata.clone(), ..options.clone() }.metadata(own);
        forget(&mut options.metadata, Change::File);
        if options.tied.is_some() {
            return options;
        }
        // Most readers find a tensor only by its name in the file, so a rewrite must keep that name
        // and not choose an alias.
        let own_names =
            self.tensors.iter().filter(|(_, planned)| !planned.alias).map(|(name, _)| name);
        options.tied(Tied::new().prefer(own_names).with_empty())
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next
}
