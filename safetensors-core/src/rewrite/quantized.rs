//! [`Rewrite::quantize`]: weights as codes and scales.

use std::collections::{HashMap, HashSet};
use std::mem;

use super::{PlannedTensor, Rewrite, take};
use crate::convert::ConvertOptions;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::io::ReadAt;
use crate::quantized::{Quantization, with_settings};

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Quantises every weight for which `wanted` returns true: the tensors that store it take its
    /// place, as [`Quantization::quantize`] names them. `wanted` gets the name and the tensor after
    /// the steps so far. Other names of a tied weight become other names of these tensors.
    ///
    /// A weight of any dtype becomes F32 before, from what its source has. The options say how, also
    /// for a weight that is [quantised there](ConvertOptions::scaled_weights).
    ///
    /// ```
    /// use safetensors_core::quantized::Quantization;
    /// use safetensors_core::{
    ///     Checkpoint, ConvertOptions, Dtype, Rewrite, SaveOptions, TensorSource, TensorView, save,
    /// };
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let values = [1.0_f32, -2.0, 3.0, 127.5];
    /// let up = TensorView::from_slice(&[1, 4], &values)?;
    /// let norm = TensorView::from_slice(&[4], &values)?;
    /// save(&path, [("up.weight", up), ("norm.weight", norm)], &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let small = dir.path().join("small.safetensors");
    /// let how = Quantization::Int8Channel;
    /// Rewrite::of(&checkpoint)
    ///     .quantize(how, &ConvertOptions::new(), |name, tensor| how.suits(name, tensor.shape()))?
    ///     .save(&small, &SaveOptions::new())?;
    ///
    /// let small = Checkpoint::open(&small)?;
    /// assert_eq!(small.tensor("up.weight")?.dtype(), Dtype::I8);
    /// let read = small.dequantized()?.tensor("up.weight")?.read()?;
    /// assert_eq!(read.as_slice::<f32>()?, [1.0, -2.0, 3.0, 127.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Quantization::quantize`]. NaN and infinity are found only when the checkpoint
    /// is saved: [`ErrorKind::DoesNotFit`].
    pub fn quantize(
        mut self,
        how: Quantization,
        options: &ConvertOptions,
        mut wanted: impl FnMut(&str, &PlannedTensor<'a, S>) -> bool,
    ) -> Result<Self> {
        self.settle_aliases();
        self.tensors.append(&mut self.applied);
        self.find_scales();
        let mut ties = HashMap::new();
        let mut quantized = HashSet::new();
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (name, planned) in mem::take(&mut self.tensors) {
            // A tensor comes before its aliases.
            if !wanted(&name, &planned) && !(planned.alias && quantized.contains(&planned.tie)) {
                tensors.push((name, planned));
                continue;
            }
            quantized.insert(planned.tie);
            let parts = planned.quantized(&name, how, options)?;
            for (number, (name, mut part)) in parts.into_iter().enumerate() {
                part.tie =
                    *ties.entry((planned.tie, number)).or_insert_with(|| take(&mut self.next_tie));
                tensors.push((name, part));
            }
        }
        self.tensors = tensors;
        self.drop_used_scales();
        Ok(self)
    }

    /// The text of a `config.json`, with the description of the weights that were
    /// [quantised](Rewrite::quantize), as transformers and vLLM expect it. Matrices named
    /// `*.weight` that were not quantised are named there. `config` is the text to begin with, and
    /// may be `{}`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`] if `config` is not a JSON object.
    pub fn quantized_config(&self, how: Quantization, config: &str) -> Result<String> {
        let modules = self.tensors.iter().filter_map(|(name, planned)| {
            let is_matrix = planned.shape().len() == 2 && planned.dtype().is_float();
            let module = name.strip_suffix(".weight")?;
            (is_matrix && !planned.is_quantized()).then_some(module)
        });
        with_settings(how, config, &modules.collect::<Vec<_>>())
    }
}
