//! Parameter ids and numbers: separate in burnpack, metadata in a safetensors file.

use std::collections::BTreeMap;
use std::io;

use safetensors_core::Metadata;
use safetensors_core::framework::{PARAM_IDS_KEY, SCALARS_KEY};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ErrorKind, Result};

pub(super) type Entry = (&'static str, &'static str);

pub(super) const IDS: Entry = (PARAM_IDS_KEY, "ids of parameters");
pub(super) const SCALARS: Entry = (SCALARS_KEY, "typed scalars");

pub(super) fn take<T: DeserializeOwned>(
    metadata: &mut Metadata,
    (key, what): Entry,
) -> Result<BTreeMap<String, T>> {
    let Some(text) = metadata.remove(key) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(&text).map_err(|error| {
        let problem = format!("the metadata entry {key} has no {what} ({error})");
        ErrorKind::NotForBurn { problem }.into()
    })
}

pub(super) fn put<T: Serialize + DeserializeOwned>(
    metadata: &mut Metadata,
    entry: Entry,
    more: impl IntoIterator<Item = (String, T)>,
) -> Result<()> {
    let mut all = take(metadata, entry)?;
    all.extend(more);
    if !all.is_empty() {
        metadata.insert(entry.0.into(), serde_json::to_string(&all).map_err(io::Error::from)?);
    }
    Ok(())
}
