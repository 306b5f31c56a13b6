//! [`Rewrite::quantize`]: weights as codes and scales.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;

use super::{PlannedTensor, Rewrite, take};
use crate::convert::ConvertOptions;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::io::ReadAt;
use crate::quantized::{Quantization, with_settings};
use crate::weights::bad_config;

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Quantises every weight for which `wanted` returns `Some(true)`: the tensors that store it
    /// take its place, with the names that [the module](crate::quantized) reads. `wanted` gets the
    /// name and the tensor after the steps so far. Weights that are quantised already are read as
    /// numbers with [`Checkpoint::dequantized`](crate::Checkpoint::dequantized) first.
    ///
    /// An alias for which `wanted` returns `None` follows its tensor: it becomes another name of
    /// the tensors that store it. An alias for which it returns another answer than its tensor gets
    /// becomes a separate tensor.
    ///
    /// A weight of any dtype becomes F32 before, from what its source has, as the options say. It is
    /// read two or three times while it is saved, piece by piece. Its largest magnitudes are in
    /// memory: one for each scale that is not of a group of columns.
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
    ///     .quantize(how, &ConvertOptions::new(), |name, tensor| {
    ///         how.suits(name, tensor.shape()).then_some(true)
    ///     })?
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
    /// [`ErrorKind::Quantization`] for a weight that is not a matrix of whole groups, or whose name
    /// does not end in `.weight`; if other weights were quantised in another way. The errors of
    /// [`cast`](Rewrite::cast) to F32. NaN and infinity are found only when the checkpoint is saved:
    /// [`ErrorKind::DoesNotFit`].
    pub fn quantize(
        mut self,
        how: Quantization,
        options: &ConvertOptions,
        mut wanted: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<bool>,
    ) -> Result<Self> {
        if let Some(other) = self.quantization.replace(how).filter(|other| *other != how) {
            let problem = format!("weights are quantised as {other} and as {how}");
            return Err(bad_config(problem));
        }
        self.settle_aliases();
        let mut ties = HashMap::new();
        let mut quantized = HashSet::new();
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (name, mut planned) in mem::take(&mut self.tensors) {
            // A tensor comes before its aliases.
            let follows = planned.alias && quantized.contains(&planned.tie);
            if planned.is_quantized() || !wanted(&name, &planned).unwrap_or(follows) {
                tensors.push((name, planned));
                continue;
            }
            quantized.insert(planned.tie);
            planned.alias = follows;
            let parts = planned.quantized(&name, how, options)?;
            for (number, (name, mut part)) in parts.into_iter().enumerate() {
                part.tie =
                    *ties.entry((planned.tie, number)).or_insert_with(|| take(&mut self.next_tie));
                tensors.push((name, part));
            }
        }
        self.tensors = tensors;
        Ok(self)
    }

    /// The text of a `config.json`, with the description of the weights that were
    /// [quantised](Rewrite::quantize), as transformers and vLLM expect it. Matrices named
    /// `*.weight` that were not quantised, and the head, are named there. If none were quantised,
    /// the text is without such a description. Its other entries stay as they are, sorted.
    ///
    /// ```
    /// use safetensors_core::Rewrite;
    ///
    /// let config = r#"{"vocab_size": 8, "quantization_config": {"quant_method": "fp8"}}"#;
    /// let numbers = Rewrite::new().quantized_config(config)?;
    /// assert_eq!(numbers, "{\n  \"vocab_size\": 8\n}\n");
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`] if `config` is not a JSON object.
    pub fn quantized_config(&self, config: &str) -> Result<String> {
        let module = |(name, planned): &(String, PlannedTensor<'a, S>)| {
            let is_matrix = planned.shape().len() == 2 && planned.dtype().is_float();
            let module = name.strip_suffix(".weight")?.to_owned();
            (is_matrix && !planned.is_quantized()).then_some(module)
        };
        let mut modules: BTreeSet<_> = self.tensors.iter().filter_map(module).collect();
        // A head that is tied to the embedding often has no name in the files.
        let is_head =
            |name: &str| name.strip_prefix(HEAD).is_some_and(|rest| rest.starts_with('.'));
        if !self.tensors.iter().any(|(name, _)| is_head(name)) {
            modules.insert(HEAD.into());
        }
        let modules: Vec<_> = modules.iter().map(String::as_str).collect();
        with_settings(self.quantization, config, &modules)
    }
}

/// The module that transformers takes for a matrix to be quantised unless it is named.
const HEAD: &str = "lm_head";
