//! The keys of `__metadata__` that have a meaning of their own.

/// The key of the metadata among the tensors of a header.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// The key that says which library wrote the tensors: `pt` for PyTorch.
pub(crate) const FORMAT_KEY: &str = "format";

/// The start of every key of the model standard.
pub(crate) const MODELSPEC_PREFIX: &str = "modelspec.";

/// The key of the SHA-256 of all data, as the model standard has it.
#[cfg(feature = "std")]
pub(crate) const SHA256_KEY: &str = "modelspec.hash_sha256";

/// The start of every key of this project.
const OWN_PREFIX: &str = "safetensors_bridge.";

/// The key of the digests of all tensors.
#[cfg(feature = "std")]
pub(crate) const DIGESTS_KEY: &str = "safetensors_bridge.xxh3_128";

/// Whether a metadata key has a meaning of its own, so that it never names a tensor.
pub(crate) fn is_reserved(key: &str) -> bool {
    key == FORMAT_KEY || key.starts_with(OWN_PREFIX) || key.starts_with(MODELSPEC_PREFIX)
}
