//! [`Groups`]: which columns share a number; [`Formula`]: what is done with it.

use crate::convert::vectorized;

/// The group of each column.
#[derive(Debug)]
pub(super) enum Groups {
    /// This many neighbours are a group.
    Neighbours(usize),
    /// The number of the group of each column.
    Each(Vec<usize>),
}

impl Groups {
    /// The groups of columns that these are the numbers of.
    pub(super) fn each(groups: Vec<usize>) -> Self {
        let size = groups.iter().take_while(|&&group| group == 0).count().max(1);
        // Most tensors of groups only say that neighbours are groups.
        match groups.iter().enumerate().all(|(column, &group)| group == column / size) {
            true => Self::Neighbours(size),
            false => Self::Each(groups),
        }
    }

    /// The group of a column.
    pub(super) fn of(&self, column: usize) -> usize {
        match self {
            Self::Neighbours(size) => column / size,
            Self::Each(groups) => groups[column],
        }
    }

    /// Writes the number of the group of each column from `start` on. The first of `values` belongs
    /// to the group `first`.
    pub(super) fn expand(&self, values: &[f32], first: usize, start: usize, out: &mut [f32]) {
        let size = match self {
            Self::Neighbours(size) => *size,
            Self::Each(groups) => {
                for (value, group) in out.iter_mut().zip(&groups[start..]) {
                    *value = values[group - first];
                }
                return;
            }
        };
        let values = &values[start / size - first..];
        let (head, out) = out.split_at_mut(((size - start % size) % size).min(out.len()));
        let values = match head.len() {
            0 => values,
            _ => {
                head.fill(values[0]);
                &values[1..]
            }
        };
        match size {
            1 => out.copy_from_slice(&values[..out.len()]),
            16 => expand_by::<16>(values, out),
            32 => expand_by::<32>(values, out),
            64 => expand_by::<64>(values, out),
            _ => out.chunks_mut(size).zip(values).for_each(|(out, value)| out.fill(*value)),
        }
    }
}

/// Writes each value `N` times.
fn expand_by<const N: usize>(values: &[f32], out: &mut [f32]) {
    vectorized(|| {
        let (whole, rest) = out.as_chunks_mut::<N>();
        if let Some(value) = values.get(whole.len()) {
            rest.fill(*value);
        }
        whole.iter_mut().zip(values).for_each(|(out, value)| *out = [*value; N]);
    });
}

/// How a code, a scale and a zero point make an element. Each operation is rounded to F32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Formula {
    /// (code − zero) · scale
    Subtract,
    /// code · scale + zero
    Add,
    /// code · scale + a constant
    AddConstant(f32),
    /// code · scale · a constant
    Times(f32),
}

impl Formula {
    /// Makes elements of codes.
    pub(super) fn apply(self, scales: &[f32], zeros: Option<&[f32]>, codes: &mut [f32]) {
        let zeros = zeros.unwrap_or_default();
        let pairs = codes.iter_mut().zip(scales);
        vectorized(|| match self {
            Self::Subtract if zeros.is_empty() => pairs.for_each(|(x, scale)| *x *= scale),
            Self::Subtract => {
                pairs.zip(zeros).for_each(|((x, scale), zero)| *x = (*x - zero) * scale);
            }
            Self::Add if zeros.is_empty() => pairs.for_each(|(x, scale)| *x = *x * scale + 0.0),
            Self::Add => pairs.zip(zeros).for_each(|((x, scale), zero)| *x = *x * scale + zero),
            Self::AddConstant(constant) => {
                pairs.for_each(|(x, scale)| *x = *x * scale + constant);
            }
            Self::Times(constant) => pairs.for_each(|(x, scale)| *x = *x * scale * constant),
        });
    }
}
