//! [`Factors`]: small matrices, and rows of their product.

use crate::format::convert::vectorized;

/// The most elements of a row that are computed at once.
pub(super) const BLOCK: usize = 1 << 10;

/// The numbers from which rows of a change of a weight are computed.
#[derive(Debug)]
pub(super) enum Factors {
    /// A matrix as it is stored.
    Full {
        values: Vec<f32>,
        columns: usize,
    },
    Product(Product),
    /// Two matrices, and the rows and columns of the second.
    Two(Join, Box<[Factors; 2]>, [usize; 2]),
}

/// How two matrices make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// By the products of their elements.
    Hadamard,
    /// By the products of each element of the first with all of the second.
    Kronecker,
}

/// A stack of products of two matrices; with one product, a matrix.
#[derive(Debug)]
pub(super) struct Product {
    /// Rows of `rank` numbers.
    left: Vec<f32>,
    /// For each product, `rank` rows of `columns` numbers.
    right: Vec<f32>,
    rank: usize,
    /// The rows of each product.
    rows: usize,
    columns: usize,
}

impl Factors {
    /// Computes neighbouring elements of a row, from this column on: at most [`BLOCK`].
    pub(super) fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        match self {
            Self::Full { values, columns } => {
                out.copy_from_slice(&values[row * columns + column..][..out.len()]);
            }
            Self::Product(product) => product.read(row, column, out),
            Self::Two(Join::Hadamard, both, _) => {
                let mut others = [0.0; BLOCK];
                let others = &mut others[..out.len()];
                both[0].read(row, column, out);
                both[1].read(row, column, others);
                out.iter_mut().zip(others).for_each(|(value, other)| *value *= *other);
            }
            Self::Two(Join::Kronecker, both, [rows, columns]) => {
                let [one, other] = &**both;
                let (mut at, mut rest) = (column, out);
                while !rest.is_empty() {
                    let start = at % *columns;
                    let (part, more) = rest.split_at_mut((columns - start).min(rest.len()));
                    let mut factor = [0.0];
                    one.read(row / rows, at / columns, &mut factor);
                    other.read(row % rows, start, part);
                    part.iter_mut().for_each(|value| *value *= factor[0]);
                    at += part.len();
                    rest = more;
                }
            }
        }
    }
}

impl Product {
    /// Makes a stack of products of the matrices `up`, which have `rank` columns, and the matrices
    /// `down`, which have `rank` rows.
    pub(super) fn new(up: Vec<f32>, down: Vec<f32>, rank: usize, stack: usize) -> Self {
        let rank = rank.max(1);
        let rows = up.len() / rank / stack.max(1);
        let columns = down.len() / rank / stack.max(1);
        Self { left: up, right: down, rank, rows, columns }
    }

    pub(super) fn transposed(self) -> Self {
        let of_each = |matrices: &[f32], len: usize, columns| {
            matrices.chunks(len.max(1)).flat_map(|it| transposed(it, columns)).collect()
        };
        Self {
            left: of_each(&self.right, self.rank * self.columns, self.columns),
            right: of_each(&self.left, self.rank * self.rows, self.rank),
            rank: self.rank,
            rows: self.columns,
            columns: self.rows,
        }
    }

    /// Computes neighbouring elements of a row.
    ///
    /// Products of two numbers are exact in F64. They are added in the order of the rank, and the
    /// sum is rounded to F32, so that the result is the same on every processor.
    fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        let left = &self.left[row * self.rank..][..self.rank];
        let first = row / self.rows * self.rank * self.columns + column;
        // PyTorch does not define the order of the terms, and its sums in F32 differ between
        // processors in the last bits. In F64, fused and separate operations give the same bits.
        let mut sums = [0.0_f64; BLOCK];
        let sums = &mut sums[..out.len()];
        vectorized(
            #[inline(always)]
            || self.multiply(left, first, sums, out),
        );
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
pub(super) fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let columns = columns.max(1);
    let column = |column| matrix.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

/// Returns the sums of products of a core `[rank, rank, kernel]` and a matrix `[rank, columns]`, as
/// `[rank, columns, kernel]`.
pub(super) fn contracted(core: &[f32], matrix: &[f32], rank: usize) -> Vec<f32> {
    let rank = rank.max(1);
    let (kernel, columns) = (core.len() / rank / rank, matrix.len() / rank);
    let mut sums = vec![0.0_f64; rank * columns * kernel];
    for (at, sums) in sums.chunks_mut(kernel.max(1)).enumerate() {
        let (row, column) = (at / columns, at % columns);
        for k in 0..rank {
            let factor = f64::from(matrix[k * columns + column]);
            let core = &core[(row * rank + k) * kernel..][..kernel];
            sums.iter_mut().zip(core).for_each(|(sum, core)| *sum += factor * f64::from(*core));
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn read(factors: &Factors, row: usize, columns: Range<usize>) -> Vec<f32> {
        let mut all = vec![0.0; columns.len()];
        for (at, block) in all.chunks_mut(BLOCK).enumerate() {
            factors.read(row, columns.start + at * BLOCK, block);
        }
        all
    }

    #[test]
    fn rows_of_the_product_and_of_its_transpose_are_computed() {
        // The worked example of PEFT, without its factor.
        let product = || {
            let (down, up) = (vec![1.0, 0.0, 2.0, 0.0, 1.0, -1.0], vec![0.5, 0.0, 1.0, 1.0]);
            Product::new(up, down, 2, 1)
        };
        let factors = Factors::Product(product());
        assert_eq!(read(&factors, 0, 0..3), [0.5, 0.0, 1.0]);
        assert_eq!(read(&factors, 1, 1..3), [1.0, 1.0]);
        let factors = Factors::Product(product().transposed());
        assert_eq!(read(&factors, 2, 0..2), [1.0, 1.0]);
        assert_eq!(read(&factors, 0, 0..2), [0.5, 1.0]);
    }

    #[test]
    fn a_kronecker_product_begins_anywhere() {
        let full = |values: Vec<f32>, columns| Factors::Full { values, columns };
        let both =
            [full(vec![1.0, 2.0, 3.0, 4.0], 2), full((1..=6).map(|it| it as f32).collect(), 3)];
        let factors = Factors::Two(Join::Kronecker, Box::new(both), [2, 3]);
        assert_eq!(read(&factors, 0, 0..6), [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]);
        assert_eq!(read(&factors, 3, 2..5), [18.0, 16.0, 20.0]);
    }

    #[test]
    fn products_equal_the_sum_for_blocks_and_ranks_of_any_size() {
        for rank in [1, 3, 4, 5, 9] {
            let columns = 2 * BLOCK + 7;
            let up: Vec<f32> = (0..2 * rank).map(|i| i as f32 - 3.0).collect();
            let down: Vec<f32> = (0..rank * columns).map(|i| (i % 13) as f32 - 6.0).collect();
            let factors = Factors::Product(Product::new(up.clone(), down.clone(), rank, 1));
            let sum = |row: usize, column: usize| -> f32 {
                (0..rank).map(|k| up[row * rank + k] * down[k * columns + column]).sum()
            };
            let expected: Vec<_> = (5..columns - 1).map(|column| sum(1, column)).collect();
            assert_eq!(read(&factors, 1, 5..columns - 1), expected);
        }
    }
}
