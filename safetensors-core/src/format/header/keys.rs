//! The keys with a fixed meaning.

pub(crate) const METADATA_KEY: &str = "__metadata__";

/// The library that wrote the tensors: `pt` for PyTorch.
pub(crate) const FORMAT_KEY: &str = "format";

const MODELSPEC_PREFIX: &str = "modelspec.";

pub(crate) const SHA256_KEY: &str = "modelspec.hash_sha256";

pub(crate) const ATTRIBUTE_PREFIX: &str = "attribute:";

/// The dimension along which a tensor grows, in files of synced steps.
pub(crate) const AXIS_PREFIX: &str = "safetensors_bridge.axis.";

/// Set in a file of synced steps that continue a finished file.
pub(crate) const CONTINUES_KEY: &str = "safetensors_bridge.continues";

const OWN_PREFIX: &str = "safetensors_bridge.";

/// The ids that a library gives parameters: a JSON object with a number for each tensor, or for the
/// paths of parameters that one tensor holds. They follow a renamed tensor.
#[doc(hidden)]
pub const PARAM_IDS_KEY: &str = "safetensors_bridge.param_ids";

/// The numbers of a training that are not tensors, such as an optimizer's steps: a JSON object of
/// [`RecordScalar`](crate::framework::RecordScalar).
#[doc(hidden)]
pub const SCALARS_KEY: &str = "safetensors_bridge.scalars";

pub(crate) const DIGESTS_KEY: &str = "safetensors_bridge.xxh3_128";

pub(crate) const PARTS_KEY: &str = "safetensors_bridge.parts";

pub(crate) const ATTEMPT_KEY: &str = "safetensors_bridge.attempt";

/// The number of files that ranks have saved without an index.
pub(crate) const FILES_KEY: &str = "safetensors_bridge.files";

/// The positions of parts in PyTorch's distributed checkpoints.
pub(crate) const DCP_KEY: &str = "DCP_SHARDING_INFO";

pub(crate) const DCP_VERSION_KEY: &str = "DCP_VERSION";

/// Such a key is never an alias of a tensor.
pub(crate) fn is_reserved(key: &str) -> bool {
    key == FORMAT_KEY
        || [OWN_PREFIX, MODELSPEC_PREFIX, ATTRIBUTE_PREFIX]
            .iter()
            .any(|prefix| key.starts_with(prefix))
}
