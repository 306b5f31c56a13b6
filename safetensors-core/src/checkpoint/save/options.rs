//! [`ShardOptions`]: how a checkpoint is divided, named and saved.

use std::collections::BTreeMap;
use std::io;

use crate::checkpoint::names::is_other_file;
use crate::checkpoint::{FilePattern, MaxShardSize, OtherFiles};
use crate::file::save::SaveOptions;
use crate::format::error::{ErrorKind, Result};

/// How a sharded checkpoint is saved.
///
/// ```
/// use safetensors_core::{SaveOptions, ShardOptions};
///
/// let options = ShardOptions::new()
///     .max_shard_size("500MB".parse()?)
///     .file_pattern("model.fp16{suffix}.safetensors".parse()?)
///     .save_options(SaveOptions::new().metadata([("license", "mit")]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct ShardOptions {
    pub(crate) max_shard_size: MaxShardSize,
    pub(crate) file_pattern: FilePattern,
    pub(crate) save_options: SaveOptions,
    pub(crate) contention: Contention,
    pub(crate) beside: BTreeMap<String, Vec<u8>>,
    pub(crate) others: OtherFiles,
    pub(crate) dcp: bool,
}

impl ShardOptions {
    /// Returns the default options: shards of at most 5 GB, named `model{suffix}.safetensors`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest size of a shard, in bytes of tensors. A larger tensor gets its own shard.
    pub fn max_shard_size(mut self, size: MaxShardSize) -> Self {
        self.max_shard_size = size;
        self
    }

    /// Sets the names of the files.
    pub fn file_pattern(mut self, pattern: FilePattern) -> Self {
        self.file_pattern = pattern;
        self
    }

    /// Sets how each file is saved. If there are several, the metadata goes into their index, as of
    /// `huggingface_hub`, and only `format`, which is `pt` by default, into each file.
    pub fn save_options(mut self, options: SaveOptions) -> Self {
        self.save_options = options;
        self
    }

    /// Adds entries to the metadata of the [`SaveOptions`]. Call it after
    /// [`save_options`](ShardOptions::save_options), which replaces all of them.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.save_options = self.save_options.metadata(entries);
        self
    }

    /// Sets how to react if another save writes to the same directory.
    pub fn contention(mut self, contention: Contention) -> Self {
        self.contention = contention;
        self
    }

    /// Puts a small file next to the tensors in the same save, such as their `config.json`. It gets
    /// its name just before they do, so readers never see the earlier file with the new tensors. If
    /// the save fails, the earlier file is put back.
    ///
    /// A save fails with [`ErrorKind::Io`] if the name is a path, or ends in `.safetensors` or
    /// `.safetensors.index.json`.
    ///
    /// ```
    /// use safetensors_core::{ShardOptions, TensorView, save_sharded};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let bias = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
    /// let options = ShardOptions::new().beside("config.json", r#"{"model_type": "llama"}"#);
    /// save_sharded(dir.path(), [("bias", bias)], &options)?;
    /// assert!(std::fs::read_to_string(dir.path().join("config.json"))?.contains("llama"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn beside(mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        self.beside.insert(name.into(), bytes.into());
        self
    }

    /// Copies the other files of a model into the directory, like files [next to](Self::beside) the
    /// tensors.
    #[doc(hidden)]
    pub fn other_files(mut self, files: OtherFiles) -> Self {
        self.others = files;
        self
    }

    /// Sets whether ranks save their parts as PyTorch's distributed checkpoints (DCP) in
    /// safetensors files: `HuggingFaceStorageReader` reads them, `consolidate_safetensors_files`
    /// and [`Checkpoint::open`](crate::Checkpoint::open) join them. `false` by default.
    ///
    /// The files are named `shard-00001-model-00001-of-00001.safetensors`, for any
    /// [pattern](ShardOptions::file_pattern). `DCP_SHARDING_INFO` in their metadata has the place
    /// of each part. There is no index, so the directory must have no other files of tensors.
    ///
    /// Only [`RankSaver`](crate::ranks::RankSaver) and
    /// [`Rewrite::save_ranks`](crate::Rewrite::save_ranks) on the local disk support it. Other
    /// saves fail with [`ErrorKind::Io`].
    ///
    /// ```
    /// use safetensors_core::ranks::{RankRules, RankSaver};
    /// use safetensors_core::{Checkpoint, ShardOptions, TensorView};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let whole = TensorView::from_slice(&[2, 2], &[1_u8, 2, 3, 4])?;
    /// let rules = RankRules::new().parse_rule("w=split:1")?;
    /// let plan = rules.plan_tensors([("w", whole.dtype(), vec![2, 2])], 2)?;
    /// for rank in 0..2 {
    ///     let part = whole.slice((.., rank..rank + 1))?;
    ///     let saver = RankSaver::new(&plan, rank, "step-1");
    ///     saver.save(dir.path(), [("w", part)], &ShardOptions::new().dcp(true))?;
    /// }
    /// assert!(dir.path().join("shard-00002-model-00001-of-00001.safetensors").exists());
    /// let checkpoint = Checkpoint::open(dir.path())?;
    /// assert_eq!(checkpoint.tensor("w")?.read()?.as_slice::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dcp(mut self, dcp: bool) -> Self {
        self.dcp = dcp;
        self
    }

    /// Returns `true` if existing files are replaced.
    #[doc(hidden)]
    pub fn overwrites(&self) -> bool {
        self.save_options.overwrites()
    }

    pub(crate) fn check_beside(&self) -> Result<()> {
        let Some(name) = self.beside.keys().find(|name| !is_other_file(name)) else {
            return Ok(());
        };
        let problem = format!(
            "expected the name of a file next to the tensors, without folders and without the \
             ending of a file of tensors or of an index, found {name:?}"
        );
        Err(ErrorKind::Io(io::Error::new(io::ErrorKind::InvalidInput, problem)).into())
    }

    pub(crate) fn with_beside<'f>(&'f self, files: &[&'f str]) -> Vec<&'f str> {
        let beside = self.beside.keys().map(String::as_str).chain(self.others.names());
        files.iter().copied().chain(beside).collect()
    }

    /// Returns the pattern of the files and the index.
    #[doc(hidden)]
    pub fn pattern(&self) -> &FilePattern {
        &self.file_pattern
    }
}

impl AsMut<SaveOptions> for ShardOptions {
    fn as_mut(&mut self) -> &mut SaveOptions {
        &mut self.save_options
    }
}

/// How a sharded save reacts if another one writes to the same directory. Complete files are put in
/// place by one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contention {
    /// Waits until the other save has put its files in place, and then replaces them.
    #[default]
    Wait,
    /// Fails with [`ErrorKind::DirectoryBusy`](crate::ErrorKind::DirectoryBusy) if the other save
    /// is putting its files in place, or has done so since this one began. Its files stay.
    Fail,
}
