//! Stacking samples: tensors of one name become a tensor with one more dimension.

use std::collections::BTreeMap;

use super::{Sample, SampleBatch};
use crate::error::{Error, ErrorKind, Mismatch, Result};
use crate::tensor::TensorBuf;

/// Stacks samples. An error comes with the position of the sample that it is about.
pub(super) fn stack(
    samples: Vec<(usize, Sample<TensorBuf>)>,
) -> Result<SampleBatch<TensorBuf>, (usize, Error)> {
    let Some(((first, Sample { tensors, .. }), others)) = samples.split_first() else {
        return Ok(SampleBatch {
            tensors: BTreeMap::new(),
            metadata: Vec::new(),
            positions: Vec::new(),
        });
    };
    for (position, sample) in others {
        let mismatches = differences(tensors, &sample.tensors);
        if !mismatches.is_empty() {
            return Err((*position, ErrorKind::Mismatches { mismatches }.into()));
        }
    }
    let stacked = tensors.keys().map(|name| {
        let parts: Vec<_> = samples.iter().filter_map(|(_, s)| s.tensors.get(name)).collect();
        let stacked = stack_tensors(&parts).map_err(|error| (*first, error.in_tensor(name)))?;
        Ok((name.clone(), stacked))
    });
    let tensors = stacked.collect::<Result<_, _>>()?;
    let positions = samples.iter().map(|(position, _)| *position).collect();
    let metadata = samples.into_iter().map(|(_, sample)| sample.metadata).collect();
    Ok(SampleBatch { tensors, metadata, positions })
}

/// Stacks tensors of one dtype and shape.
fn stack_tensors(parts: &[&TensorBuf]) -> Result<TensorBuf> {
    let Some(first) = parts.first() else { return Err(ErrorKind::TensorNotFound.into()) };
    let shape = [&[parts.len()], first.shape()].concat();
    let mut stacked = TensorBuf::zeroed(first.dtype(), shape)?;
    // The bytes are native on both sides, so nothing is swapped.
    let mut rest = stacked.bytes_mut();
    for part in parts {
        let (place, after) = rest.split_at_mut(part.bytes().len().min(rest.len()));
        place.copy_from_slice(&part.bytes()[..place.len()]);
        rest = after;
    }
    Ok(stacked)
}

/// What differs between the tensors of two samples.
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
            let (expected, found) = (expected.shape().to_vec(), found.shape().to_vec());
            mismatches.push(Mismatch::Shape { name: name.clone(), expected, found });
        }
        if found.dtype() != expected.dtype() {
            let (expected, found) = (expected.dtype(), found.dtype());
            mismatches.push(Mismatch::Dtype { name, expected, found });
        }
    }
    let extra = found.keys().filter(|name| !expected.contains_key(*name));
    mismatches.extend(extra.map(|name| Mismatch::Extra { name: name.clone() }));
    mismatches
}
