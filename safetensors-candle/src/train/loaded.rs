//! [`Loaded`]: the result of a load into variables or into an optimizer.

use safetensors_core::digest::remove_record;
use safetensors_core::{Checkpoint, Metadata};

use super::settings::is_setting;
use super::slots::Filled;

/// The result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// The metadata of the checkpoint, without digests and the entries of [`AdamW`](super::AdamW).
    pub metadata: Metadata,
    /// The sorted names of variables and optimizer tensors that the checkpoint lacks. They keep
    /// their values. Empty without [`allow_missing`](super::StateOptions::allow_missing).
    pub missing: Vec<String>,
    /// The sorted names of tensors that nothing needs. Empty without
    /// [`allow_extra`](super::StateOptions::allow_extra).
    pub extra: Vec<String>,
}

impl Loaded {
    pub(super) fn new<S>(checkpoint: &Checkpoint<S>, filled: Filled) -> Self {
        let metadata = checkpoint.metadata().iter().filter(|(key, _)| !is_setting(key));
        let mut metadata: Metadata =
            metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
        remove_record(&mut metadata);
        Self { metadata, missing: filled.missing, extra: filled.extra }
    }
}
