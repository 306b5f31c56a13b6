//! Quantised weights: tensors of codes and scales that encode a weight.
//!
//! [`Checkpoint::dequantized`] makes each of these weights one tensor of F32, with the name and the
//! shape that its model knows, and computes the numbers in every way to read it.
//! [`Checkpoint::quantized_weights`] lists them.
//!
#![doc = include_str!("../../weights/schemes.md")]
//!
//! The scheme is in the settings next to the files (`config.json`, `hf_quant_config.json`,
//! `quantize_config.json`, `quanto_qmap.json`, `quant_model_description.json`), or follows from
//! names, dtypes and the metadata. Settings that contradict the tensors, missing tensors, and known
//! schemes that cannot be read are errors ([`ErrorKind::Quantization`]), before anything is read.
//!
//! Each operation is rounded to F32, in the order of the scheme's reference implementation on a
//! CPU.
//!
//! [`Rewrite::quantize`](crate::Rewrite::quantize) makes such tensors, by a [`Quantization`].

mod arranged;
mod quantize;
mod source;

use std::collections::HashSet;

pub(crate) use quantize::{Fused, QuantizedPart, fused_with, object, with_dtype, with_settings};
pub use quantize::{LinearLayers, Quantization, QuantizationError};

use crate::checkpoint::{Checkpoint, Computed, Leaves};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::weights::Weight;
#[doc(hidden)]
pub use crate::weights::settings_files;

/// A quantised weight of a checkpoint, and the tensors that store it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizedWeight {
    /// The name of the weight in its model, such as `model.layers.0.mlp.down_proj.weight`.
    pub name: String,
    /// The shape of the weight.
    pub shape: Vec<usize>,
    /// How it is stored, such as `GPTQ`.
    pub scheme: &'static str,
    /// The dtype of the tensor that holds the codes.
    pub dtype: Dtype,
    /// The names of the tensors that store it; the codes come first.
    pub tensors: Vec<String>,
    /// The bytes of these tensors together.
    pub byte_len: u64,
}

impl<S: ReadAt> Checkpoint<S> {
    /// Returns the quantised weights, in the order of the tensors that hold their codes. Reads the
    /// settings next to the files, and small tensors that describe others.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, serialize};
    ///
    /// let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1], &[0.5_f32])?;
    /// let tensors = [("up.weight", codes), ("up.weight_scale", scales)];
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let weights = checkpoint.quantized_weights()?;
    /// assert_eq!((&*weights[0].name, &weights[0].shape[..]), ("up.weight", &[1, 2][..]));
    /// assert_eq!(weights[0].tensors, ["up.weight", "up.weight_scale"]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn quantized_weights(&self) -> Result<Vec<QuantizedWeight>> {
        self.quantized_weights_but(&mut |_| false)
    }

    /// Like [`quantized_weights`](Self::quantized_weights), without the weights with errors that
    /// `leaves` accepts.
    #[doc(hidden)]
    pub fn quantized_weights_but(&self, leaves: Leaves<'_>) -> Result<Vec<QuantizedWeight>> {
        Ok(self.find_weights(leaves)?.into_iter().map(|(about, _)| about).collect())
    }

    /// Makes each quantised weight one tensor of F32, see [the module](crate::quantized). The
    /// tensors that store it, scales of activations and caches, and marks are no longer listed.
    ///
    /// F32 holds every number of all schemes. A load with
    /// [`floats_as`](crate::LoadOptions::floats_as) rounds it once more.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, serialize};
    ///
    /// let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1], &[0.5_f32])?;
    /// let tensors = [("up.weight", codes), ("up.weight_scale", scales)];
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?.dequantized()?;
    /// assert_eq!(checkpoint.len(), 1);
    /// assert_eq!(checkpoint.tensor("up.weight")?.read()?.as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`].
    pub fn dequantized(self) -> Result<Checkpoint<Computed<S>>> {
        let weights = self.find_weights(&mut |_| false)?;
        Ok(source::dequantized(self, weights)?.without_codes())
    }

    /// Like [`dequantized`](Checkpoint::dequantized), only for
    /// [weights](Self::quantized_weights_but) that `wanted` accepts. The others stay as they are
    /// stored.
    #[doc(hidden)]
    pub fn dequantized_but(
        self,
        leaves: Leaves<'_>,
        mut wanted: impl FnMut(&QuantizedWeight) -> bool,
    ) -> Result<Checkpoint<Computed<S>>> {
        let weights = self.find_weights(leaves)?.into_iter();
        let (mut weights, others): (Vec<_>, Vec<_>) = weights.partition(|(about, _)| wanted(about));
        // A mark may belong to several weights, and stays as long as one needs it.
        let needed: HashSet<_> = others.iter().flat_map(|(about, _)| &about.tensors).collect();
        for (about, _) in &mut weights {
            about.tensors.retain(|tensor| !needed.contains(tensor));
        }
        source::dequantized(self, weights)
    }

    /// Returns the stored tensors as the type of [`dequantized`](Checkpoint::dequantized).
    pub(crate) fn without_numbers(self) -> Result<Checkpoint<Computed<S>>> {
        source::dequantized(self, Vec::new())
    }

    fn find_weights(&self, leaves: Leaves<'_>) -> Result<Vec<(QuantizedWeight, Weight)>> {
        let weights = self.stored_weights(leaves).map_err(|error| self.in_first_path(error))?;
        let describe = |weight: Weight| {
            let about = QuantizedWeight {
                name: weight.name.clone(),
                shape: weight.shape.clone(),
                scheme: weight.scheme,
                dtype: weight.tensors.first().map_or(Dtype::U8, |codes| codes.dtype),
                tensors: weight.tensors.iter().map(|tensor| tensor.name.clone()).collect(),
                byte_len: weight.tensors.iter().map(|tensor| tensor.byte_len).sum(),
            };
            (about, weight)
        };
        Ok(weights.into_iter().map(describe).collect())
    }
}
