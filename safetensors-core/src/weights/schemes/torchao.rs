//! torchao: 8-bit floats and integers. The file's metadata names the type of each weight.
//!
//! W = (q − zero point) · scale.

use serde_json::Value;

use super::super::matrix::{Matrix, Stored};
use super::super::model::{Model, Scheme, Weight, check_dtype, check_numbers, unsupported, weight};
use super::super::weight::Grouped;
use super::scales::{grid, plain_numbers};
use crate::dtype::Dtype;
use crate::error::Result;

pub(super) struct Torchao;

/// The types whose elements lie in C order.
const PLAIN: &[&str] = &["Float8Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor"];

impl Scheme for Torchao {
    fn name(&self) -> &'static str {
        "torchao"
    }

    fn methods(&self) -> &'static [&'static str] {
        &["torchao"]
    }

    fn weight(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        let Some(base) = tensor.name.strip_suffix("_qdata") else { return Ok(None) };
        let Some((module, name)) = base.rsplit_once("._") else { return Ok(None) };
        let name = format!("{module}.{}", name.trim_end_matches('_'));
        let kind = model.metadata.get(&name).and_then(|json| {
            let json: Value = serde_json::from_str(json).ok()?;
            json.get("_type")?.as_str().map(str::to_owned)
        });
        if let Some(kind) = kind.filter(|kind| !PLAIN.contains(&kind.as_str())) {
            return Err(unsupported("torchao", format!("the type {kind}")).in_tensor(&name));
        }
        check_dtype(self, tensor, &[Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8])?;
        let scales = model.need(self, tensor, &format!("{base}_scale"))?;
        check_numbers(self, scales)?;
        let factors = grid(self, model, &tensor.shape, scales, plain_numbers(scales.dtype))?;
        let mut tensors = vec![tensor, scales];
        let zeros = match model.get(&format!("{base}_zero_point")) {
            None => None,
            Some(zeros) => {
                check_numbers(self, zeros)?;
                tensors.push(zeros);
                Some(grid(self, model, &tensor.shape, zeros, plain_numbers(zeros.dtype))?)
            }
        };
        let numbers = Grouped::new(Matrix::plain(tensor), tensor.matrix()[1]);
        let numbers = numbers.scaled(factors).zeroed(zeros);
        Ok(Some(weight(self, name, &tensor.shape, &tensors, numbers)))
    }
}
