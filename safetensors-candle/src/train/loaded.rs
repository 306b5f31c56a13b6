//! [`Loaded`]: the result of a load into variables or into an optimizer.

use safetensors_core::digest::remove_record;
use safetensors_core::{Checkpoint, Metadata};

use super::settings::is_setting;
use super::slots::Filled;

/// The result of a load, in addition to the values of variables and optimizer state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// The metadata of the checkpoint, without the entries that [`AdamW`](super::AdamW) saves for
    /// itself, and without digests, which hold for that checkpoint alone.
    pub metadata: Metadata,
    /// The names of variables, or of optimizer tensors, that the checkpoint lacks, sorted. They
    /// keep their values. Empty unless
    /// [`allow_missing`](super::StateOptions::allow_missing) is on.
    pub missing: Vec<String>,
    /// The names of tensors that were not loaded because nothing needs them, sorted. Empty unless
    /// [`allow_extra`](super::StateOptions::allow_extra) is on.
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
