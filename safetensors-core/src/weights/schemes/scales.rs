//! Assigns numbers of a tensor of scales to elements, by its shape.

use super::super::matrix::{Matrix, Numbers, Stored};
use super::super::model::{Candidate, Weight};
use super::super::weight::{Grid, Grouped};
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

impl<'a> Candidate<'a> {
    /// Fails without scales only if the settings name this scheme.
    pub(super) fn scales(&self, name: &str) -> Result<Option<&'a Stored>> {
        match self.model.get(name) {
            None if self.model.config.method.is_some() => self.need(name).map(Some),
            found => Ok(found),
        }
    }

    /// Finds `W_zero_point` of compressed-tensors, which the settings may require.
    pub(super) fn zero_points(&self, name: &str) -> Result<Option<&'a Stored>> {
        let name = format!("{name}_zero_point");
        match self.model.config.has_zero_points() {
            true => self.need(&name).map(Some),
            false => Ok(self.model.get(&name)),
        }
    }

    /// Takes U8 for exponents, as in F8_E8M0.
    pub(super) fn numbers(&self, scales: &Stored) -> Result<Numbers> {
        self.check_numbers(scales)?;
        Ok(if scales.dtype == Dtype::U8 { Dtype::F8_E8M0 } else { scales.dtype }.into())
    }

    /// Assigns the numbers in `tensor` to the elements of a weight of shape `[.., rows, columns]`.
    ///
    /// | shape of the numbers | each belongs to |
    /// |---|---|
    /// | one number | the entire weight |
    /// | `[..]`, `[.., 1]` or `[.., 1, 1]` | a matrix, such as an expert's |
    /// | `[.., rows]` or `[.., rows, 1]` | a row |
    /// | `[.., 1, columns]` of several matrices | a column |
    /// | `[.., rows, groups]` | a group of columns of a row |
    /// | `[.., rows / b, columns / c]`, rounded up | a block of `b` × `c`, also `[rows / b, 1, columns / c, 1]` |
    pub(super) fn grid(
        &self,
        weight: &[usize],
        tensor: &Stored,
        numbers: impl Into<Numbers>,
    ) -> Result<Grid> {
        let numbers = numbers.into();
        let (lead, rows, columns) = match *weight {
            [ref lead @ .., rows, columns] => (lead, rows, columns),
            [columns] => (&[][..], 1, columns),
            [] => (&[][..], 1, 1),
        };
        let shape: Vec<usize> = match *tensor.shape {
            [a, 1, b, 1] if weight.len() == 2 => vec![a, b],
            _ => tensor.shape.clone(),
        };
        let of = |width, count, size| {
            Grid::new(Matrix::rows(tensor, numbers.clone(), width), rows, count, size)
        };
        if is_of_all(tensor, lead) {
            let all = rows * lead.iter().product::<usize>();
            let matrix = Matrix::rows(tensor, numbers, 1);
            return Ok(Grid::new(matrix, all, 1, [all, columns]));
        }
        let [block_rows, block_columns] = self.model.block;
        let blocks = [rows.div_ceil(block_rows), columns.div_ceil(block_columns)];
        let found = match shape.strip_prefix(lead) {
            Some([] | [1] | [1, 1]) => Some(of(1, 1, [rows, columns])),
            Some(&[n]) | Some(&[n, 1]) if n == rows => Some(of(1, rows, [1, columns])),
            Some(&[1, n]) if n == columns && !lead.is_empty() => Some(of(n, 1, [rows, 1])),
            Some(&[a, b]) if [a, b] == blocks => {
                self.check_blocks(tensor, [rows, columns], blocks)?;
                Some(of(b, a, self.model.block))
            }
            Some(&[n, groups]) if n == rows => {
                self.size_of_groups(columns, groups).map(|size| of(groups, rows, [1, size]))
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let expected = format!(
                "a number for each row, group of columns or block of {block_rows} by \
                 {block_columns} of shape {}",
                Shape(weight)
            );
            self.wrong_shape(tensor, expected)
        })
    }

    fn size_of_groups(&self, columns: usize, groups: usize) -> Option<usize> {
        let size = columns.checked_div(groups).filter(|_| columns.is_multiple_of(groups));
        let by_settings = self.model.config.number("group_size");
        size.or(by_settings.filter(|&size| size > 0 && columns.div_ceil(size) == groups))
    }

    /// Fails if another usual size would make the same number of blocks, and no settings name it.
    fn check_blocks(
        &self,
        scales: &Stored,
        [rows, columns]: [usize; 2],
        blocks: [usize; 2],
    ) -> Result<()> {
        let [block_rows, block_columns] = self.model.block;
        let other = [(rows, blocks[0], block_rows), (columns, blocks[1], block_columns)];
        let other = other.into_iter().find_map(other_size);
        match other.filter(|_| self.model.config.method.is_none()) {
            None => Ok(()),
            Some(size) => {
                let expected = format!(
                    "a weight_block_size in config.json, which tells blocks of {block_rows} from \
                     blocks of {size}"
                );
                Err(self.mismatch(scales, expected, "none"))
            }
        }
    }

    pub(super) fn check_group_size(
        &self,
        scales: &Stored,
        sizes: impl IntoIterator<Item = usize>,
        [columns, groups]: [usize; 2],
    ) -> Result<()> {
        let sizes: Vec<_> = sizes.into_iter().filter(|&size| size > 0).collect();
        if sizes.is_empty() || sizes.iter().any(|&size| columns.div_ceil(size) == groups) {
            return Ok(());
        }
        let sizes = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ");
        let expected = format!("groups of {sizes} of {columns} columns, as the settings say");
        Err(self.mismatch(scales, expected, format_args!("{groups} groups")))
    }

    pub(super) fn times_columns(
        &self,
        mut weight: Weight,
        factors: Option<&Stored>,
    ) -> Result<Weight> {
        let Some(tensor) = factors else { return Ok(weight) };
        let candidate = Self { scheme: weight.scheme, ..*self };
        candidate.check_numbers(tensor)?;
        let columns = weight.shape.last().copied().unwrap_or(1);
        candidate.check_len(tensor, [columns, 1])?;
        let rows = weight.shape.iter().product::<usize>() / columns.max(1);
        let matrix = Matrix::rows(tensor, tensor.dtype, columns);
        weight.numbers.of_columns = Some(Grid::new(matrix, rows, 1, [rows, 1]));
        weight.tensors.push(tensor.clone());
        Ok(weight)
    }

    /// Makes (code − zero point) · scale, times the factors.
    pub(super) fn plain(
        &self,
        name: impl Into<String>,
        (scales, numbers): (&Stored, impl Into<Numbers>),
        zeros: Option<&Stored>,
        factors: Option<&Stored>,
    ) -> Result<Weight> {
        let tensor = self.tensor;
        let shape = &tensor.shape;
        let of_scales = self.grid(shape, scales, numbers)?;
        let of_zeros = zeros.map(|zeros| {
            self.check_numbers(zeros)?;
            self.grid(shape, zeros, zeros.dtype)
        });
        let numbers = Grouped::plain(tensor).scaled(of_scales).zeroed(of_zeros.transpose()?);
        let tensors: Vec<_> = [tensor, scales].into_iter().chain(zeros).collect();
        self.times_columns(self.weight(name, shape, &tensors, numbers), factors)
    }
}

/// Returns another usual size that makes the same number of blocks.
fn other_size((len, count, size): (usize, usize, usize)) -> Option<usize> {
    let other = len.checked_div(count).filter(|_| count > 1 && len.is_multiple_of(count));
    other.filter(|&other| other != size && other.is_multiple_of(32))
}

/// Returns `true` for one number of an entire weight, not of the only one of several matrices.
pub(super) fn is_of_all(tensor: &Stored, lead: &[usize]) -> bool {
    tensor.len() == 1 && (tensor.shape.len() < 2 || lead.iter().all(|&count| count == 1))
}
