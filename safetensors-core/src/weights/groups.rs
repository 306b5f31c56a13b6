//! [`Groups`]: columns that share a number; [`Formula`]: how an element is computed.

use crate::format::convert::vectorized;

#[derive(Debug)]
pub(super) enum Groups {
    Neighbours(usize),
    Each(Vec<usize>),
}

impl Groups {
    pub(super) fn each(groups: Vec<usize>) -> Self {
        let size = groups.iter().take_while(|&&group| group == 0).count().max(1);
        // Most tensors of groups only say that neighbours are groups.
        match groups.iter().enumerate().all(|(column, &group)| group == column / size) {
            true => Self::Neighbours(size),
            false => Self::Each(groups),
        }
    }

    pub(super) fn index(&self, column: usize) -> usize {
        match self {
            Self::Neighbours(size) => column / size,
            Self::Each(groups) => groups[column],
        }
    }

    /// Writes the number of each column from `start` on. `values` begins with the group `first`.
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
            _ => vectorized(|| {
                out.chunks_mut(size).zip(values).for_each(|(out, value)| out.fill(*value));
            }),
        }
    }
}

fn expand_by<const N: usize>(values: &[f32], out: &mut [f32]) {
    vectorized(|| {
        let (whole, rest) = out.as_chunks_mut::<N>();
        if let Some(value) = values.get(whole.len()) {
            rest.fill(*value);
        }
        // For pairs of both the compiler would scatter vectors of values, which is slow.
        let mut values = values.iter();
        whole.fill_with(|| values.next().map_or([0.0; N], |value| [*value; N]));
    });
}

/// How an element is computed. Each operation is rounded to F32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Formula {
    /// (code − zero) · scale
    Subtract,
    /// code · scale + zero
    Add,
    /// code · scale − zero
    Shift,
    /// code · scale + a constant
    AddConstant(f32),
    /// code · scale · a constant
    Times(f32),
}

/// Compiles a loop for each formula. A missing zero point is zero.
macro_rules! by_formula {
    ($formula:expr, $make:ident => $work:expr) => {
        match $formula {
            Formula::Subtract => {
                let $make = |x: f32, scale: f32, zero: f32| (x - zero) * scale;
                vectorized(|| $work);
            }
            Formula::Add => {
                let $make = |x: f32, scale: f32, zero: f32| x * scale + zero;
                vectorized(|| $work);
            }
            Formula::Shift => {
                let $make = |x: f32, scale: f32, zero: f32| x * scale - zero;
                vectorized(|| $work);
            }
            Formula::AddConstant(constant) => {
                let $make = |x: f32, scale: f32, _: f32| x * scale + constant;
                vectorized(|| $work);
            }
            Formula::Times(constant) => {
                let $make = |x: f32, scale: f32, _: f32| x * scale * constant;
                vectorized(|| $work);
            }
        }
    };
}

impl Formula {
    pub(super) fn apply(self, scales: &[f32], zeros: &[f32], codes: &mut [f32]) {
        let triples = codes.iter_mut().zip(scales).zip(zeros);
        by_formula!(self, make => triples.for_each(|((x, scale), zero)| *x = make(*x, *scale, *zero)));
    }

    /// Groups have `size` neighbours; the first lacks `skipped` elements.
    pub(super) fn apply_to_groups(
        self,
        (size, skipped): (usize, usize),
        scales: &[f32],
        zeros: &[f32],
        codes: &mut [f32],
    ) {
        let (head, rest) = codes.split_at_mut((size - skipped).min(codes.len()));
        for (codes, from) in [(head, 0), (rest, 1)] {
            let groups = codes.chunks_mut(size).zip(&scales[from..]).zip(&zeros[from..]);
            by_formula!(self, make => groups.for_each(|((codes, scale), zero)| {
                codes.iter_mut().for_each(|x| *x = make(*x, *scale, *zero));
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes::{Codes, Order};
    use super::*;
    use crate::format::convert::{CHOSEN, widths};

    #[test]
    fn every_processor_computes_the_same_bits() {
        let codes = Codes::unsigned(4, Order::Awq, 3);
        let units: Vec<_> =
            (0..1000_u32).map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let scale = |i: u32| f32::from_bits(0x3a00_0000 ^ i.wrapping_mul(0x85eb_ca6b) >> 9);
        let scales: Vec<_> = (0..1000).map(scale).collect();
        let zeros: Vec<_> = (1000..2000).map(scale).collect();
        let none = vec![0.0; 1000];
        for formula in [
            Formula::Subtract,
            Formula::Add,
            Formula::Shift,
            Formula::AddConstant(0.1),
            Formula::Times(7.874_016e-3),
        ] {
            for (size, zeros) in [(1, None), (16, Some(&zeros)), (7, Some(&zeros)), (64, None)] {
                let computed = widths().into_iter().map(|arch| {
                    CHOSEN.set(Some(arch));
                    let mut numbers = vec![0.0; units.len()];
                    let mut of_columns = numbers.clone();
                    codes.decode_units(&units, 12, &mut numbers);
                    Groups::Neighbours(size).expand(&scales, 0, 0, &mut of_columns);
                    match zeros {
                        // A few are left of the first group.
                        Some(zeros) if size >= 16 => {
                            formula.apply_to_groups((size, 5), &scales, zeros, &mut numbers);
                        }
                        _ => formula.apply(&of_columns, zeros.unwrap_or(&none), &mut numbers),
                    }
                    CHOSEN.set(None);
                    numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                let computed: Vec<_> = computed.collect();
                assert!(computed.windows(2).all(|pair| pair[0] == pair[1]), "{formula:?} {size}");
            }
        }
    }

    #[test]
    fn groups_of_neighbours_are_recognised() {
        assert!(matches!(Groups::each(vec![0, 0, 1, 1, 2]), Groups::Neighbours(2)));
        assert!(matches!(Groups::each(vec![0, 0]), Groups::Neighbours(2)));
        assert!(matches!(Groups::each(vec![0, 1, 0]), Groups::Each(_)));
        assert!(matches!(Groups::each(vec![1, 1, 0]), Groups::Each(_)));
    }
}
