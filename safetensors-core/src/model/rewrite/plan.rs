//! [`Plan`]: the outcome of a rewrite.

use std::collections::BTreeMap;
use std::path::Path;

use super::{PlannedTensor, Rewrite};
use crate::checkpoint::{
    Assembled, FilePattern, ShardOptions, check_directory, files_of, plan_shards,
};
use crate::file::hash::{self, Change, Note, signatures};
use crate::file::io::ReadAt;
use crate::file::save::layout::Layout;
use crate::file::save::spec::Spec;
use crate::file::save::{SaveOptions, atomic};
use crate::format::error::Result;
use crate::format::header::Metadata;
use crate::format::tensor::named;
use crate::format::tied;

/// The tensors that a [`Rewrite`] will write, each once, with the recorded aliases, and the files.
///
/// ```
/// use safetensors_core::{Dtype, Rewrite, SaveOptions, TensorSource, TensorView};
///
/// let values = [1.0_f32, 2.0];
/// let weight = TensorView::from_slice(&[2], &values)?;
/// let rewrite = Rewrite::new()
///     .add("head", weight)?
///     .add("embed", weight)?
///     .rename(|name| format!("model.{name}"));
/// let plan = rewrite.plan(&SaveOptions::new())?;
/// let tensors: Vec<_> = plan
///     .tensors()
///     .map(|(name, tensor)| (name, tensor.dtype(), tensor.byte_len()))
///     .collect();
/// assert_eq!(tensors, [("model.embed", Dtype::F32, 8)]);
/// assert_eq!(plan.aliases()["model.head"], "model.embed");
/// assert_eq!(plan.total_size(), 8);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Plan<'r, 'a, S = Assembled> {
    tensors: Vec<(&'r str, &'r PlannedTensor<'a, S>)>,
    aliases: BTreeMap<String, String>,
    /// Each with the positions of its tensors in `tensors`.
    shards: Vec<(String, Vec<usize>)>,
    /// `None` for a save to one file.
    pattern: Option<FilePattern>,
    total_size: u64,
    removed: Vec<Note>,
    pub(super) options: SaveOptions,
}

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Plans a [`save`](Rewrite::save) with these options. No data is read or written.
    ///
    /// # Errors
    ///
    /// As for [`save`](Rewrite::save), as far as they are found before data is read.
    pub fn plan(&self, options: &SaveOptions) -> Result<Plan<'_, 'a, S>> {
        self.refuse_deselected()?;
        let mut options = self.complete_options(options);
        let mut tensors: Vec<_> = self.tensors().collect();
        let aliases = match &options.tied {
            Some(tied) => tied::drop_copies(&mut named(&tensors), tied)?,
            None => BTreeMap::new(),
        };
        tensors.retain(|&(name, _)| !aliases.contains_key(name));
        tied::record(&mut options.metadata, aliases.clone())?;
        Layout::plan(&Spec::of_all(&named(&tensors)), &options)?;
        // The sum cannot overflow: the layout has added up the lengths before and checked the sum.
        let total_size = tensors.iter().map(|(_, tensor)| tensor.byte_len()).sum();
        let removed = self.removed_records(&options);
        Ok(Plan {
            tensors,
            aliases,
            shards: Vec::new(),
            pattern: None,
            total_size,
            removed,
            options,
        })
    }

    fn removed_records(&self, options: &SaveOptions) -> Vec<Note> {
        let removed = self.removed.iter().filter(|key| !(options.digests && **key == hash::KEY));
        removed.map(|&key| Note::Removed { key }).collect()
    }

    /// Plans a [`save_sharded`](Rewrite::save_sharded) with these options. No data is read or
    /// written.
    ///
    /// # Errors
    ///
    /// As for [`plan`](Rewrite::plan); [`ErrorKind::BadIndex`](crate::ErrorKind::BadIndex) if the
    /// index would exceed the default [`Limits`](crate::Limits).
    pub fn plan_sharded(&self, options: &ShardOptions) -> Result<Plan<'_, 'a, S>> {
        self.refuse_deselected()?;
        let options = self.complete_shard_options(options);
        let mut tensors: Vec<_> = self.tensors().collect();
        let plan = plan_shards(&mut named(&tensors), &options)?;
        tensors.retain(|&(name, _)| !plan.aliases.contains_key(name));
        for positions in &plan.split.shards {
            let specs: Vec<_> =
                positions.iter().map(|&i| Spec::new(tensors[i].0, tensors[i].1)).collect();
            Layout::plan(&specs, &plan.each)?;
        }
        let shards = plan.files.into_iter().zip(plan.split.shards).collect();
        let pattern = Some(options.pattern().clone());
        Ok(Plan {
            tensors,
            aliases: plan.aliases,
            shards,
            pattern,
            total_size: plan.split.total_size,
            removed: self.removed_records(&plan.each),
            options: plan.each,
        })
    }
}

impl<'r, 'a, S> Plan<'r, 'a, S> {
    /// Returns the tensors that will be written, each under its name in the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&'r str, &'r PlannedTensor<'a, S>)> {
        self.tensors.iter().copied()
    }

    /// Returns the recorded aliases of tied weights, each with the name of its tensor in the file.
    pub fn aliases(&self) -> &BTreeMap<String, String> {
        &self.aliases
    }

    /// Returns the metadata that will be written into each file, with the [aliases](Plan::aliases).
    pub fn metadata(&self) -> &Metadata {
        &self.options.metadata
    }

    /// Returns the files of a sharded save with their tensors, in order, without the index.
    pub fn files(
        &self,
    ) -> impl ExactSizeIterator<
        Item = (&str, impl ExactSizeIterator<Item = (&'r str, &'r PlannedTensor<'a, S>)>),
    > {
        self.shards
            .iter()
            .map(|(name, positions)| (name.as_str(), positions.iter().map(|&i| self.tensors[i])))
    }

    /// Checks whether the plan can be written to this file or directory. Missing permissions and a
    /// full disk are not found. Unlike a save, this refuses a directory that would not open as a
    /// new single file, because of other `*.safetensors` files or another index.
    ///
    /// ```
    /// use safetensors_core::{ErrorKind, Rewrite, SaveOptions, ShardOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let rewrite = Rewrite::new().add("weight", weight)?;
    /// let options = ShardOptions::new().file_pattern("own{suffix}.safetensors".parse()?);
    /// let plan = rewrite.plan_sharded(&options)?;
    /// plan.check_destination(dir.path())?;
    /// save(dir.path().join("other.safetensors"), [("other", weight)], &SaveOptions::new())?;
    /// let error = plan.check_destination(dir.path()).unwrap_err();
    /// let ErrorKind::NotAlone { others, .. } = error.kind() else { unreachable!("{error}") };
    /// assert_eq!(others, &["other.safetensors"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile);
    /// [`ErrorKind::NotAlone`](crate::ErrorKind::NotAlone);
    /// [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile);
    /// [`ErrorKind::FileExists`](crate::ErrorKind::FileExists).
    #[doc(hidden)]
    pub fn check_destination(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Some(pattern) = &self.pattern else {
            return atomic::check(path, &self.options);
        };
        let files: Vec<_> = self.shards.iter().map(|(file, _)| file.as_str()).collect();
        check_directory(path, pattern, &files, &self.options)
    }

    /// Returns the side effects of a save to this path: digests that are not kept, and signatures
    /// that may be of replaced files.
    pub fn notes(&self, path: impl AsRef<Path>) -> Vec<Note> {
        let path = path.as_ref();
        let mut notes = self.removed.clone();
        if path.exists() {
            let file = self.pattern.as_ref().map(|pattern| path.join(pattern.file_name(0, 1)));
            notes.extend(signatures(file.as_deref().unwrap_or(path), Change::File));
        }
        notes
    }

    /// Returns the names of the files that a sharded save to this directory removes, like
    /// `huggingface_hub`: all shards of the same pattern that are not written again.
    ///
    /// ```
    /// use safetensors_core::{Rewrite, SaveOptions, ShardOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let old = TensorView::from_slice(&[1], &[1.0_f32])?;
    /// let path = dir.path().join("model-00001-of-00002.safetensors");
    /// save(path, [("old", old)], &SaveOptions::new())?;
    ///
    /// let rewrite = Rewrite::new().add("new", old)?;
    /// let plan = rewrite.plan_sharded(&ShardOptions::new())?;
    /// assert_eq!(plan.removed_files(dir.path())?, ["model-00001-of-00002.safetensors"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)]
    pub fn removed_files(&self, directory: impl AsRef<Path>) -> Result<Vec<String>> {
        let directory = directory.as_ref();
        match &self.pattern {
            Some(pattern) if directory.exists() => {
                let files: Vec<_> = self.shards.iter().map(|(file, _)| file.as_str()).collect();
                let mut names = files_of(directory, pattern)?;
                names.retain(|name| !files.contains(&name.as_str()));
                let single = pattern.file_name(0, 1);
                names.sort_unstable_by(|a, b| (*a != single, a).cmp(&(*b != single, b)));
                Ok(names)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the number of bytes of all tensors that will be written.
    pub fn total_size(&self) -> u64 {
        self.total_size
    }
}
