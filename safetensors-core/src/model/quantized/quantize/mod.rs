//! [`Quantization`]: weights become codes and scales, without calibration.

mod error;
mod fused;
mod layers;
mod numbers;
mod part;
mod rounding;
mod settings;

use std::fmt;
use std::sync::Arc;

pub use error::QuantizationError;
pub(crate) use fused::{Fused, fused_with};
pub use layers::LinearLayers;
pub(crate) use part::QuantizedPart;
pub(crate) use settings::{object, with_dtype, with_settings};

use crate::format::convert::{ConvertOptions, Converted};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result};
use crate::format::tensor::TensorSource;

/// How weights are quantised. The largest magnitude of each group becomes the largest number of the
/// codes, which are rounded to nearest, ties to even. The formulas are from compressed-tensors for
/// weights of F32, to which other dtypes are converted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quantization {
    /// F8_E4M3 with a scale for each block of 128 by 128, as DeepSeek stores it.
    Fp8Block128,
    /// F8_E4M3 with a scale for each row.
    Fp8Channel,
    /// F8_E4M3 with one scale.
    Fp8Tensor,
    /// E2M1 with a scale of F8_E4M3 for 16 columns, and a scale of these scales.
    Nvfp4,
    /// E2M1 with a power of two for 32 columns.
    Mxfp4,
    /// I8 with a scale for each row.
    Int8Channel,
}

impl Quantization {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Fp8Block128,
        Self::Fp8Channel,
        Self::Fp8Tensor,
        Self::Nvfp4,
        Self::Mxfp4,
        Self::Int8Channel,
    ];

    /// The name on a command line, such as `fp8-block128`.
    fn name(self) -> &'static str {
        match self {
            Self::Fp8Block128 => "fp8-block128",
            Self::Fp8Channel => "fp8-channel",
            Self::Fp8Tensor => "fp8-tensor",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Int8Channel => "int8-channel",
        }
    }

    /// `None` unless each row has at least one group, and complete ones.
    fn matrix(self, shape: &[usize]) -> Option<[usize; 2]> {
        let matrix: [usize; 2] = shape.try_into().ok()?;
        let group = self.group();
        (group == 1 || matrix[1] > 0 && matrix[1].is_multiple_of(group)).then_some(matrix)
    }

    /// The columns that share a scale, if rows must be complete groups; otherwise 1.
    fn group(self) -> usize {
        match self {
            Self::Nvfp4 => 16,
            Self::Mxfp4 => 32,
            _ => 1,
        }
    }

    fn code(self) -> Dtype {
        match self {
            Self::Nvfp4 | Self::Mxfp4 => Dtype::F4,
            Self::Int8Channel => Dtype::I8,
            _ => Dtype::F8_E4M3,
        }
    }

    /// Makes the codes `X.weight` or `X.weight_packed`, and then the scales, which read `X.weight`
    /// when they are written. `fused` has the weights of NVFP4 that form one matrix with this one.
    pub(crate) fn quantize<S: TensorSource + Send>(
        self,
        name: &str,
        weight: S,
        options: &ConvertOptions,
        fused: Option<Arc<Fused<S>>>,
    ) -> Result<Vec<(String, QuantizedPart<S>)>> {
        let wrong = |expected: String, found: String| {
            let problem = QuantizationProblem::Mismatch { scheme: self.name(), expected, found };
            Error::from(ErrorKind::Quantization { problem }).in_tensor(name)
        };
        if !name.ends_with(".weight") {
            return Err(wrong("a name that ends in .weight".into(), "another name".into()));
        }
        let Some(matrix) = self.matrix(weight.shape()) else {
            let expected = match self.group() {
                1 => "two dimensions".to_owned(),
                group => format!("rows of one or more groups of {group} columns"),
            };
            return Err(wrong(expected, format!("shape {:?}", weight.shape())));
        };
        let weight = Converted::new(weight, Dtype::F32, options)?;
        Ok(part::parts(self, name, weight, matrix, fused))
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
