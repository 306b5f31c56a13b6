//! Stacking samples: tensors with the same name become a tensor with one more dimension.

use std::collections::BTreeMap;

use super::{Sample, SampleBatch};
use crate::format::error::{Error, ErrorKind, Mismatch, Result};
use crate::format::tensor::TensorBuf;

/// Stacks samples. An error comes with the position of its sample.
pub(super) fn stack(
    samples: Vec<(usize, Sample<TensorBuf>)>,
) -> Result<SampleBatch<TensorBuf>, (usize, Error)> {
    let mut tensors = BTreeMap::new();
    if let Some(((position, first), others)) = samples.split_first() {
        for (position, sample) in others {
            let mismatches = differences(&first.tensors, &sample.tensors);
            if !mismatches.is_empty() {
                return Err((*position, ErrorKind::Mismatches { mismatches }.into()));
            }
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

/// Stacks tensors with the same dtype and shape.
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

/// Returns the differences between the tensors of two samples.
fn differences(
    expected: &BTreeMap<String, TensorBuf>,
    found: &BTreeMap<String, TensorBuf>,
) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    for (name, expected) in expected {
        let name = name.clone();
        let Some(found) = found.get(&name) else {
            mismatches.push(Mismatch::Missing { name });
            continue;
        };
        if found.shape() != expected.shape() {
            let expected = expected.shape().to_vec();
            let found = found.shape().to_vec();
            mismatches.push(Mismatch::Shape { name: name.clone(), expected, found });
        }
        if found.dtype() != expected.dtype() {
            let expected = expected.dtype();
            let found = found.dtype();
            mismatches.push(Mismatch::Dtype { name, expected, found });
        }
    }
    let extra = found.keys().filter(|name| !expected.contains_key(*name));
    mismatches.extend(extra.map(|name| Mismatch::Extra { name: name.clone() }));
    mismatches
}
