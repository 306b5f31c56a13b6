//! The ids of parameters, in the metadata of a file.
//!
//! burn finds the state of an optimizer by the ids of the parameters. The format has no place for
//! them, so they are one entry of the metadata: a JSON object with the id of each tensor, by the
//! tensor's name in the file. In the layout of PyTorch a tensor may hold several parameters. Their
//! ids are recorded by their paths in the module. No other reader gives this key a meaning.

use std::collections::BTreeMap;

use burn::module::ParamId;
pub(crate) use safetensors_core::framework::PARAM_IDS_KEY as KEY;
use safetensors_core::header::Metadata;
use safetensors_core::{Error, Result};

use crate::{Burn, StoreError};

/// The ids of tensors, by the names of the tensors in the file. Sorted, so that the same ids give
/// the same text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(BTreeMap<String, u64>);

impl Ids {
    /// Reads the entry.
    pub(crate) fn of(metadata: &Metadata) -> Result<Self> {
        match metadata.get(KEY) {
            Some(text) => serde_json::from_str(text).map(Self).map_err(malformed),
            None => Err(Error::framework::<Burn>(StoreError::NoParamIds { key: KEY })),
        }
    }

    /// Returns the text of the entry.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string(&self.0).map_err(malformed)
    }

    pub(crate) fn get(&self, tensor: &str) -> Option<u64> {
        self.0.get(tensor).copied()
    }
}

impl<N: Into<String>> FromIterator<(N, ParamId)> for Ids {
    fn from_iter<I: IntoIterator<Item = (N, ParamId)>>(ids: I) -> Self {
        Self(ids.into_iter().map(|(name, id)| (name.into(), id.val())).collect())
    }
}

fn malformed(error: serde_json::Error) -> Error {
    Error::framework::<Burn>(StoreError::ParamIds { key: KEY, source: error })
}
