//! [`Factors`]: two small matrices, and rows of their product.

use std::ops::Range;

use crate::format::convert::vectorized;

/// The most elements of a row that are computed at once.
const BLOCK: usize = 1 << 10;

/// Two matrices; their product has the shape of a weight.
#[derive(Debug)]
pub(super) struct Factors {
    /// Rows of `rank` numbers.
    left: Vec<f32>,
    /// `rank` rows of `columns` numbers.
    right: Vec<f32>,
    rank: usize,
    columns: usize,
}

impl Factors {
    /// Makes the product of the matrix `up`, which has `rank` columns, and the matrix `down`, which
    /// has `rank` rows; transposed if `is_transposed`.
    pub(super) fn new(up: Vec<f32>, down: Vec<f32>, rank: usize, is_transposed: bool) -> Self {
        let rank = rank.max(1);
        let rows = up.len() / rank;
        let columns = down.len() / rank;
        if is_transposed {
            let left = transposed(&down, columns);
            let right = transposed(&up, rank);
            Self { left, right, rank, columns: rows }
        } else {
            Self { left: up, right: down, rank, columns }
        }
    }

    /// Calls `each` with neighbouring elements of a row of the product, and the column of the first
    /// of them.
    ///
    /// Products of two numbers are exact in F64. They are added in the order of the rank, and the
    /// sum is rounded to F32, so that the result is the same on every processor.
    pub(super) fn row(
        &self,
        row: usize,
        columns: Range<usize>,
        mut each: impl FnMut(usize, &[f32]),
    ) {
        let left = &self.left[row * self.rank..][..self.rank];
        // PyTorch does not define the order of the terms, and its sums in F32 differ between
        // processors in the last bits. In F64, fused and separate operations give the same bits.
        let mut sums = [0.0_f64; BLOCK];
        let mut rounded = [0.0_f32; BLOCK];
        for first in columns.clone().step_by(BLOCK) {
            let count = (columns.end - first).min(BLOCK);
            let sums = &mut sums[..count];
            let rounded = &mut rounded[..count];
            vectorized(
                #[inline(always)]
                || self.multiply(left, first, sums, rounded),
            );
            each(first, rounded);
        }
    }

    #[inline(always)]
    fn multiply(&self, left: &[f32], first: usize, sums: &mut [f64], rounded: &mut [f32]) {
        let count = sums.len();
        let right = |k: usize| &self.right[k * self.columns + first..][..count];
        sums.fill(0.0);
        let (fours, rest) = left.as_chunks::<4>();
        for (number, four) in fours.iter().enumerate() {
            let [a, b, c, d] = four.map(f64::from);
            let k = 4 * number;
            let of_a = right(k);
            let of_b = right(k + 1);
            let of_c = right(k + 2);
            let of_d = right(k + 3);
            for i in 0..count {
                let sum = sums[i] + a * f64::from(of_a[i]) + b * f64::from(of_b[i]);
                sums[i] = sum + c * f64::from(of_c[i]) + d * f64::from(of_d[i]);
            }
        }
        for (number, &a) in rest.iter().enumerate() {
            let of_a = right(4 * fours.len() + number);
            sums.iter_mut()
                .zip(of_a)
                .for_each(|(sum, of_a)| *sum += f64::from(a) * f64::from(*of_a));
        }
        rounded.iter_mut().zip(sums).for_each(|(rounded, sum)| *rounded = *sum as f32);
    }
}

/// Returns the transpose of a matrix with this many columns.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let columns = columns.max(1);
    let column = |column| matrix.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(factors: &Factors, row: usize, columns: Range<usize>) -> Vec<f32> {
        let mut all = Vec::new();
        factors.row(row, columns, |_, values| all.extend_from_slice(values));
        all
    }

    #[test]
    fn rows_of_the_product_and_of_its_transpose() {
        // The worked example of PEFT, without its factor.
        let (down, up) = (vec![1.0, 0.0, 2.0, 0.0, 1.0, -1.0], vec![0.5, 0.0, 1.0, 1.0]);
        let factors = Factors::new(up.clone(), down.clone(), 2, false);
        assert_eq!(product(&factors, 0, 0..3), [0.5, 0.0, 1.0]);
        assert_eq!(product(&factors, 1, 1..3), [1.0, 1.0]);
        let factors = Factors::new(up, down, 2, true);
        assert_eq!(product(&factors, 2, 0..2), [1.0, 1.0]);
        assert_eq!(product(&factors, 0, 0..2), [0.5, 1.0]);
    }

    #[test]
    fn blocks_and_ranks_of_any_size() {
        for rank in [1, 3, 4, 5, 9] {
            let columns = 2 * BLOCK + 7;
            let up: Vec<f32> = (0..2 * rank).map(|i| i as f32 - 3.0).collect();
            let down: Vec<f32> = (0..rank * columns).map(|i| (i % 13) as f32 - 6.0).collect();
            let factors = Factors::new(up.clone(), down.clone(), rank, false);
            let sum = |row: usize, column: usize| -> f32 {
                (0..rank).map(|k| up[row * rank + k] * down[k * columns + column]).sum()
            };
            let expected: Vec<_> = (5..columns - 1).map(|column| sum(1, column)).collect();
            assert_eq!(product(&factors, 1, 5..columns - 1), expected);
        }
    }
}
