//! The keys with a fixed meaning, in the header and in `__metadata__`.

/// The key of a header's metadata, next to the names of tensors.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// The key for the library that wrote the tensors; its value is `pt` for PyTorch.
pub(crate) const FORMAT_KEY: &str = "format";

/// The prefix of every key of the ModelSpec standard.
const MODELSPEC_PREFIX: &str = "modelspec.";

/// The ModelSpec key for the SHA-256 of all data.
pub(crate) const SHA256_KEY: &str = "modelspec.hash_sha256";

/// The prefix of every key that describes one tensor, see [`attributes`](super::attributes()).
pub(crate) const ATTRIBUTE_PREFIX: &str = "attribute:";

/// The prefix of the keys that say along which dimension a tensor grows. Only files of synced steps
/// have them.
pub(crate) const AXIS_PREFIX: &str = "safetensors_bridge.axis.";

/// Set if the steps of a synced file continue the steps of a finished file. Only files of synced
/// steps have it.
pub(crate) const CONTINUES_KEY: &str = "safetensors_bridge.continues";

/// The prefix of every key of this project.
const OWN_PREFIX: &str = "safetensors_bridge.";

/// The metadata key of the ids that a library gives parameters: a JSON object with a number for
/// each name of a tensor. A tensor that holds several parameters has their paths in the module. The
/// ids follow a tensor that is renamed or skipped, as attributes do.
#[doc(hidden)]
pub const PARAM_IDS_KEY: &str = "safetensors_bridge.param_ids";

/// The metadata key of the numbers of a training that are not tensors, such as the steps of an
/// optimizer: a JSON object with a [`RecordScalar`](crate::framework::RecordScalar) for each name.
#[doc(hidden)]
pub const SCALARS_KEY: &str = "safetensors_bridge.scalars";

/// The key of the digests of all tensors.
pub(crate) const DIGESTS_KEY: &str = "safetensors_bridge.xxh3_128";

/// The key of the parts of tensors that a file of a rank has.
pub(crate) const PARTS_KEY: &str = "safetensors_bridge.parts";

/// The key, in the index or the one file, of the attempt that ranks have saved.
pub(crate) const ATTEMPT_KEY: &str = "safetensors_bridge.attempt";

/// The key of the number of files that ranks have saved together, where no index names them.
pub(crate) const FILES_KEY: &str = "safetensors_bridge.files";

/// The key of the positions of the parts of tensors that a file of PyTorch's distributed
/// checkpoints has.
pub(crate) const DCP_KEY: &str = "DCP_SHARDING_INFO";

/// The key of the version of [`DCP_KEY`].
pub(crate) const DCP_VERSION_KEY: &str = "DCP_VERSION";

/// Returns whether a metadata key has a fixed meaning. Such a key is never an alias of a tensor.
pub(crate) fn is_reserved(key: &str) -> bool {
    key == FORMAT_KEY
        || [OWN_PREFIX, MODELSPEC_PREFIX, ATTRIBUTE_PREFIX]
            .iter()
            .any(|prefix| key.starts_with(prefix))
}
