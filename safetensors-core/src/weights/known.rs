//! [`Known`]: what is known of the quantised weights of a checkpoint, and the [`Tensors`] that it is
//! known of.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::config::Config;
use super::matrix::Stored;
use super::model::{Model, Weight};
use super::schemes;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::header::Metadata;
use crate::tensor::TensorBuf;

/// The tensors of a checkpoint and the files beside it, whatever its sources.
pub(crate) trait Tensors {
    /// The number of tensors.
    fn count(&self) -> usize;

    /// The position of the tensor of this name or alias.
    fn position(&self, name: &str) -> Option<usize>;

    /// The tensor at a position.
    fn at(&self, position: usize) -> Option<Stored>;

    /// The other names of a tensor.
    fn aliases(&self, name: &str) -> Vec<String>;

    /// The metadata of all files.
    fn metadata(&self) -> &Metadata;

    /// Reads the tensors at these positions.
    fn read(&self, positions: &[usize]) -> Result<Vec<TensorBuf>>;

    /// Reads a file beside the checkpoint, of at most so many bytes.
    fn read_beside(&self, name: &str, most: u64) -> Result<Option<(PathBuf, Vec<u8>)>>;
}

/// Whether elements of this dtype may be codes of a quantised weight. A checkpoint without any such
/// tensor has none.
pub(crate) fn may_be_codes(dtype: Dtype) -> bool {
    use Dtype::{BF16, BOOL, C64, F16, F32, F64, I64};
    !matches!(dtype, F64 | F32 | F16 | BF16 | BOOL | I64 | C64)
}

/// The settings of a checkpoint, and those of its tensors that were looked at. It is made once, and
/// belongs to the same [`Tensors`] in every call.
#[derive(Debug)]
pub(crate) struct Known {
    pub(super) config: Config,
    /// By position. Most tensors of a checkpoint are never looked at.
    looked_at: Vec<OnceLock<Vec<OnceLock<LookedAt>>>>,
}

#[derive(Debug)]
pub(super) struct LookedAt {
    pub(super) stored: Stored,
    /// The elements, if the tensor describes others.
    pub(super) note: OnceLock<TensorBuf>,
}

fn empty<T>(count: usize) -> Vec<OnceLock<T>> {
    (0..count).map(|_| OnceLock::new()).collect()
}

/// How many neighbours get their memory together.
const TOGETHER: usize = 256;

impl Known {
    /// Reads the settings beside a checkpoint.
    pub(crate) fn new(tensors: &dyn Tensors) -> Result<Self> {
        let config = Config::beside(tensors)?;
        let looked_at = empty(tensors.count().div_ceil(TOGETHER));
        Ok(Self { config, looked_at })
    }

    /// The tensor at a position.
    pub(super) fn get(&self, tensors: &dyn Tensors, position: usize) -> Option<&LookedAt> {
        let neighbours = self.looked_at.get(position / TOGETHER)?;
        let neighbours = neighbours.get_or_init(|| empty(TOGETHER));
        let place = &neighbours[position % TOGETHER];
        if place.get().is_none() {
            let stored = tensors.at(position)?;
            _ = place.set(LookedAt { stored, note: OnceLock::new() });
        }
        place.get()
    }

    /// The quantised weights, in the order of the tensors that have their codes.
    pub(crate) fn weights(&self, tensors: &dyn Tensors) -> Result<Vec<Weight>> {
        let model = Model::new(self, tensors);
        model.read_notes()?;
        let found = schemes::weights(&model);
        model.checked(found)
    }

    /// The quantised weight that has its codes in a tensor; `None` for a plain tensor.
    pub(crate) fn of_tensor(
        &self,
        tensors: &dyn Tensors,
        position: usize,
    ) -> Result<Option<Weight>> {
        let Some(LookedAt { stored, .. }) = self.get(tensors, position) else { return Ok(None) };
        let model = Model::new(self, tensors);
        let found = schemes::of_codes(&model, stored);
        model.checked(found)
    }
}
