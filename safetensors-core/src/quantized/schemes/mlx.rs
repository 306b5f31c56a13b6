//! MLX: integers of 2 to 8 bits in words, with a scale and a bias for each group of columns.
//!
//! W = q · scale + bias, in F32. The number of bits is in the model's settings only.

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::matrix::{Matrix, Stored};
use super::super::model::{
    Model, Scheme, check_numbers, check_shape, mismatch, unsupported, weight,
};
use super::super::weight::{Formula, Grouped, Weight};
use super::scales::{grid, plain_numbers};
use crate::dtype::Dtype;
use crate::error::Result;

pub(super) struct Mlx;

impl Scheme for Mlx {
    fn name(&self) -> &'static str {
        "MLX"
    }

    fn methods(&self) -> &'static [&'static str] {
        &["mlx"]
    }

    fn weight(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
        if tensor.dtype != Dtype::U32 {
            return Ok(None);
        }
        let Some(scales) = model.get(&format!("{module}.scales")) else { return Ok(None) };
        let mode = model.config.text("mode").filter(|mode| *mode != "affine");
        let Some(biases) = model.get(&format!("{module}.biases")) else {
            let reason = format!("the mode {}", mode.unwrap_or("without biases"));
            return Err(unsupported("MLX", reason).in_tensor(&tensor.name));
        };
        let Some(bits) = model.config.number_for(module, "bits").filter(|n| (1..=8).contains(n))
        else {
            let problem = "MLX needs \"bits\" from 1 to 8 in \"quantization\" of config.json";
            return Err(bad_config(problem.into()).in_tensor(&tensor.name));
        };
        let [_, words] = tensor.matrix();
        if words * 32 % bits != 0 || tensor.shape.len() < 2 {
            let expected = format!("rows of whole codes of {bits} bits");
            return Err(mismatch(self, tensor, expected, format_args!("{words} words")));
        }
        let columns = words * 32 / bits;
        let shape = [&tensor.shape[..tensor.shape.len() - 1], &[columns]].concat();
        check_shape(self, biases, &scales.shape)?;
        check_numbers(self, scales)?;
        check_numbers(self, biases)?;
        let of = |tensor: &Stored| grid(self, model, &shape, tensor, plain_numbers(tensor.dtype));
        let codes = Matrix::rows(tensor, Codes::unsigned(bits, Order::LowFirst, 0), columns);
        let mut numbers = Grouped::new(codes, columns).scaled(of(scales)?);
        numbers.zeros = Some(of(biases)?);
        numbers.formula = Formula::Add;
        Ok(Some(weight(self, &tensor.name, &shape, &[tensor, scales, biases], numbers)))
    }
}
