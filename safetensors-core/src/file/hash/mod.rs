//! Digests: the XXH3-128 of a tensor, the SHA-256 of a file's data, and their record in the
//! metadata.

#[cfg(feature = "std")]
mod beside;
#[cfg(feature = "std")]
mod compute;
mod hex;
#[cfg(feature = "std")]
mod options;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod running;
mod sha256;
mod table;
#[cfg(feature = "std")]
mod value;

#[cfg(feature = "std")]
pub use beside::Note;
#[cfg(feature = "std")]
pub(crate) use beside::{check_records, signatures};
#[cfg(feature = "std")]
pub use compute::hash_tensors;
#[cfg(feature = "sha256")]
pub(crate) use compute::of_range;
#[cfg(feature = "std")]
pub(crate) use compute::{of_data, of_tensor};
#[cfg(feature = "std")]
pub use options::DigestOptions;
#[cfg(feature = "std")]
pub use record::{KEY, TensorDigests};
#[cfg(feature = "std")]
pub(crate) use running::RunningDigest;
pub use sha256::Sha256;
#[cfg(feature = "std")]
pub(crate) use sha256::{recorded_sha256, sha256_entry};
#[cfg(feature = "std")]
pub(crate) use table::MANIFEST;
pub(crate) use table::{Change, forget, has_records};
#[cfg(feature = "std")]
pub use table::{remove_record, signed_name};
#[cfg(feature = "std")]
pub use value::{Digest, Hasher};
