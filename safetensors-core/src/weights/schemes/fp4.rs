//! Floats of 4 and 6 bits with scales of small groups: NVFP4 and MXFP4 of compressed-tensors and
//! ModelOpt, MXFP4 of Quark, MXFP6, the experts of gpt-oss and of DeepSeek-V4.
//!
//! W = code · scale, with the scale of a group divided (compressed-tensors) or multiplied
//! (ModelOpt) by the scale of the weight first, in F32.

use super::super::matrix::{Lies, Matrix, Numbers, Stored};
use super::super::model::{
    Model, Scheme, Weight, check_dtype, check_shape, mismatch, unsupported, weight,
};
use super::super::weight::{Combine, Grid, Grouped, Scales};
use super::scales::{
    comfy_format, factors_of_columns, grid, numbers_of, of_activations, plain_numbers,
};
use crate::dtype::Dtype;
use crate::error::{Result, Shape};

pub(super) struct Fp4;

impl Scheme for Fp4 {
    fn name(&self) -> &'static str {
        "FP4 with scales"
    }

    fn methods(&self) -> &'static [&'static str] {
        &["compressed-tensors", "modelopt", "quark", "mxfp4", "mxfp8", "fp8"]
    }

    fn weight(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        if let Some(module) = tensor.name.strip_suffix(".weight_packed") {
            return match tensor.dtype {
                Dtype::U8 => self.compressed(model, tensor, module).map(Some),
                _ => Ok(None),
            };
        }
        if let Some(name) = tensor.name.strip_suffix("_blocks") {
            return self.experts(model, tensor, name, "_scales", true).map(Some);
        }
        if let Some(name) = tensor.name.strip_suffix(".blocks") {
            return self.experts(model, tensor, name, ".scales", false).map(Some);
        }
        match tensor.dtype {
            Dtype::U8 => self.modelopt(model, tensor),
            Dtype::I8 => self.deepseek(model, tensor),
            _ => Ok(None),
        }
    }
}

impl Fp4 {
    /// `X.weight_packed`, `X.weight_scale` and, for NVFP4, `X.weight_global_scale`.
    fn compressed(&self, model: &Model<'_>, tensor: &Stored, module: &str) -> Result<Weight> {
        let scales = model.need(self, tensor, &format!("{module}.weight_scale"))?;
        let global = model.get(&format!("{module}.weight_global_scale"));
        let second = global.map(|global| (Combine::Divide, global));
        let mut found = self.of_groups(model, tensor, scales, second)?;
        found.name = format!("{module}.weight");
        found.tensors.extend(of_activations(model, module).cloned());
        Ok(found)
    }

    /// `W`, `W_scale` and, for NVFP4, `W_scale_2`.
    fn modelopt(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        let name = &tensor.name;
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let Some(scales) = model.get(&format!("{name}_scale")) else { return Ok(None) };
        let second = model.get(&format!("{name}_scale_2"));
        let is_of_groups = second.is_some() || is_exponents(scales);
        if !is_of_groups || comfy_format(model, module).is_some() {
            return Ok(None);
        }
        let second = second.map(|second| (Combine::Multiply, second));
        let mut found = self.of_groups(model, tensor, scales, second)?;
        if let Some(factors) = model.get(&format!("{module}.pre_quant_scale")) {
            found.numbers.of_columns = Some(factors_of_columns(self, &found.shape, factors)?);
            found.tensors.push(factors.clone());
        }
        found.tensors.extend(of_activations(model, module).cloned());
        Ok(Some(found))
    }

    /// The experts of DeepSeek-V4: two codes in each I8 of `X.weight`, and `X.scale`.
    fn deepseek(&self, model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
        let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
        let scales = model.get(&format!("{module}.scale")).filter(|scales| is_exponents(scales));
        let Some(scales) = scales else { return Ok(None) };
        let mut found = self.of_groups(model, tensor, scales, None)?;
        found.tensors.extend(of_activations(model, module).cloned());
        Ok(Some(found))
    }

    /// Rows of codes with a scale for each group of columns, and perhaps one for all.
    fn of_groups(
        &self,
        model: &Model<'_>,
        tensor: &Stored,
        scales: &Stored,
        second: Option<(Combine, &Stored)>,
    ) -> Result<Weight> {
        let [_, packed] = tensor.matrix();
        let [_, groups] = scales.matrix();
        // Codes of six bits are three quarters of their number in bytes.
        let is_six = second.is_none() && groups * 24 == packed;
        if is_six && model.config.method.as_deref() == Some("quark") {
            // Other bits come first, and the dtype may be F6_E3M2.
            return Err(unsupported("Quark", "floats of 6 bits").in_tensor(&tensor.name));
        }
        let (dtype, columns) = match is_six {
            true => (Dtype::F6_E2M3, groups * 32),
            false => (Dtype::F4, packed * 2),
        };
        let mut shape = tensor.shape.clone();
        match shape.last_mut().filter(|_| tensor.shape.len() > 1) {
            Some(last) => *last = columns,
            None => return Err(mismatch(self, tensor, "a matrix", Shape(&tensor.shape))),
        }
        let mut of_scales = shape.clone();
        of_scales.pop();
        of_scales.push(columns / if second.is_some() { 16 } else { 32 });
        check_shape(self, scales, &of_scales)?;
        let first = grid(self, model, &shape, scales, numbers_of_scales(self, scales)?)?;
        let mut tensors = vec![tensor, scales];
        let second = match second {
            None => None,
            Some((combine, scale)) => {
                tensors.push(scale);
                check_dtype(self, scale, &[Dtype::F32, Dtype::BF16, Dtype::F16])?;
                let numbers = numbers_of(self, scale)?;
                Some((combine, grid(self, model, &shape, scale, numbers)?))
            }
        };
        let matrix = Matrix::rows(tensor, plain_numbers(dtype), columns);
        let codes = Grouped::new(matrix, columns).scaled(Scales { first, second });
        Ok(weight(self, &tensor.name, &shape, &tensors, codes))
    }

    /// The experts of gpt-oss: `[.., rows, groups, 16]` bytes and `[.., rows, groups]` exponents.
    /// transformers' names mean the transposed matrices, as its models hold them; OpenAI's do not.
    fn experts(
        &self,
        model: &Model<'_>,
        tensor: &Stored,
        name: &str,
        end: &str,
        is_transposed: bool,
    ) -> Result<Weight> {
        let scales = model.need(self, tensor, &format!("{name}{end}"))?;
        check_dtype(self, tensor, &[Dtype::U8])?;
        check_dtype(self, scales, &[Dtype::U8, Dtype::F8_E8M0])?;
        let [lead @ .., rows, groups, 16] = &tensor.shape[..] else {
            let found = format!("shape {}", Shape(&tensor.shape));
            return Err(mismatch(self, tensor, "shape [.., rows, groups, 16]", found));
        };
        check_shape(self, scales, &tensor.shape[..tensor.shape.len() - 1])?;
        let (rows, groups, columns) = (*rows, *groups, groups * 32);
        let lies = Lies::Rows { bits: columns as u64 * 4 };
        let codes = Matrix::new(tensor, plain_numbers(Dtype::F4), lies, columns);
        let exponents = Matrix::rows(scales, numbers_of(self, scales)?, groups);
        let (codes, grid, shape) = if is_transposed {
            let grid = Grid::new(exponents.transposed(rows), columns, groups, [32, 1]);
            (Grouped::new(codes.transposed(rows), rows), grid, [columns, rows])
        } else {
            let grid = Grid::new(exponents, rows, rows, [1, 32]);
            (Grouped::new(codes, columns), grid, [rows, columns])
        };
        let shape = [lead, &shape[..]].concat();
        Ok(weight(self, name, &shape, &[tensor, scales], codes.scaled(grid)))
    }
}

/// Whether a tensor holds powers of two.
fn is_exponents(scales: &Stored) -> bool {
    matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0)
}

/// The numbers of the scales of groups.
fn numbers_of_scales(scheme: &Fp4, scales: &Stored) -> Result<Numbers> {
    check_dtype(scheme, scales, &[Dtype::F8_E4M3, Dtype::U8, Dtype::F8_E8M0])?;
    numbers_of(scheme, scales)
}
