//! Digests: XXH3-128 of tensors, SHA-256 of data, and their records.

#[cfg(feature = "std")]
mod compute;
mod hex;
#[cfg(feature = "std")]
mod options;
#[cfg(feature = "std")]
mod other_records;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod running;
mod sha256;
mod table;
#[cfg(feature = "std")]
mod value;

#[cfg(feature = "std")]
pub use self::{
    compute::hash_tensors,
    options::DigestOptions,
    other_records::Note,
    record::{KEY, TensorDigests},
    table::remove_record,
    value::{Digest, Hasher},
};
#[cfg(feature = "std")]
pub(crate) use self::{
    compute::{of_data, of_tensor},
    other_records::{check_records, signatures},
    running::RunningDigest,
};
#[cfg(feature = "sha256")]
pub(crate) use compute::of_range;
pub use sha256::Sha256;
pub(crate) use sha256::{recorded_sha256, sha256_entry};
pub(crate) use table::{Change, MANIFEST, forget, has_records, signed_name};
