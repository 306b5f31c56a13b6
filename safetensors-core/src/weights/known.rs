//! [`Known`]: facts about the tensors of a checkpoint.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::config::Config;
use super::matrix::Stored;
use super::tensors::Tensors;
use crate::format::error::Result;
use crate::format::tensor::TensorBuf;

/// The settings of a checkpoint, and its tensors that were looked at. Every call needs the same
/// [`Tensors`].
#[derive(Debug)]
pub(crate) struct Known {
    pub(super) config: Config,
    pub(super) beside: OnceLock<Beside>,
    /// Set if no tensor was found to have codes.
    pub(super) has_none: OnceLock<()>,
    /// By position. Most tensors of a checkpoint are never looked at.
    looked_at: Vec<OnceLock<Vec<OnceLock<LookedAt>>>>,
}

/// The companions and marks of an entire checkpoint, found when the first tensor may have codes.
#[derive(Debug)]
pub(super) struct Beside {
    /// The names of companions, sorted.
    pub(super) names: Vec<String>,
    /// The scales of caches, and marks, by the layer of the model with their weights.
    pub(super) shared: BTreeMap<String, Vec<String>>,
    /// The modules that ComfyUI's metadata marks, by their names without prefixes.
    pub(super) marks: BTreeMap<String, (String, Value)>,
    /// The files have something of ComfyUI's.
    pub(super) is_of_comfy: bool,
}

#[derive(Debug)]
pub(super) struct LookedAt {
    pub(super) stored: Stored,
    /// The elements, if the tensor describes others.
    pub(super) note: OnceLock<TensorBuf>,
    /// Set if the tensor was found to have no codes. A program may read many slices of it.
    pub(super) is_plain: OnceLock<()>,
}

fn empty<T>(count: usize) -> Vec<OnceLock<T>> {
    (0..count).map(|_| OnceLock::new()).collect()
}

/// The number of neighbours that get their memory together.
const TOGETHER: usize = 256;

impl Known {
    /// Reads the settings next to a checkpoint.
    pub(crate) fn new(tensors: &dyn Tensors) -> Result<Self> {
        let config = Config::beside(tensors)?;
        let looked_at = empty(tensors.count().div_ceil(TOGETHER));
        Ok(Self { config, beside: OnceLock::new(), has_none: OnceLock::new(), looked_at })
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
