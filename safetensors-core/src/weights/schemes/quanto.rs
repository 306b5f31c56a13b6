//! Quanto: floats and integers of 8 bits, integers of 2 and 4 bits.
//! With 8 bits there is a scale for each row, with less a scale and a shift for each group.
//!
//! W = data · scale. Of 2 and 4 bits: W = data · scale − shift, or (data − shift) · scale for
//! shifts that are integers. Codes of a byte belong to groups that are far apart, the first in the
//! lowest bits. A weight's shape may follow from the module's bias, or from `config.json`.

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Weight};
use super::super::weight::{Formula, Grid, Grouped};
use super::scales::FLOATS;
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

/// For rows of more than 128 columns.
const GROUPS: [usize; 4] = [32, 64, 96, 128];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let tensor = candidate.tensor;
    let Some(name) = tensor.name.strip_suffix("._data") else { return Ok(None) };
    if let Some(name) = name.strip_suffix("._data") {
        let scales = candidate.scales(&format!("{name}._scale"))?;
        return scales.map(|scales| of_few_bits(candidate, scales, name)).transpose();
    }
    let scales = candidate.scales(&format!("{name}._scale"))?;
    let Some(scales) = scales else { return Ok(None) };
    candidate.check_numbers(scales)?;
    candidate.check_dtype(tensor, &[Dtype::I8, Dtype::F8_E4M3, Dtype::F8_E5M2])?;
    candidate.plain(name, (scales, scales.dtype), None, None).map(Some)
}

/// Finds `W._data._data`, `W._scale` and `W._shift`: each row of codes is a group.
fn of_few_bits(candidate: &Candidate<'_>, scales: &Stored, name: &str) -> Result<Weight> {
    let tensor = candidate.tensor;
    let shifts = candidate.need(&format!("{name}._shift"))?;
    candidate.check_dtype(tensor, &[Dtype::U8])?;
    candidate.check_dtype(scales, &FLOATS)?;
    candidate.check_dtype(shifts, &[&FLOATS[..], &[Dtype::I8, Dtype::U8]].concat())?;
    let groups = scales.len();
    candidate.check_len(shifts, [groups, 1])?;
    let [packed, rest @ ..] = &tensor.shape[..] else {
        return Err(candidate.mismatch(tensor, "a matrix", Shape(&tensor.shape)));
    };
    let bits = bits(candidate, name, groups)?;
    let columns = candidate.count(rest)?;
    let shape = match rest {
        // Codes with this number of columns may be groups of a row.
        [columns] if GROUPS.contains(columns) => shape(candidate, name, [groups, *columns])?,
        _ => [&[groups], rest].concat(),
    };
    let codes = Codes::unsigned(bits, Order::LowFirst, 0);
    let lies = Lies::Planes { word: 1, apart: (*packed).max(1), high_first: false };
    let [factors, zeros] = [scales, shifts].map(|tensor| {
        let matrix = Matrix::rows(tensor, tensor.dtype, 1);
        Grid::new(matrix, groups, groups, [1, columns])
    });
    let codes = Matrix::new(tensor, codes, lies, columns);
    let mut numbers = Grouped::new(codes, columns).scaled(factors).zeroed(Some(zeros));
    if FLOATS.contains(&shifts.dtype) {
        numbers.formula = Formula::Shift;
    }
    Ok(candidate.weight(name, &shape, &[tensor, scales, shifts], numbers))
}

/// Counts by the packed rows, which the settings must agree with.
fn bits(candidate: &Candidate<'_>, name: &str, groups: usize) -> Result<usize> {
    let Candidate { model, tensor, .. } = *candidate;
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let kind = model.config.text_for(module, "weights");
    let rows = tensor.shape.first().copied().unwrap_or(0);
    let is_named = |bits: &usize| kind.is_none_or(|kind| kind.ends_with(&format!("int{bits}")));
    let fits = |bits: &usize| groups.div_ceil(8 / bits) == rows;
    let found: Vec<_> = [2, 4].into_iter().filter(is_named).filter(fits).collect();
    match found[..] {
        [bits] => Ok(bits),
        _ => {
            let kind = kind.unwrap_or("codes of 2 or 4 bits");
            let expected = format!("the rows that {groups} groups of {kind} need");
            Err(candidate.mismatch(tensor, expected, format_args!("{rows} rows")))
        }
    }
}

fn shape(candidate: &Candidate<'_>, name: &str, [groups, size]: [usize; 2]) -> Result<Vec<usize>> {
    let Candidate { model, tensor, .. } = *candidate;
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let bias = model.get(&format!("{module}.bias")).map(Stored::len).filter(|len| *len > 0);
    let inputs = model.config.inputs_of(module);
    let in_row = match (inputs, bias) {
        (Some(inputs), _) if inputs.is_multiple_of(size) => Some(inputs / size),
        (None, Some(rows)) if groups.is_multiple_of(rows) => Some(groups / rows),
        (None, None) => {
            let problem = format!(
                "the file does not tell the shape of this weight of Quanto, whose number of \
                 columns is {size} or a multiple; a bias or the dimensions in config.json would"
            );
            return Err(bad_config(problem).in_tensor(name));
        }
        _ => None,
    };
    let rows = in_row.filter(|&in_row| in_row > 0 && groups.is_multiple_of(in_row));
    let rows = rows.map(|in_row| groups / in_row).filter(|&n| bias.is_none_or(|len| len == n));
    match (rows, in_row) {
        (Some(rows), Some(in_row)) => Ok(vec![rows, in_row * size]),
        _ => {
            let number = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
            let expected = format!(
                "a weight of {} columns as config.json says and {} rows as the bias says",
                number(inputs),
                number(bias)
            );
            Err(candidate.mismatch(tensor, expected, format_args!("{groups} groups of {size}")))
        }
    }
}
