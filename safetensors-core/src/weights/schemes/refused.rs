//! Schemes that are recognised and refused: their codes alone are not numbers.

use super::super::model::{Candidate, Weight, unsupported};
use crate::format::dtype::Dtype;
use crate::format::dtype::Dtype::{F8_E4M3, I8, I16, I32, U8, U16, U32};
use crate::format::error::Result;

/// The name, the end of names of codes, their dtypes, and the ends of other names: one
/// exists.
type Row = (&'static str, &'static str, &'static [Dtype], &'static [&'static str]);

const ROWS: &[Row] = &[
    ("EXL3", ".trellis", &[I16], &[".suh", ".svh", ".su", ".sv"]),
    ("EXL2", ".q_weight", &[I32], &[".q_scale_max", ".q_scale"]),
    ("AQLM", ".codes", &[I8, U8, I16, I32], &[".codebooks"]),
    ("compressed-tensors' sparse-bitmask", ".bitmask", &[U8], &[".compressed"]),
    ("compressed-tensors' marlin-24", ".meta", &[I16], &[".scale_packed"]),
    ("Marlin 2:4", ".B_24", &[I32], &[".s", ".B_meta"]),
    ("QQQ", ".B", &[I32], &[".s_channel"]),
    ("Marlin", ".B", &[I32], &[".s"]),
    ("SVDQuant", ".weight", &[U8], &[".svdquant_lora_a", ".svdquant_lora_b"]),
    ("SVDQuant", ".qweight", &[I8, U8, I32], &[".wscales", ".wzeros", ".smooth_factor"]),
    ("VPTQ", ".indices", &[I16, U16, I32], &[".centroids.weight"]),
    ("ParoQuant", ".pairs", &[I16, I32], &[".theta"]),
    ("ParoQuant", ".qweight", &[I32], &[".theta"]),
    ("FP-Quant", ".qweight", &[U8], &[".forward_hadamard_matrix"]),
    ("QuIP#", ".Qidxs", &[I16, I32], &[".SU", ".SV"]),
    ("SpQR", ".row_offsets", &[I32], &[".dense_weights"]),
    ("HIGGS", ".weight", &[I16], &[".tables2", ".tables"]),
    ("EETQ", ".weight", &[I8], &[".weight_scales"]),
    ("UQFF of mistral.rs", ".weight", &[U8, U32, I32, F8_E4M3], &[".weight.format"]),
    ("msmodelslim", ".weight", &[I8], &[".weight_scale_second", ".weight_offset", ".deq_scale"]),
];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    for (scheme, end, dtypes, others) in ROWS {
        let Some(module) = tensor.name.strip_suffix(end) else { continue };
        let mut others = others.iter().map(|other| format!("{module}{other}"));
        if dtypes.contains(&tensor.dtype) && others.any(|other| model.get(&other).is_some()) {
            let reason = "its weights cannot be read as numbers";
            return Err(unsupported(*scheme, reason).in_tensor(&tensor.name));
        }
    }
    Ok(None)
}
