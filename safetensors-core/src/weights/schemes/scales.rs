//! Shared by the schemes: assigns the numbers in a tensor of scales to elements, by its shape.

use super::super::matrix::{Matrix, Numbers, Stored};
use super::super::model::{Model, Weight, check_len, check_numbers, mismatch, weight};
use super::super::weight::{Grid, Grouped};
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

/// Returns the scales that codes of these names cannot do without. Without them the tensor is a
/// plain one, or the error is that they are missing if the settings name this scheme.
pub(super) fn scales_of<'m>(
    scheme: &'static str,
    model: &'m Model<'_>,
    codes: &Stored,
    name: &str,
) -> Result<Option<&'m Stored>> {
    match model.get(name) {
        None if model.config.method.is_some() => model.need(scheme, codes, name).map(Some),
        found => Ok(found),
    }
}

/// Returns `W_zero_point` of compressed-tensors. The settings may require it.
pub(super) fn zero_points<'m>(
    scheme: &'static str,
    model: &'m Model<'_>,
    codes: &Stored,
    name: &str,
) -> Result<Option<&'m Stored>> {
    let name = format!("{name}_zero_point");
    match model.config.has_zero_points() {
        true => model.need(scheme, codes, &name).map(Some),
        false => Ok(model.get(&name)),
    }
}

/// Returns the numbers that a tensor of scales has. U8 are exponents, as in F8_E8M0.
pub(super) fn numbers_of(scheme: &'static str, tensor: &Stored) -> Result<Numbers> {
    check_numbers(scheme, tensor)?;
    Ok(if tensor.dtype == Dtype::U8 { Dtype::F8_E8M0 } else { tensor.dtype }.into())
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
    scheme: &'static str,
    model: &Model<'_>,
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
    let [block_rows, block_columns] = model.block;
    let blocks = [rows.div_ceil(block_rows), columns.div_ceil(block_columns)];
    let size_of_groups = |groups: usize| {
        let size = columns.checked_div(groups).filter(|_| columns.is_multiple_of(groups));
        let by_settings = model.config.number("group_size");
        size.or(by_settings.filter(|&size| size > 0 && columns.div_ceil(size) == groups))
    };
    let found = match shape.strip_prefix(lead) {
        Some([] | [1] | [1, 1]) => Some(of(1, 1, [rows, columns])),
        Some(&[n]) | Some(&[n, 1]) if n == rows => Some(of(1, rows, [1, columns])),
        Some(&[1, n]) if n == columns && !lead.is_empty() => Some(of(n, 1, [rows, 1])),
        Some(&[a, b]) if [a, b] == blocks => {
            let other = [(rows, a, block_rows), (columns, b, block_columns)];
            let other = other.into_iter().find_map(other_size);
            if let Some(size) = other.filter(|_| model.config.method.is_none()) {
                let expected = format!(
                    "a weight_block_size in config.json, which tells blocks of {block_rows} from \
                     blocks of {size}"
                );
                return Err(mismatch(scheme, tensor, expected, "none"));
            }
            Some(of(b, a, model.block))
        }
        Some(&[n, groups]) if n == rows => {
            size_of_groups(groups).map(|size| of(groups, rows, [1, size]))
        }
        _ => None,
    };
    found.ok_or_else(|| {
        let expected = format!(
            "a number for each row, group of columns or block of {block_rows} by {block_columns} \
             of shape {}",
            Shape(weight)
        );
        mismatch(scheme, tensor, expected, format_args!("shape {}", Shape(&tensor.shape)))
    })
}

/// Returns another usual size of blocks that divides a length into the same number of blocks.
fn other_size((len, count, size): (usize, usize, usize)) -> Option<usize> {
    let other = len.checked_div(count).filter(|_| count > 1 && len.is_multiple_of(count));
    other.filter(|&other| other != size && other.is_multiple_of(32))
}

/// Returns `true` if a tensor is the number of an entire weight, and not of the only one of several
/// matrices.
pub(super) fn is_of_all(tensor: &Stored, lead: &[usize]) -> bool {
    tensor.len() == 1 && (tensor.shape.len() < 2 || lead.iter().all(|&count| count == 1))
}

/// Checks that the number of scales matches the groups of columns of one of these sizes, which the
/// settings name, if they name any.
pub(super) fn check_group_size(
    scheme: &'static str,
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
    Err(mismatch(scheme, scales, expected, format_args!("{groups} groups")))
}

/// Multiplies the weight by factors of the input of its module, such as `X.pre_quant_scale`, and so
/// of its columns.
pub(super) fn times_columns(mut weight: Weight, factors: Option<&Stored>) -> Result<Weight> {
    let Some(tensor) = factors else { return Ok(weight) };
    check_numbers(weight.scheme, tensor)?;
    let columns = weight.shape.last().copied().unwrap_or(1);
    check_len(weight.scheme, tensor, [columns, 1])?;
    let rows = weight.shape.iter().product::<usize>() / columns.max(1);
    let matrix = Matrix::rows(tensor, tensor.dtype, columns);
    weight.numbers.of_columns = Some(Grid::new(matrix, rows, 1, [rows, 1]));
    weight.tensors.push(tensor.clone());
    Ok(weight)
}

/// Makes a weight with codes that are numbers of a dtype: (code − zero point) · scale, times the
/// factors.
pub(super) fn plain(
    scheme: &'static str,
    model: &Model<'_>,
    name: impl Into<String>,
    tensor: &Stored,
    (scales, numbers): (&Stored, impl Into<Numbers>),
    zeros: Option<&Stored>,
    factors: Option<&Stored>,
) -> Result<Weight> {
    let shape = &tensor.shape;
    let of_scales = grid(scheme, model, shape, scales, numbers)?;
    let of_zeros = zeros.map(|zeros| {
        check_numbers(scheme, zeros)?;
        grid(scheme, model, shape, zeros, zeros.dtype)
    });
    let numbers = Grouped::plain(tensor).scaled(of_scales).zeroed(of_zeros.transpose()?);
    let tensors: Vec<_> = [tensor, scales].into_iter().chain(zeros).collect();
    times_columns(weight(scheme, name, shape, &tensors, numbers), factors)
}
