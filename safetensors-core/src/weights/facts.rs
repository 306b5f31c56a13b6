//! [`TensorFacts`]: facts about the tensors of a checkpoint.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::config::Config;
use super::matrix::Stored;
use super::tensors::Tensors;
use crate::format::error::Result;
use crate::format::tensor::TensorBuf;

/// Every call needs the same [`Tensors`].
#[derive(Debug)]
pub(crate) struct TensorFacts {
    pub(super) config: Config,
    pub(super) companions: OnceLock<Companions>,
    pub(super) has_none: OnceLock<()>,
    // By position. Most tensors of a checkpoint are never looked at.
    looked_at: Vec<OnceLock<Vec<OnceLock<LookedAt>>>>,
}

/// Companions and marks, found when the first tensor may have codes.
#[derive(Debug)]
pub(super) struct Companions {
    pub(super) names: Vec<String>,
    /// Scales of caches, and marks, by the layer of the model.
    pub(super) shared: BTreeMap<String, Vec<String>>,
    /// Modules that ComfyUI's metadata marks, without prefixes.
    pub(super) marks: BTreeMap<String, (String, Value)>,
    pub(super) is_of_comfy: bool,
}

#[derive(Debug)]
pub(super) struct LookedAt {
    pub(super) stored: Stored,
    /// Set if the tensor describes others.
    pub(super) note: OnceLock<TensorBuf>,
    // A program may read many slices of a plain tensor.
    pub(super) is_plain: OnceLock<()>,
}

fn empty<T>(count: usize) -> Vec<OnceLock<T>> {
    (0..count).map(|_| OnceLock::new()).collect()
}

const TOGETHER: usize = 256;

impl TensorFacts {
    pub(crate) fn new(tensors: &dyn Tensors) -> Result<Self> {
        let config = Config::next_to(tensors)?;
        let looked_at = empty(tensors.count().div_ceil(TOGETHER));
        Ok(Self { config, companions: OnceLock::new(), has_none: OnceLock::new(), looked_at })
    }

    pub(super) fn get(&self, tensors: &dyn Tensors, position: usize) -> Option<&LookedAt> {
        let neighbours = self.looked_at.get(position / TOGETHER)?;
        let neighbours = neighbours.get_or_init(|| empty(TOGETHER));
        let place = &neighbours[position % TOGETHER];
        if place.get().is_none() {
            let stored = tensors.at(position)?;
            _ = place.set(LookedAt { stored, note: OnceLock::new(), is_plain: OnceLock::new() });
        }
        place.get()
    }
}
