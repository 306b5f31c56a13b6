//! MLX: codes in words of 32 bits.
//! Integers of 1 to 8 bits have a scale and a bias for each group of columns, and floats of 4 and 8
//! bits a scale.
//!
//! W = q · scale + bias, or W = q · scale, in F32. Only the model's settings have the number of
//! bits and the mode. transformers' method `metal` stores the same, with `X.qbiases`.

use serde_json::Value;

use super::super::codes::{Codes, Order};
use super::super::config::{bad_config, whole};
use super::super::matrix::{Matrix, Numbers, Stored};
use super::super::model::{Candidate, Weight};
use super::super::weight::{Formula, Grouped};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

/// Bits and the size of a group, where a module's settings name none.
const DEFAULTS: [usize; 2] = [4, 64];

/// The dtypes of codes and scales, and the size of a group.
const FLOATS: &[(&str, Dtype, Dtype, usize)] = &[
    ("mxfp4", Dtype::F4, Dtype::F8_E8M0, 32),
    ("mxfp8", Dtype::F8_E4M3, Dtype::F8_E8M0, 32),
    ("nvfp4", Dtype::F4, Dtype::F8_E4M3, 16),
];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
    if tensor.dtype != Dtype::U32 {
        return Ok(None);
    }
    let Some(scales) = model.get(&format!("{module}.scales")) else { return Ok(None) };
    // A module's own settings inherit nothing from the settings for all: the library passes them on
    // alone.
    let own = model.config.own(module);
    let text = |of: &'_ Value| of.get("mode").and_then(Value::as_str).map(str::to_owned);
    let mode = own.map_or_else(|| model.config.text("mode").map(str::to_owned), text);
    let mode = mode.as_deref();
    let settings = ["bits", "group_size"].map(|key| match own {
        Some(own) => own.get(key).and_then(whole),
        None => model.config.number(key),
    });
    match mode.and_then(|mode| FLOATS.iter().find(|(name, ..)| *name == mode)) {
        Some(&(_, codes, exponents, size)) => {
            let of_mode = [codes.bits() as usize, size];
            for (at, key) in ["bits", "group_size"].iter().enumerate() {
                if let Some(found) = settings[at].filter(|found| *found != of_mode[at]) {
                    let expected = format!("{key} {} of its mode", of_mode[at]);
                    let found = format!("{found} in the settings");
                    return Err(candidate.mismatch(tensor, expected, found));
                }
            }
            floats(candidate, scales, (codes, exponents, size)).map(Some)
        }
        None => match mode {
            None | Some("affine") => {
                let defaults = own.map_or([None; 2], |_| DEFAULTS.map(Some));
                let settings = [0, 1].map(|at| settings[at].or(defaults[at]));
                affine(candidate, scales, settings).map(Some)
            }
            Some(mode) => Err(candidate.unsupported(format!("the mode {mode}"))),
        },
    }
}

/// Finds `X.weight`, `X.scales` and `X.biases`.
fn affine(
    candidate: &Candidate<'_>,
    scales: &Stored,
    [bits, size]: [Option<usize>; 2],
) -> Result<Weight> {
    let Candidate { model, tensor, .. } = *candidate;
    let module = tensor.name.strip_suffix(".weight").unwrap_or_default();
    let names = ["biases", "qbiases"].map(|end| format!("{module}.{end}"));
    let biases = match model.first(&names) {
        Some(biases) => biases,
        None => candidate.need(&names[0])?,
    };
    let bits = bits.filter(|bits| (1..=8).contains(bits));
    let bits = bits.ok_or_else(|| {
        let problem = "MLX needs \"bits\" from 1 to 8 in \"quantization\" of config.json";
        bad_config(problem.into()).in_tensor(&tensor.name)
    })?;
    let shape = shape(candidate, bits)?;
    let columns = shape[shape.len() - 1];
    candidate.check_shape(biases, &scales.shape)?;
    candidate.check_group_size(scales, size, [columns, scales.matrix()[1]])?;
    candidate.check_numbers(scales)?;
    candidate.check_numbers(biases)?;
    let of = |tensor: &Stored| candidate.grid(&shape, tensor, tensor.dtype);
    let codes = Matrix::rows(tensor, Codes::unsigned(bits, Order::LowFirst, 0), columns);
    let mut numbers = Grouped::new(codes, columns).scaled(of(scales)?);
    numbers.zeros = Some(of(biases)?);
    numbers.formula = Formula::Add;
    Ok(candidate.weight(&tensor.name, &shape, &[tensor, scales, biases], numbers))
}

fn floats(
    candidate: &Candidate<'_>,
    scales: &Stored,
    (codes, of_scales, size): (Dtype, Dtype, usize),
) -> Result<Weight> {
    let tensor = candidate.tensor;
    let shape = shape(candidate, codes.bits() as usize)?;
    let columns = shape[shape.len() - 1];
    candidate.check_dtype(scales, &[Dtype::U8])?;
    let groups = [&shape[..shape.len() - 1], &[columns.div_ceil(size)]].concat();
    candidate.check_shape(scales, &groups)?;
    let mut numbers = Numbers::from(of_scales);
    if of_scales == Dtype::F8_E8M0 {
        // The library has no NaN among the powers of two.
        numbers = numbers.with(255, f32::INFINITY);
    }
    let factors = candidate.grid(&shape, scales, numbers)?;
    let codes = Matrix::rows(tensor, codes, columns);
    let numbers = Grouped::new(codes, columns).scaled(factors);
    Ok(candidate.weight(&tensor.name, &shape, &[tensor, scales], numbers))
}

fn shape(candidate: &Candidate<'_>, bits: usize) -> Result<Vec<usize>> {
    let tensor = candidate.tensor;
    let [_, words] = tensor.matrix();
    if words * 32 % bits != 0 || tensor.shape.len() < 2 {
        let expected = format!("rows of whole codes of {bits} bits");
        return Err(candidate.mismatch(tensor, expected, format_args!("{words} words")));
    }
    Ok([&tensor.shape[..tensor.shape.len() - 1], &[words * 32 / bits]].concat())
}
