//! Schemes that are recognised and refused, because their codes are no numbers by themselves.

use super::super::matrix::Stored;
use super::super::model::{Model, Scheme, unsupported};
use super::super::weight::Weight;
use crate::error::Result;

pub(super) struct Refused;

/// The end of a tensor's name, and the scheme that has such tensors.
const NAMES: &[(&str, &str)] = &[
    (".trellis", "EXL3"),
    (".q_perm", "EXL2"),
    (".codebooks", "AQLM"),
    (".bitmask", "compressed-tensors' sparse-bitmask"),
    (".weight_packed_meta", "compressed-tensors' marlin-24"),
    (".B_24", "Marlin 2:4"),
    (".svdquant_lora_a", "SVDQuant"),
    (".centroids", "VPTQ"),
    (".eetq_weight_scales", "EETQ"),
];

impl Scheme for Refused {
    fn name(&self) -> &'static str {
        "a scheme that is not supported"
    }

    fn methods(&self) -> &'static [&'static str] {
        &[]
    }

    fn weight(&self, _: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        match NAMES.iter().find(|(end, _)| tensor.name.ends_with(end)) {
            Some((_, scheme)) => {
                let reason = "its weights cannot be read as numbers";
                Err(unsupported(*scheme, reason).in_tensor(&tensor.name))
            }
            None => Ok(None),
        }
    }
}
