//! [`Options`]: how files of other formats are opened.

use std::collections::HashSet;

use crate::Limits;

/// How a file of another format is opened.
///
/// ```
/// use safetensors_formats::{Limits, Options};
///
/// let mut limits = Limits::default();
/// limits.members = 1000;
/// let options = Options::new().limits(limits).dequantize(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) limits: Limits,
    pub(crate) dequantize: bool,
    pub(crate) blocks: bool,
    pub(crate) optimizer_state: bool,
    /// Transformers' names for the tensors of a GGUF file.
    pub(crate) names: Option<Names>,
    /// For a shard, the tensors that its index places in it. `None` for a file without an index.
    pub(crate) placed: Option<HashSet<String>>,
}

/// The metadata of a GGUF file that decides transformers' names and numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) architecture: &'static str,
    /// The number of heads of queries, and of keys.
    pub(crate) queries: Option<usize>,
    pub(crate) keys: Option<usize>,
}

impl Options {
    /// Uses the default limits; quantised tensors are listed, and not read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets bounds on the memory that a hostile file can make a reader use.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets whether quantised tensors are read as numbers, which are F32. Otherwise reading one is
    /// an error. `false` by default, because the numbers take several times the bytes.
    #[must_use]
    pub fn dequantize(mut self, dequantize: bool) -> Self {
        self.dequantize = dequantize;
        self
    }

    /// Sets whether quantised tensors are read as the bytes of their blocks, which are U8: the last
    /// dimension counts the bytes of a row. They are no numbers, so this is for programs that know
    /// the type, see [`TensorFile::stored`](crate::TensorFile::stored). `false` by default. It
    /// overrides [`dequantize`](Self::dequantize).
    #[must_use]
    pub fn blocks(mut self, blocks: bool) -> Self {
        self.blocks = blocks;
        self
    }

    /// Sets whether the state of the optimizer is read, too, from directories of DeepSpeed, in
    /// which it would otherwise have no names: `optimizer.state.NAME.exp_avg` for the parameter
    /// NAME. Its settings are then the entry `optimizer.param_groups` of the metadata. `false` by
    /// default. Other checkpoints have such tensors under their own names, which are always read.
    #[must_use]
    pub fn optimizer_state(mut self, optimizer_state: bool) -> Self {
        self.optimizer_state = optimizer_state;
        self
    }
}
