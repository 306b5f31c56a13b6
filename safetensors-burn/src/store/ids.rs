//! The ids of parameters, in the metadata of a file.
//!
//! burn finds the state of an optimizer by the ids of the parameters. The format has no place for
//! them, so they are one entry of the metadata: a JSON object with the id of each tensor, by the
//! tensor's name in the file. In the layout of PyTorch a tensor may hold several parameters. Their
//! ids are recorded by their paths in the module. No other reader gives this key a meaning.

use std::collections::BTreeMap;

pub(crate) use safetensors_core::framework::PARAM_IDS_KEY as KEY;
use safetensors_core::header::Metadata;
use safetensors_core::{Error, Result};

use crate::StoreError;

/// The ids of tensors, by the names of the tensors in the file. Sorted, so that the same ids give
/// the same text.
pub(crate) type Ids = BTreeMap<String, u64>;

/// Reads the entry.
pub(crate) fn read(metadata: &Metadata) -> Result<Ids> {
    match metadata.get(KEY) {
        Some(text) => serde_json::from_str(text).map_err(malformed),
        None => Err(StoreError::NoParamIds { key: KEY }.into()),
    }
}

/// Returns the text of the entry.
pub(crate) fn to_json(ids: &Ids) -> Result<String> {
    serde_json::to_string(ids).map_err(malformed)
}

fn malformed(error: serde_json::Error) -> Error {
    StoreError::ParamIds { key: KEY, source: error }.into()
}
