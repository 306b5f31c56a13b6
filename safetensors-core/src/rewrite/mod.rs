//! [`Rewrite`]: a checkpoint made of others, streaming: merged, selected, renamed, cast, sharded anew.

mod plan;
mod planned;

use std::collections::{HashMap, HashSet};
use std::path::Path;

pub use plan::Plan;
pub use planned::PlannedTensor;

use crate::checkpoint::{Checkpoint, SavedShards, ShardOptions, save_sharded};
use crate::convert::ConvertOptions;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::hash::forget;
use crate::header::Metadata;
use crate::io::{FileSource, ReadAt};
use crate::save::{SaveOptions, save};
use crate::tensor::TensorSource;
use crate::tied::Tied;

/// What a new checkpoint is to have of others: which tensors, under which names, in which dtypes.
///
/// Nothing is read until it is saved, and then piece by piece: the memory needed is a few MiB a
/// thread, whatever the size of the checkpoints. Steps apply in the order in which they are called.
/// The destination may be one of the sources.
///
/// [`plan`](Rewrite::plan) tells what will be written before anything is.
///
/// # Tied weights
///
/// A tensor with several names has one in its file; the others are [aliases](Checkpoint::aliases),
/// entries of the metadata, and may be entries that only look like it. So they go where their
/// tensor goes, and stay entries:
///
/// - a tensor that is [selected](Rewrite::select), [left out](Rewrite::without) or
///   [cast](Rewrite::cast) takes its aliases along;
/// - the tensor is written under its own name, and each alias is recorded with the names that both
///   have then;
/// - an alias is written as a tensor only where it is asked for by its own name: selected without
///   its tensor, or cast to another dtype than its tensor. From then on it is a tensor like others.
///
/// ```
/// use safetensors_core::{
///     Checkpoint, ConvertOptions, Dtype, Rewrite, SaveOptions, ShardOptions, TensorView,
///     save,
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
/// let saved = Rewrite::of(&checkpoint)
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
#[derive(Debug)]
pub struct Rewrite<'a, S = FileSource> {
    tensors: Vec<(String, PlannedTensor<'a, S>)>,
    metadata: Metadata,
    /// The number that the next tensor gets that is not tied to an earlier one.
    next_tie: u64,
    /// The tensors from elsewhere that fill a storage, by what they must have in common to be one
    /// tensor, with the number.
    added: HashMap<(u64, u64, Dtype, Vec<usize>), u64>,
}

impl<S> Default for Rewrite<'_, S> {
    fn default() -> Self {
        Self { tensors: Vec::new(), metadata: Metadata::new(), next_tie: 0, added: HashMap::new() }
    }
}

impl Rewrite<'_> {
    /// No tensors and no metadata yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// All tensors of a checkpoint, under all of their names, and its metadata but for recorded
    /// [digests](crate::digest).
    pub fn of(checkpoint: &'a Checkpoint<S>) -> Self {
        Self::default().merge(checkpoint)
    }

    /// Adds all tensors of another checkpoint. Two tensors of one name are an error when the
    /// checkpoint is saved: rename or leave out one of them before the merge. Where the metadata
    /// differs, what was there first stays.
    #[must_use]
    pub fn merge(mut self, checkpoint: &'a Checkpoint<S>) -> Self {
        let mut ties = HashMap::new();
        let named =
            checkpoint.tensors().map(|tensor| (tensor.name(), tensor)).chain(checkpoint.aliases());
        for (name, tensor) in named {
            // An alias leads to the tensor that was kept, by its own name.
            let tie = *ties.entry(tensor.name()).or_insert_with(|| take(&mut self.next_tie));
            self.tensors.push((name.to_owned(), PlannedTensor::of(name, tensor, tie)));
        }
        // The records of aliases are made anew when the checkpoint is saved.
        let aliases: HashSet<_> = checkpoint.aliases().map(|(name, _)| name).collect();
        for (key, value) in
            checkpoint.metadata().iter().filter(|(key, _)| !aliases.contains(key.as_str()))
        {
            self.metadata.entry(key.clone()).or_insert_with(|| value.clone());
        }
        // Digests of the sources' files say nothing of the new ones.
        forget(&mut self.metadata);
        self
    }

    /// Adds a tensor from elsewhere: from memory, or from a file of another format. It is asked for
    /// its bytes when the checkpoint is saved.
    ///
    /// Tensors that are added and [fill one storage](crate::tied::Storage) are tied if their dtypes
    /// and shapes are equal: the first name in sorted order is written. Those that fill only a part
    /// of theirs are tensors of their own.
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
    ///
    /// # Errors
    ///
    /// Those of [`shape::byte_len`](crate::shape::byte_len).
    pub fn add(
        mut self,
        name: impl Into<String>,
        tensor: impl TensorSource + Send + 'a,
    ) -> Result<Self> {
        let name = name.into();
        // What has no bytes has no place in memory either that it could share.
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

    /// Keeps the tensors for which `keep` says so, given the name and the tensor as it is so far,
    /// with all their aliases. An alias that is kept without its tensor is the tensor from then on;
    /// of several, the first.
    #[must_use]
    pub fn select(mut self, mut keep: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool) -> Self {
        // A tensor comes before its aliases.
        let mut kept = HashSet::new();
        self.tensors.retain(|(name, planned)| {
            if keep(name, planned) {
                kept.extend((!planned.alias).then_some(planned.tie));
                return true;
            }
            planned.alias && kept.contains(&planned.tie)
        });
        self
    }

    /// Leaves out the tensors for which `drop` says so, given the name and the tensor as it is so
    /// far, with all their aliases. Of a tensor that stays, only the aliases are left out for which
    /// it says so.
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
    /// assert_eq!(names(Rewrite::of(&checkpoint).without(|name, _| name == "embed")), ["norm"]);
    /// assert_eq!(
    ///     names(Rewrite::of(&checkpoint).without(|name, _| name == "lm_head")),
    ///     ["embed", "norm"]
    /// );
    /// assert_eq!(
    ///     names(Rewrite::of(&checkpoint).select(|name, _| name == "lm_head")),
    ///     ["lm_head"]
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn without(mut self, mut drop: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool) -> Self {
        let mut dropped = HashSet::new();
        self.tensors.retain(|(name, planned)| {
            if drop(name, planned) {
                dropped.extend((!planned.alias).then_some(planned.tie));
                return false;
            }
            !(planned.alias && dropped.contains(&planned.tie))
        });
        self
    }

    /// Gives every tensor the name that `rename` makes of its name.
    #[must_use]
    pub fn rename(mut self, mut rename: impl FnMut(&str) -> String) -> Self {
        self.tensors.iter_mut().for_each(|(name, _)| *name = rename(name));
        self
    }

    /// Converts the tensors for which `dtype` says to what, given the name and the tensor as it is
    /// so far. A tensor that was cast before is converted once, from what it was at first.
    ///
    /// An alias for which `dtype` says nothing is what its tensor is. If it says another dtype than
    /// its tensor gets, also one that the alias has already, the alias is a tensor of its own from
    /// then on. Of aliases that are there without their tensor, the first is the tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoConversion`](crate::ErrorKind::NoConversion), naming the tensor and its file;
    /// those of [`shape::byte_len`](crate::shape::byte_len). Values are looked at only when the
    /// checkpoint is saved.
    pub fn cast(
        mut self,
        options: &ConvertOptions,
        mut dtype: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<Dtype>,
    ) -> Result<Self> {
        self.settle_aliases();
        let mut ties = HashMap::new();
        // What each tensor becomes under its own name, which comes before its aliases.
        let mut own = HashMap::new();
        for (name, planned) in &mut self.tensors {
            let mut to = dtype(name, planned);
            if planned.alias {
                to = to.or_else(|| own.get(&planned.tie).copied());
            } else {
                own.extend(to.map(|to| (planned.tie, to)));
            }
            if let Some(to) = to.filter(|&to| to != planned.dtype()) {
                planned.cast(to, options)?;
                planned.tie =
                    *ties.entry((planned.tie, to)).or_insert_with(|| take(&mut self.next_tie));
            }
        }
        Ok(self)
    }

    /// Makes a tensor of the first name of each tie that has lost its tensor, so that the other
    /// names are aliases of that one. Not as soon as the tensor is lost: a later
    /// [`without`](Rewrite::without) is about the names, and must not take the others along.
    fn settle_aliases(&mut self) {
        let mut with_tensor: HashSet<_> = self
            .tensors
            .iter()
            .filter(|(_, planned)| !planned.alias)
            .map(|(_, planned)| planned.tie)
            .collect();
        for (_, planned) in &mut self.tensors {
            if with_tensor.insert(planned.tie) {
                planned.alias = false;
            }
        }
    }

    /// The metadata that the new checkpoint will have. What the options of the save have goes over
    /// it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The [metadata](Rewrite::metadata), to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// All names with their tensors: the dtype and shape that they will have, and what they are
    /// made of. Tied weights are here under each of their names; [`plan`](Rewrite::plan) tells
    /// which of them is written.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &PlannedTensor<'a, S>)> {
        self.tensors.iter().map(|(name, planned)| (name.as_str(), planned))
    }

    /// Saves everything to one file, as [`save`](crate::save()) does.
    ///
    /// # Errors
    ///
    /// Those of [`save`](crate::save()), of reading, and
    /// [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit).
    pub fn save(self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
        let options = self.options(options);
        save(path, self.tensors, &options)
    }

    /// Saves everything to a directory, in shards, as [`save_sharded`] does.
    ///
    /// # Errors
    ///
    /// Those of [`save_sharded`], of reading, and
    /// [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit).
    pub fn save_sharded(
        self,
        directory: impl AsRef<Path>,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        let options = self.shard_options(options);
        save_sharded(directory, self.tensors, &options)
    }

    /// [`options`](Rewrite::options) for several files.
    fn shard_options(&self, options: &ShardOptions) -> ShardOptions {
        options.clone().save_options(self.options(&options.save_options))
    }

    /// The options with metadata from the sources under their own, and with tied weights kept tied.
    fn options(&self, options: &SaveOptions) -> SaveOptions {
        let own = options.metadata.clone();
        let options =
            SaveOptions { metadata: self.metadata.clone(), ..options.clone() }.metadata(own);
        if options.tied.is_some() {
            return options;
        }
        // Most readers know a tensor by the name in the file only, so a rewrite must not choose
        // another of its names.
        let own_names =
            self.tensors.iter().filter(|(_, planned)| !planned.alias).map(|(name, _)| name);
        options.tied(Tied::new().prefer(own_names).with_empty())
    }
}

/// The next number of a counter.
fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next
}
