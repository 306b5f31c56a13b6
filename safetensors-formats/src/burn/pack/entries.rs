//! What burnpack has a place for, and a safetensors file only its metadata: the ids of parameters,
//! and the numbers beside the tensors. The texts are those of the burn adapter.

use std::collections::BTreeMap;
use std::io;

use safetensors_core::Metadata;
use safetensors_core::framework::{PARAM_IDS_KEY, SCALARS_KEY};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::content::{Pairs, Scalar};
use crate::error::{ErrorKind, Result};

pub(super) type Ids = BTreeMap<String, u64>;

/// A scalar in JSON. It comes back with the same type and the same bits.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Typed {
    U64(u64),
    I64(i64),
    Bool(bool),
    /// The value is for people. JSON has no NaN and no infinity, so it is a text.
    F64 {
        value: String,
        bits: String,
    },
}

impl From<Scalar> for Typed {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::UInt(number) => Self::U64(number),
            Scalar::Int(number) => Self::I64(number),
            Scalar::Bool(value) => Self::Bool(value),
            Scalar::Float(number) => {
                Self::F64 { value: number.to_string(), bits: format!("{:016x}", number.to_bits()) }
            }
        }
    }
}

impl Typed {
    fn scalar(self) -> Option<Scalar> {
        Some(match self {
            Self::U64(number) => Scalar::UInt(number),
            Self::I64(number) => Scalar::Int(number),
            Self::Bool(value) => Scalar::Bool(value),
            Self::F64 { bits, .. } => {
                let bits = u64::from_str_radix(&bits, 16).ok().filter(|_| bits.len() == 16)?;
                Scalar::Float(f64::from_bits(bits))
            }
        })
    }
}

/// Takes the ids of parameters out of the metadata.
pub(super) fn take_ids(metadata: &mut Metadata) -> Result<Ids> {
    take(metadata, PARAM_IDS_KEY, "ids of parameters")
}

/// Adds ids to those that the metadata has.
pub(super) fn put_ids(metadata: &mut Metadata, ids: Ids) -> Result<()> {
    let mut all = take_ids(metadata)?;
    all.extend(ids);
    put(metadata, PARAM_IDS_KEY, &all)
}

/// Takes the scalars out of the metadata.
pub(super) fn take_scalars(metadata: &mut Metadata) -> Result<Pairs<Scalar>> {
    let what = "typed scalars";
    let typed: BTreeMap<String, Typed> = take(metadata, SCALARS_KEY, what)?;
    let scalars = typed.into_iter().map(|(name, typed)| Some((name, typed.scalar()?)));
    let scalars: Option<BTreeMap<_, _>> = scalars.collect();
    scalars.map(Pairs).ok_or_else(|| without(SCALARS_KEY, what, "bits of a number"))
}

/// Adds scalars to those that the metadata has.
pub(super) fn put_scalars(metadata: &mut Metadata, Pairs(scalars): Pairs<Scalar>) -> Result<()> {
    let Pairs(mut all) = take_scalars(metadata)?;
    all.extend(scalars);
    let typed: BTreeMap<_, Typed> =
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
