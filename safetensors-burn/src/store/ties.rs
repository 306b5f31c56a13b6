//! [`ties`]: finds the parameters that a module has under several paths.

use burn::module::ParamId;
use burn::tensor::Bytes;
use safetensors_core::Result;

use super::pack::{self, PackTensor};

/// Gives tensors of the same parameter the same number.
// A clone of a module has the same ids, and may have been trained further, so their saved bits are
// compared.
pub(crate) fn ties(tensors: &[(ParamId, PackTensor)]) -> Result<Vec<u64>> {
    let mut by_id: Vec<(ParamId, usize)> =
        tensors.iter().enumerate().map(|(position, (id, _))| (*id, position)).collect();
    by_id.sort_unstable();
    // At first each tensor has a separate number.
    let mut ties: Vec<u64> = (0..tensors.len() as u64).collect();
    for of_one_id in by_id.chunk_by(|a, b| a.0 == b.0).filter(|of_one_id| of_one_id.len() > 1) {
        let mut different: Vec<(usize, Bytes)> = Vec::new();
        for &(_, position) in of_one_id {
            let tensor = &tensors[position].1;
            let bytes = pack::read(tensor).map_err(|error| error.in_tensor(&tensor.name))?;
            let same = different.iter().find(|(other, found)| {
                let other = &tensors[*other].1;
                (other.dtype, &other.shape) == (tensor.dtype, &tensor.shape) && **found == *bytes
            });
            match same {
                Some((other, _)) => ties[position] = *other as u64,
                None => different.push((position, bytes)),
            }
        }
    }
    Ok(ties)
}
