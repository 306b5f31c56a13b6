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
    pub(crate) names: Option<Names>,
    /// For a shard, its tensors in the index. `None` without an index.
    pub(crate) placed: Option<HashSet<String>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) architecture: &'static str,
    pub(crate) queries: Option<usize>,
    pub(crate) keys: Option<usize>,
}

impl Options {
    /// Returns options with default limits, which list quantised tensors without reading them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets bounds on memory for hostile files.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Reads quantised tensors as F32, which takes several times the bytes. Off by default: reading
    /// one is an error.
    #[must_use]
    pub fn dequantize(mut self, dequantize: bool) -> Self {
        self.dequantize = dequantize;
        self
    }

    /// Reads quantised tensors as the bytes of their blocks: U8, with the bytes of a row as the
    /// last dimension. The program must know the type
    /// ([`TensorFile::stored`](crate::TensorFile::stored)). Off by default. Overrides
    /// [`dequantize`](Self::dequantize).
    #[must_use]
    pub fn blocks(mut self, blocks: bool) -> Self {
        self.blocks = blocks;
        self
    }

    /// Also reads the optimizer's state from directories of DeepSpeed:
    /// `optimizer.state.NAME.exp_avg` for the parameter NAME, and its settings as the metadata
    /// `optimizer.param_groups`. Off by default. Other checkpoints have named states, which are
    /// always read.
    #[must_use]
    pub fn optimizer_state(mut self, optimizer_state: bool) -> Self {
        self.optimizer_state = optimizer_state;
        self
    }
}
