//! [`Fused`]: weights that form one matrix where the model is served.

use std::sync::Mutex;

use super::Quantization;
use super::numbers::pieces;
use super::rounding::largest;
use crate::format::convert::{ConvertOptions, Converted};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, Result};
use crate::format::parallel::lock;
use crate::format::tensor::TensorSource;

/// The last names of modules that vLLM joins, because they read the same numbers.
// vLLM takes the largest scale of all for such a matrix, so they get one scale, as llm-compressor
// writes them.
const FUSED: [&[&str]; 9] = [
    &["q_proj", "k_proj", "v_proj"],
    &["query", "key", "value"],
    &["q", "k", "v"],
    &["wq", "wk", "wv"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["in_proj_qkv", "in_proj_z"],
    &["in_proj_b", "in_proj_a"],
];

pub(crate) fn fused_with(name: &str) -> Option<(&str, usize)> {
    let module = name.strip_suffix(".weight")?;
    let (parent, last) = module.rsplit_once('.').unwrap_or(("", module));
    Some((parent, FUSED.iter().position(|names| names.contains(&last))?))
}

#[derive(Debug)]
pub(crate) struct Fused<S> {
    weights: Vec<(S, Converted<S>)>,
    locate: fn(&S, Error) -> Error,
    largest: Mutex<Option<f32>>,
}

impl<S: TensorSource + Clone> Fused<S> {
    pub(crate) fn new(
        weights: impl IntoIterator<Item = S>,
        options: &ConvertOptions,
        locate: fn(&S, Error) -> Error,
    ) -> Result<Self> {
        let numbers = |weight: S| match Converted::new(weight.clone(), Dtype::F32, options) {
            Ok(numbers) => Ok((weight, numbers)),
            Err(error) => Err(locate(&weight, error)),
        };
        let weights = weights.into_iter().map(numbers).collect::<Result<_>>()?;
        Ok(Self { weights, locate, largest: Mutex::default() })
    }
}

impl<S: TensorSource> Fused<S> {
    pub(super) fn largest(&self) -> Result<f32> {
        let mut known = lock(&self.largest);
        if let Some(known) = *known {
            return Ok(known);
        }
        let mut most = 0.0_f32;
        for (weight, numbers) in &self.weights {
            pieces(numbers, Quantization::Nvfp4, &mut |_, numbers| {
                most = most.max(largest(numbers));
                Ok(())
            })
            .map_err(|error| (self.locate)(weight, error))?;
        }
        Ok(*known.insert(most))
    }
}
