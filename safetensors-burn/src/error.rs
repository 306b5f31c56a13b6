//! Errors of loading and saving modules, in addition to those of core.

use safetensors_core::framework::NameList;

/// Why a [`CheckpointStore`](crate::CheckpointStore) could not load or save a module.
///
/// This error is the source of an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework).
/// For a tensor of the wrong shape or kind, the source is an [`ApplyError`](crate::ApplyError).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The checkpoint lacks parameters that the module has, and partial loading is not allowed.
    #[error("the checkpoint lacks {}: allow_partial(true) loads the rest", NameList(.names))]
    Missing {
        /// The parameters, by their path in the module.
        names: Vec<String>,
    },
    /// A pattern is not a regular expression.
    #[error("{0}")]
    Pattern(#[source] regex::Error),
    /// The destination of a save is an index. The save would replace the index with tensors.
    #[error("a module is saved to a file or in a directory, not to an index (*.json)")]
    IndexDestination,
    /// The backend panicked while it received a tensor, for example because its device lacks the
    /// dtype.
    #[error("the backend panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}
