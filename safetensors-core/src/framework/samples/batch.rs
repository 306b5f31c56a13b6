//! Stacking samples: tensors of a name get one more dimension.

use std::collections::BTreeMap;

use super::{Sample, SampleBatch};
use crate::format::error::{Error, Mismatch, Result};
use crate::format::tensor::TensorBuf;

/// An error comes with the position of its sample.
pub(super) fn stack(
    samples: Vec<(usize, Sample<TensorBuf>)>,
) -> Result<SampleBatch<TensorBuf>, (usize, Error)> {
    let mut tensors = BTreeMap::new();
    if let Some(((position, first), others)) = samples.split_first() {
        for (position, sample) in others {
            let mismatches = differences(&first.tensors, &sample.tensors);
            Mismatch::refuse(mismatches).map_err(|error| (*position, error))?;
        }
        for (name, tensor) in &first.tensors {
            let others = others.iter().filter_map(|(_, sample)| sample.tensors.get(name));
            let stacked = stack_tensors(tensor, others.collect());
            let stacked = stacked.map_err(|error| (*position, error.in_tensor(name)))?;
            tensors.insert(name.clone(), stacked);
        }
    }
    let positions = samples.iter().map(|(position, _)| *position).collect();
    let metadata = samples.into_iter().map(|(_, sample)| sample.metadata).collect();
    Ok(SampleBatch { tensors, metadata, positions })
}

fn stack_tensors(first: &TensorBuf, others: Vec<&TensorBuf>) -> Result<TensorBuf> {
    let shape = [&[1 + others.len()], first.shape()].concat();
    let mut stacked = TensorBuf::zeroed(first.dtype(), shape)?;
    // The bytes are native on both sides, so nothing is swapped.
    let mut rest = stacked.bytes_mut();
    for part in std::iter::once(first).chain(others) {
        let (place, after) = rest.split_at_mut(part.bytes().len().min(rest.len()));
        place.copy_from_slice(&part.bytes()[..place.len()]);
        rest = after;
    }
    Ok(stacked)
}

fn differences(
    expected: &BTreeMap<String, TensorBuf>,
    found: &BTreeMap<String, TensorBuf>,
) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    for (name, expected) in expected {
        let Some(found) = found.get(name) else {
            mismatches.push(Mismatch::Missing { name: name.clone() });
            continue;
        };
        mismatches.extend(Mismatch::of_shapes(name, expected.shape(), found.shape()));
        mismatches.extend(Mismatch::of_dtypes(name, expected.dtype(), found.dtype()));
    }
    let extra = found.keys().filter(|name| !expected.contains_key(*name));
    mismatches.extend(extra.map(|name| Mismatch::Extra { name: name.clone() }));
    mismatches
}
