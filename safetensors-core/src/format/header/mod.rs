//! The header: the entries of all tensors, and the metadata.

mod attributes;
mod canonical;
#[cfg(feature = "std")]
mod dimensions;
mod encode;
mod json;
mod keys;
mod limits;
mod looks_like;
mod mark;
mod model;
mod names;
mod parse;
#[cfg(feature = "std")]
mod read;
mod scan;
#[cfg(test)]
mod tests;
#[cfg(feature = "std")]
mod unique_map;
mod validate;

pub use attributes::{attribute_key, attributes};
#[cfg(feature = "std")]
pub(crate) use attributes::{join_entry, rename_attributes};
#[cfg(feature = "std")]
pub use dimensions::dimensions;
#[cfg(feature = "std")]
pub(crate) use dimensions::{DIMENSIONS, dimensions_text};
pub(crate) use encode::{HeaderEntry, encode};
pub(crate) use keys::{
    ATTEMPT_KEY, AXIS_PREFIX, CONTINUES_KEY, DCP_KEY, DCP_VERSION_KEY, DIGESTS_KEY, FILES_KEY,
    FORMAT_KEY, METADATA_KEY, PARTS_KEY, SHA256_KEY, is_reserved,
};
pub use keys::{PARAM_IDS_KEY, SCALARS_KEY};
pub use limits::Limits;
pub(crate) use looks_like::{START, explain, telling};
pub(crate) use mark::{is_marked, mark};
pub use model::{Header, Metadata, TensorInfo};
pub(crate) use names::NameTable;
#[cfg(feature = "std")]
pub(crate) use unique_map::{UniqueMap, duplicate_key};

pub(crate) const LENGTH_BYTES: usize = 8;
