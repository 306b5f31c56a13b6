//! Reads the tensors of a [`LoadPlan`](super::plan::LoadPlan), all at once or in steps.

use std::collections::{BTreeMap, HashMap};

use burn::tensor::TensorData;
use safetensors_core::framework::Framework;
use safetensors_core::{Dtype, ErrorKind, Result};

use super::adopt::NewValue;
use super::catalog::Catalog;
use super::pack;
use super::parameters::Kind;
use super::place::StoredTensor;
use super::plan::Match;
use crate::Burn;

/// Divides tensors into steps of at most `limit` bytes, in the file or as loaded. Parameters that
/// share a tensor are in one step, so that it is read once.
pub(crate) fn steps(matches: Vec<Match>, catalog: &Catalog, limit: u64) -> Result<Vec<Vec<Match>>> {
    let mut of_one_tensor: BTreeMap<_, (u64, Vec<Match>)> = BTreeMap::new();
    for found in matches {
        let tensor = catalog.tensor(&found.name)?;
        // In the order of the files, which is the quickest to read.
        let place = (tensor.file_index(), tensor.file_offset(), tensor.name());
        let loaded =
            catalog.tensors().get(&found.name).map_or(0, |tensor| tensor.byte_len() as u64);
        let bytes = tensor.byte_len().max(loaded);
        of_one_tensor.entry(place).or_insert_with(|| (bytes, vec![])).1.push(found);
    }
    let mut steps: Vec<Vec<Match>> = Vec::new();
    let mut bytes = 0_u64;
    for (more, matches) in of_one_tensor.into_values() {
        bytes = bytes.saturating_add(more);
        match steps.last_mut().filter(|_| bytes <= limit) {
            Some(step) => step.extend(matches),
            None => {
                bytes = more;
                steps.push(matches);
            }
        }
    }
    Ok(steps)
}

/// Reads each tensor once, in parallel. Returns the values by parameter paths.
pub(crate) fn read(matches: Vec<Match>, catalog: &Catalog) -> Result<HashMap<String, NewValue>> {
    let tensors =
        matches.iter().map(|found| catalog.tensor(&found.name)).collect::<Result<Vec<_>>>()?;
    // Several parameters may share one tensor under different names. It is read only once.
    let mut of_one: BTreeMap<&str, (StoredTensor<'_>, Vec<&Match>)> = BTreeMap::new();
    for (found, tensor) in matches.iter().zip(&tensors) {
        of_one.entry(tensor.name()).or_insert_with(|| (*tensor, Vec::new())).1.push(found);
    }
    let (once, parameters): (Vec<_>, Vec<_>) = of_one.into_values().unzip();
    let bufs = catalog.read(&once)?;
    for ((tensor, parameters), buf) in once.iter().zip(parameters).zip(bufs) {
        let data = Burn::from_exact(buf, &()).map_err(|error| tensor.locate(error))?;
        // Parameters that copy their part of a tensor share the data of all parts until then.
        let is_shared = parameters.len() > 1 && parameters.iter().any(|found| found.is_copied);
        let data = if is_shared { pack::shared(data)? } else { data };
        if let Some((last, others)) = parameters.split_last() {
            // The last slot takes the data itself, so an unshared tensor is not copied.
            others.iter().for_each(|found| found.slot.fill(data.clone()));
            last.slot.fill(data);
        }
    }
    let values = matches.into_iter().zip(&tensors).map(
        |(Match { path, tensor, kind, new_id, .. }, source)| {
            let data = pack::into_data(tensor)
                .and_then(|data| check(kind, data))
                .map_err(|error| source.locate(error))?;
            Ok((path, NewValue { data, id: new_id }))
        },
    );
    values.collect()
}

/// Refuses integers other than 0 and 1 for a boolean.
fn check(kind: Kind, data: TensorData) -> Result<TensorData> {
    if kind == Kind::Bool && !data.dtype().is_bool() {
        let other = data.iter::<u64>().enumerate().find(|&(_, value)| value > 1);
        if let Some((index, value)) = other {
            let kind = ErrorKind::DoesNotFit {
                index: index as u64,
                value: value.to_string(),
                to: Dtype::BOOL,
            };
            return Err(kind.into());
        }
    }
    Ok(data)
}
