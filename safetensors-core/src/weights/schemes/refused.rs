//! Schemes that are recognised and refused, because their codes are no numbers by themselves.

use super::super::matrix::Stored;
use super::super::model::{Model, Scheme, Weight, unsupported};
use crate::error::Result;

pub(super) struct Refused;

/// The end of a tensor's name, that of another tensor of the same module, and the scheme that has
/// such tensors.
const NAMES: &[(&str, &str, &str)] = &[
    (".trellis", "", "EXL3"),
    (".q_weight", ".q_scale_max", "EXL2"),
    (".codebooks", "", "AQLM"),
    (".bitmask", "", "compressed-tensors' sparse-bitmask"),
    (".scale_packed", ".meta", "compressed-tensors' marlin-24"),
    (".B_24", "", "Marlin 2:4"),
    (".B", ".s_channel", "QQQ"),
    (".B", ".s", "Marlin"),
    (".svdquant_lora_a", "", "SVDQuant"),
    (".indices", ".centroids.weight", "VPTQ"),
    (".theta", ".pairs", "ParoQuant"),
    (".forward_hadamard_matrix", "", "FP-Quant"),
    (".dense_weights", ".row_offsets", "SpQR"),
    (".tables2", ".scales", "HIGGS"),
    (".weight_scales", ".weight", "EETQ"),
];

impl Scheme for Refused {
    fn name(&self) -> &'static str {
        "a scheme that is not supported"
    }

    fn methods(&self) -> &'static [&'static str] {
        &[]
    }

    fn weight(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        for (end, other, scheme) in NAMES {
            let Some(module) = tensor.name.strip_suffix(end) else { continue };
            if other.is_empty() || model.get(&format!("{module}{other}")).is_some() {
                let reason = "its weights cannot be read as numbers";
                return Err(unsupported(*scheme, reason).in_tensor(&tensor.name));
            }
        }
        Ok(None)
    }
}
