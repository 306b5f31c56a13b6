//! The ids of parameters, in the metadata: by tensors, or by paths.
//! Paths are needed if PyTorch's layout has several parameters in a tensor.

use std::collections::BTreeMap;

pub(crate) use safetensors_core::framework::PARAM_IDS_KEY as KEY;
use safetensors_core::header::Metadata;
use safetensors_core::{Error, Result};

use crate::StoreError;

/// The ids by name, sorted, so that the same ids give the same text.
pub(crate) type Ids = BTreeMap<String, u64>;

pub(crate) fn read(metadata: &Metadata) -> Result<Ids> {
    match metadata.get(KEY) {
        Some(text) => serde_json::from_str(text).map_err(malformed),
        None => Err(StoreError::NoParamIds { key: KEY }.into()),
    }
}

pub(crate) fn to_json(ids: &Ids) -> Result<String> {
    serde_json::to_string(ids).map_err(malformed)
}

fn malformed(error: serde_json::Error) -> Error {
    StoreError::ParamIds { key: KEY, source: error }.into()
}
