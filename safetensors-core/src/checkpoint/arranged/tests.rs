//! Random arrangements against a model that has all elements in memory.

use proptest::prelude::*;

use super::Arranged;
use crate::checkpoint::{Checkpoint, Computed};
use crate::file::io::{ReadAt, ReadRange};
use crate::file::load::{LoadOptions, read_slices};
use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;
use crate::format::slice::Index;
use crate::format::tensor::shape::byte_len;
use crate::{SaveOptions, TensorView, serialize};

/// Elements as numbers of as many bits as the dtype has.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    codes: Vec<u64>,
}

/// Calls `each` with all positions of a shape, in C order.
fn positions(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &len| {
        let next = |at: &Vec<usize>| (0..len).map(move |i| [&at[..], &[i]].concat()).collect();
        all.iter().flat_map(|at| -> Vec<Vec<usize>> { next(at) }).collect()
    })
}

impl Model {
    fn at(&self, position: &[usize]) -> u64 {
        let flat = position.iter().zip(&self.shape).fold(0, |flat, (at, len)| flat * len + at);
        self.codes[flat]
    }

    fn made(shape: Vec<usize>, of: impl Fn(&[usize]) -> u64) -> Self {
        let codes = positions(&shape).iter().map(|position| of(position)).collect();
        Self { shape, codes }
    }

    fn slice(&self, dim: usize, taken: &[usize], keeps: bool) -> Self {
        let mut shape = self.shape.clone();
        shape[dim] = taken.len();
        let kept = Self::made(shape, |position| {
            let mut position = position.to_vec();
            position[dim] = taken[position[dim]];
            self.at(&position)
        });
        let mut shape = kept.shape;
        if !keeps {
            shape.remove(dim);
        }
        Self { shape, codes: kept.codes }
    }

    fn transposed(&self) -> Self {
        let mut shape = self.shape.clone();
        let ndim = shape.len();
        shape.swap(ndim - 2, ndim - 1);
        Self::made(shape, |position| {
            let mut position = position.to_vec();
            position.swap(ndim - 2, ndim - 1);
            self.at(&position)
        })
    }

    fn joined(members: &[Self], dim: usize, is_interleaved: bool) -> Self {
        let mut shape = members[0].shape.clone();
        shape[dim] = members.iter().map(|member| member.shape[dim]).sum();
        Self::made(shape, |position| {
            let mut position = position.to_vec();
            let mut member = 0;
            if is_interleaved {
                member = position[dim] % members.len();
                position[dim] /= members.len();
            }
            while position[dim] >= members[member].shape[dim] {
                position[dim] -= members[member].shape[dim];
                member += 1;
            }
            members[member].at(&position)
        })
    }

    /// The bytes in a file; `None` if the elements do not fill bytes.
    fn bytes(&self, dtype: Dtype) -> Option<Vec<u8>> {
        let bits = dtype.bits() as usize;
        let len = byte_len(dtype, &self.shape).ok()? as usize;
        let mut bytes = vec![0; len];
        for bit in 0..len * 8 {
            bytes[bit / 8] |= ((self.codes[bit / bits] >> (bit % bits) & 1) as u8) << (bit % 8);
        }
        Some(bytes)
    }
}

/// A source of numbers that proptest shrinks.
#[derive(Clone)]
struct Choices(Vec<u32>, usize);

impl Choices {
    fn below(&mut self, end: usize) -> usize {
        self.1 += 1;
        self.0[self.1 % self.0.len()] as usize % end.max(1)
    }

    fn range(&mut self, len: usize) -> (Index, Vec<usize>) {
        let start = self.below(len + 1);
        let end = start + self.below(len - start + 1);
        let step = 1 + self.below(3);
        (Index::from(start..end).step(step), (start..end).step_by(step).collect())
    }
}

/// Arranges something of the leaf of this number. The same choices give the same shape for each
/// leaf, so that they can be members.
fn grow(choices: &mut Choices, leaves: &[Model], leaf: usize, depth: usize) -> (Arranged, Model) {
    if depth == 0 {
        let leaf = leaf % leaves.len();
        return (Arranged::tensor(format!("t{leaf}")), leaves[leaf].clone());
    }
    let kind = choices.below(6);
    let start = choices.clone();
    let (inner, model) = grow(choices, leaves, leaf, depth - 1);
    let others = |count: usize, choices: &mut Choices| {
        let more = (1..count).map(|i| grow(&mut start.clone(), leaves, leaf + i, depth - 1));
        let all: (Vec<_>, Vec<_>) =
            [(inner.clone(), model.clone())].into_iter().chain(more).unzip();
        (all, choices.below(model.shape.len()))
    };
    match kind {
        0 if !model.shape.is_empty() => {
            let dim = choices.below(model.shape.len());
            let (index, taken) = choices.range(model.shape[dim]);
            (inner.slice(dim, index), model.slice(dim, &taken, true))
        }
        1 if model.shape.iter().any(|&len| len > 0) => {
            let dim = model.shape.iter().position(|&len| len > 0).unwrap();
            let at = choices.below(model.shape[dim]);
            (inner.slice(dim, at), model.slice(dim, &[at], false))
        }
        2 if model.shape.len() > 1 => (inner.transposed(), model.transposed()),
        3 if !model.shape.is_empty() => {
            let ((forms, models), dim) = others(1 + choices.below(3), choices);
            (Arranged::concat(dim, forms), Model::joined(&models, dim, false))
        }
        4 if !model.shape.is_empty() => {
            let ((forms, models), dim) = others(1 + choices.below(3), choices);
            (Arranged::interleaved(dim, forms), Model::joined(&models, dim, true))
        }
        5 if model.shape.len() < 4 => {
            let ((forms, mut models), _) = others(1 + choices.below(3), choices);
            models.iter_mut().for_each(|model| model.shape.insert(0, 1));
            (Arranged::stack(forms), Model::joined(&models, 0, false))
        }
        _ => (inner, model),
    }
}

/// Compares the bytes of the file from all places with the model.
fn check(checkpoint: &Checkpoint<Computed<Vec<u8>>>, expected: &[u8], choices: &mut Choices) {
    let tensor = checkpoint.tensor("made").unwrap();
    assert_eq!(tensor.read().unwrap().bytes(), expected);
    let source = tensor.source();
    let start = tensor.file_offset();
    let mut wanted = Vec::new();
    for _ in 0..choices.below(9) {
        let from = choices.below(expected.len() + 1);
        wanted.push(from..from + choices.below(expected.len() - from + 1));
    }
    // Neighbours, as a slice reads them.
    let (len, apart) = (1 + choices.below(9), 1 + choices.below(20));
    wanted.extend((0..expected.len().saturating_sub(len)).step_by(len + apart).map(|i| i..i + len));
    let mut bytes: Vec<_> = wanted.iter().map(|range| vec![0; range.len()]).collect();
    let ranges = wanted.iter().zip(&mut bytes);
    let ranges =
        ranges.map(|(range, bytes)| ReadRange { offset: start + range.start as u64, bytes });
    source.read_ranges_at(&mut ranges.collect::<Vec<_>>()).unwrap();
    for (range, bytes) in wanted.into_iter().zip(bytes) {
        assert_eq!(bytes, expected[range.clone()], "{range:?}");
    }
}

fn opened(dtype: Dtype, leaves: &[Model]) -> Checkpoint<Vec<u8>> {
    let bytes: Vec<_> = leaves.iter().map(|leaf| leaf.bytes(dtype).unwrap()).collect();
    let view = |i: usize| TensorView::new(dtype, &leaves[i].shape, &bytes[i]).unwrap();
    let tensors = (0..leaves.len()).map(|i| (format!("t{i}"), view(i)));
    let file = serialize(tensors, &SaveOptions::new()).unwrap();
    Checkpoint::from_source(file, "f").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_arrangement_equals_the_model(
        shape in prop::collection::vec(0..8_usize, 0..4),
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        depth in 0..6_usize,
        choices in prop::collection::vec(any::<u32>(), 40),
    ) {
        let mut shape = shape;
        if dtype.bits() % 8 != 0 {
            shape.push(4);
        }
        let mask = if dtype == Dtype::BOOL { 1 } else { u64::MAX >> (64 - dtype.bits()) };
        let leaf = |i: u64| {
            let code = |position: &[usize]| {
                let flat = position.iter().fold(0_u64, |flat, &at| flat * 8 + at as u64);
                (flat * 4 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13 & mask
            };
            Model::made(shape.clone(), code)
        };
        let leaves: Vec<_> = (0..4).map(leaf).collect();
        let mut choices = Choices(choices, 0);
        let (form, model) = grow(&mut choices, &leaves, 0, depth);
        match opened(dtype, &leaves).arranged([("made", form)]) {
            Ok(checkpoint) => {
                let tensor = checkpoint.tensor("made").unwrap();
                prop_assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &model.shape[..]));
                check(&checkpoint, &model.bytes(dtype).unwrap(), &mut choices);
                let ranges = model.shape.iter().map(|&len| choices.range(len));
                let (indices, taken): (Vec<_>, Vec<_>) = ranges.unzip();
                let part = taken.iter().enumerate();
                let part = part.fold(model, |model, (dim, taken)| model.slice(dim, taken, true));
                // A slice may end inside a byte.
                if let Ok(slice) = tensor.slice(indices) {
                    let read = read_slices(&[slice], &LoadOptions::new()).unwrap();
                    prop_assert_eq!(read[0].bytes(), part.bytes(dtype).unwrap());
                }
            }
            Err(error) => {
                let is_inside = matches!(
                    error.kind(),
                    ErrorKind::SliceInsideByte { .. } | ErrorKind::PartialByte { .. }
                );
                prop_assert!(is_inside && dtype.bits() % 8 != 0, "{error}");
            }
        }
    }
}
