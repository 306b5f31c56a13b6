//! Content with its own place in burnpack, and only metadata in a safetensors file: the ids of
//! parameters, and numbers that are not tensors. The burn adapter uses the same texts.

use std::collections::BTreeMap;
use std::io;

use safetensors_core::Metadata;
use safetensors_core::framework::{PARAM_IDS_KEY, RecordScalar, SCALARS_KEY};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::content::{Pairs, Scalar};
use crate::error::{ErrorKind, Result};

pub(super) type Ids = BTreeMap<String, u64>;

impl From<Scalar> for RecordScalar {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::UInt(number) => Self::U64(number),
            Scalar::Int(number) => Self::I64(number),
            Scalar::Bool(value) => Self::Bool(value),
            Scalar::Float(number) => Self::F64(number),
        }
    }
}

impl From<RecordScalar> for Scalar {
    fn from(scalar: RecordScalar) -> Self {
        match scalar {
            RecordScalar::U64(number) => Self::UInt(number),
            RecordScalar::I64(number) => Self::Int(number),
            RecordScalar::Bool(value) => Self::Bool(value),
            RecordScalar::F64(number) => Self::Float(number),
        }
    }
}

/// Takes the ids of parameters out of the metadata.
pub(super) fn take_ids(metadata: &mut Metadata) -> Result<Ids> {
    take(metadata, PARAM_IDS_KEY, "ids of parameters")
}

/// Adds ids to the metadata's.
pub(super) fn put_ids(metadata: &mut Metadata, ids: Ids) -> Result<()> {
    let mut all = take_ids(metadata)?;
    all.extend(ids);
    put(metadata, PARAM_IDS_KEY, &all)
}

/// Takes the scalars out of the metadata.
pub(super) fn take_scalars(metadata: &mut Metadata) -> Result<Pairs<Scalar>> {
    let typed: BTreeMap<_, RecordScalar> = take(metadata, SCALARS_KEY, "typed scalars")?;
    Ok(Pairs(typed.into_iter().map(|(name, scalar)| (name, scalar.into())).collect()))
}

/// Adds scalars to the metadata's.
pub(super) fn put_scalars(metadata: &mut Metadata, Pairs(scalars): Pairs<Scalar>) -> Result<()> {
    let Pairs(mut all) = take_scalars(metadata)?;
    all.extend(scalars);
    let typed: BTreeMap<_, RecordScalar> =
        all.into_iter().map(|(name, scalar)| (name, scalar.into())).collect();
    put(metadata, SCALARS_KEY, &typed)
}

fn take<T: DeserializeOwned>(
    metadata: &mut Metadata,
    key: &str,
    what: &str,
) -> Result<BTreeMap<String, T>> {
    let Some(text) = metadata.remove(key) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(&text).map_err(|error| without(key, what, error))
}

fn put<T: Serialize>(metadata: &mut Metadata, key: &str, all: &BTreeMap<String, T>) -> Result<()> {
    if !all.is_empty() {
        metadata.insert(key.into(), serde_json::to_string(all).map_err(io::Error::from)?);
    }
    Ok(())
}

fn without(key: &str, what: &str, why: impl std::fmt::Display) -> crate::error::Error {
    let problem = format!("the metadata entry {key} has no {what} ({why})");
    ErrorKind::NotForBurn { problem }.into()
}
