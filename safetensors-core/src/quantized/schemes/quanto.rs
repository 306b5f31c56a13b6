//! Quanto: 8-bit floats and integers with a scale for each row.
//!
//! W = data · scale. Its weights of 2 and 4 bits do not tell their shape.

use super::super::matrix::{Matrix, Stored};
use super::super::model::{Model, Scheme, check_dtype, check_numbers, unsupported, weight};
use super::super::weight::{Grouped, Weight};
use super::scales::{grid, of_activations, plain_numbers};
use crate::dtype::Dtype;
use crate::error::Result;

pub(super) struct Quanto;

impl Scheme for Quanto {
    fn name(&self) -> &'static str {
        "Quanto"
    }

    fn methods(&self) -> &'static [&'static str] {
        &["quanto"]
    }

    fn weight(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        let Some(name) = tensor.name.strip_suffix("._data") else { return Ok(None) };
        if name.ends_with("._data") {
            let reason = "codes of 2 or 4 bits, whose file does not tell their shape";
            return Err(unsupported("Quanto", reason).in_tensor(name));
        }
        let scales = model.need(self, tensor, &format!("{name}._scale"))?;
        check_numbers(self, scales)?;
        check_dtype(self, tensor, &[Dtype::I8, Dtype::F8_E4M3, Dtype::F8_E5M2])?;
        let factors = grid(self, model, &tensor.shape, scales, plain_numbers(scales.dtype))?;
        let numbers = Grouped::new(Matrix::plain(tensor), tensor.matrix()[1]).scaled(factors);
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let tensors: Vec<_> =
            [tensor, scales].into_iter().chain(of_activations(model, module)).collect();
        Ok(Some(weight(self, name, &tensor.shape, &tensors, numbers)))
    }
}
