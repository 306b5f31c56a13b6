//! [`Rewrite::quantize`]: weights as codes and scales.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use super::origin::Origin;
use super::{PlannedTensor, Rewrite, take};
use crate::file::io::ReadAt;
use crate::format::convert::ConvertOptions;
use crate::format::dtype::Dtype;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::model::quantized::{
    Fused, LinearLayers, Quantization, fused_with, with_dtype, with_settings,
};
use crate::weights::bad_config;

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Quantises weights for which `wanted` returns true: the tensors that store a weight replace
    /// it, with the names that [the module](crate::quantized) reads. `None` leaves that to
    /// `layers`: floats that are weights of linear layers under all of their names. Read weights
    /// that are quantised already by [`Checkpoint::dequantized`](crate::Checkpoint::dequantized)
    /// first.
    ///
    /// An alias for which `wanted` returns `None` follows its tensor if it names a linear layer.
    /// With another answer than its tensor's, it becomes a separate tensor.
    ///
    /// A weight is converted to F32 before, as the options say, and read two or three times, piece
    /// by piece, while it is saved. Weights that vLLM joins into one matrix, such as queries, keys
    /// and values, share the scale of all scales of NVFP4.
    ///
    /// ```
    /// use safetensors_core::quantized::{LinearLayers, Quantization};
    /// use safetensors_core::{
    ///     Checkpoint, ConvertOptions, Dtype, Rewrite, SaveOptions, TensorView, save,
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
    /// let (layers, options) = (LinearLayers::new(), ConvertOptions::new());
    /// Rewrite::from_checkpoint(&checkpoint)
    ///     .quantize(Quantization::Int8Channel, &options, &layers, |_, _| None)?
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
    /// [`ErrorKind::Quantization`] for a weight that is not a matrix of complete groups, or has a
    /// name that does not end in `.weight`, and if other weights were quantised in another way;
    /// otherwise as for [`cast`](Rewrite::cast) to F32. NaN and infinity are found only when the
    /// checkpoint is saved: [`ErrorKind::DoesNotFit`].
    pub fn quantize(
        mut self,
        how: Quantization,
        options: &ConvertOptions,
        layers: &LinearLayers,
        wanted: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<bool>,
    ) -> Result<Self> {
        if let Some(other) = self.quantization.replace(how).filter(|other| *other != how) {
            let problem = format!("weights are quantised as {other} and as {how}");
            return Err(bad_config(problem));
        }
        self.settle_aliases();
        let chosen = self.chosen(how, layers, wanted);
        let positions: Vec<_> = (0..chosen.len()).filter(|&position| chosen[position]).collect();
        self.refuse_codes(&positions)?;
        let fused = match how {
            Quantization::Nvfp4 => self.fused(&chosen, options)?,
            _ => HashMap::new(),
        };
        let mut ties = HashMap::new();
        let mut quantized = HashSet::new();
        let mut tensors = Vec::with_capacity(self.tensors.len());
        let all = mem::take(&mut self.tensors).into_iter().zip(chosen);
        for ((name, mut planned), is_chosen) in all {
            if !is_chosen {
                tensors.push((name, planned));
                continue;
            }
            // A tensor comes before its aliases.
            planned.alias &= quantized.contains(&planned.tie);
            quantized.insert(planned.tie);
            let fused = fused.get(&planned.tie).cloned();
            let parts = planned.quantized(&name, how, options, fused)?;
            for (number, (name, mut part)) in parts.into_iter().enumerate() {
                part.tie =
                    *ties.entry((planned.tie, number)).or_insert_with(|| take(&mut self.next_tie));
                tensors.push((name, part));
            }
        }
        self.tensors = tensors;
        Ok(self)
    }

    fn chosen(
        &self,
        how: Quantization,
        layers: &LinearLayers,
        mut wanted: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<bool>,
    ) -> Vec<bool> {
        let names: HashSet<&str> = self.tensors.iter().map(|(name, _)| &**name).collect();
        let suits = |name: &str, planned: &PlannedTensor<'a, S>| {
            // PyTorch's attention reads these numbers past their layer.
            let is_of_attention = name
                .strip_suffix("out_proj.weight")
                .is_some_and(|module| names.contains(&*format!("{module}in_proj_weight")));
            let is_float = planned.source_dtype().is_float();
            is_float && !is_of_attention && layers.suits(how, name, planned.shape())
        };
        let mut stay = HashSet::new();
        let mut answers = Vec::with_capacity(self.tensors.len());
        for (name, planned) in &self.tensors {
            let given = if planned.is_quantized() { Some(false) } else { wanted(name, planned) };
            let suits = suits(name, planned);
            if given.is_none() && !suits {
                stay.insert(planned.tie);
            }
            answers.push((planned, given, suits));
        }
        // A tensor comes before its aliases.
        let mut of_tensor = HashMap::new();
        let mut chosen = Vec::with_capacity(answers.len());
        for (planned, given, suits) in answers {
            let by_default = match of_tensor.get(&planned.tie) {
                Some(is_chosen) if planned.alias => suits && *is_chosen,
                _ => suits && !stay.contains(&planned.tie),
            };
            let is_chosen = given.unwrap_or(by_default);
            of_tensor.entry(planned.tie).or_insert(is_chosen);
            chosen.push(is_chosen);
        }
        chosen
    }

    fn fused(&self, chosen: &[bool], options: &ConvertOptions) -> Result<FusedByTie<'a, S>> {
        let mut groups = Groups::default();
        let mut of_key = HashMap::new();
        let mut of_tie = HashMap::new();
        let chosen = self.tensors.iter().zip(chosen).filter(|(_, is_chosen)| **is_chosen);
        for ((name, planned), _) in chosen {
            let Some(key) = fused_with(name) else { continue };
            let group = *of_key.entry(key).or_insert_with(|| groups.add());
            match of_tie.entry(planned.tie) {
                Entry::Vacant(entry) => _ = entry.insert((group, planned)),
                // A tied weight joins the groups of its names.
                Entry::Occupied(entry) => groups.join(group, entry.get().0),
            }
        }
        let mut weights: BTreeMap<usize, BTreeMap<u64, _>> = BTreeMap::new();
        for (tie, (group, planned)) in of_tie {
            weights.entry(groups.find(group)).or_default().insert(tie, planned);
        }
        let mut fused = HashMap::new();
        for weights in weights.into_values().filter(|weights| weights.len() > 1) {
            let origins = weights.values().map(|planned| planned.origin.clone());
            let group = Fused::new(origins, options, |origin, error| origin.locate(error))?;
            let group = Arc::new(group);
            fused.extend(weights.into_keys().map(|tie| (tie, Arc::clone(&group))));
        }
        Ok(fused)
    }

    /// Returns the text of a `config.json` with `dtype` or `torch_dtype` set to the dtype of most
    /// bytes of plain floats, if any were converted.
    pub fn config(&self, config: &str) -> Result<String> {
        self.with_dtype(config, false)
    }

    /// Returns the text of a [`config`](Rewrite::config), with the description of the
    /// [quantised](Rewrite::quantize) weights that transformers and vLLM expect. It names the
    /// modules and [stacked experts](Rewrite::stacked_experts) that were not quantised, and the
    /// head. If none were quantised, an earlier description is removed, and the dtype set.
    ///
    /// ```
    /// use safetensors_core::Rewrite;
    ///
    /// let config = r#"{"vocab_size": 8, "quantization_config": {"quant_method": "fp8"}}"#;
    /// let numbers = Rewrite::new().quantized_config(config)?;
    /// assert_eq!(numbers, "{\n  \"vocab_size\": 8\n}\n");
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn quantized_config(&self, config: &str) -> Result<String> {
        let module = |(name, planned): &(String, PlannedTensor<'a, S>)| {
            let module = name.strip_suffix(".weight")?.to_owned();
            (planned.shape().len() == 2 && planned.is_plain_float()).then_some(module)
        };
        let mut modules: BTreeSet<_> = self.tensors.iter().filter_map(module).collect();
        for (name, _) in self.stacked_experts() {
            // The module of all experts; vLLM asks for the layers of each.
            let end = name.find(".experts.").map_or(name.len(), |at| at + ".experts".len());
            let module = name[..end].trim_end_matches(".weight");
            if self.quantization != Some(Quantization::Fp8Block128) {
                modules.insert(format!("re:{}\\..*", regex::escape(module)));
            }
            modules.insert(module.to_owned());
        }
        // A head that is tied to the embedding often has no name in the files.
        let is_head =
            |name: &str| name.strip_prefix(HEAD).is_some_and(|rest| rest.starts_with('.'));
        if !self.tensors.iter().any(|(name, _)| is_head(name)) {
            modules.insert(HEAD.into());
        }
        let modules: Vec<_> = modules.iter().map(String::as_str).collect();
        let (config, is_changed) = with_settings(self.quantization, config, &modules)?;
        self.with_dtype(&config, is_changed || self.quantization.is_none())
    }

    fn with_dtype(&self, config: &str, were_codes: bool) -> Result<String> {
        let name = self.float_dtype(were_codes).map(name_of_torch);
        with_dtype(config, name.filter(|name| !name.is_empty()))
    }

    /// Returns the dtype of most bytes of plain floats, if any were converted, or were codes
    /// before.
    #[doc(hidden)]
    pub fn float_dtype(&self, were_codes: bool) -> Option<Dtype> {
        let mut is_changed = were_codes;
        let mut bytes: BTreeMap<Dtype, u64> = BTreeMap::new();
        for (_, planned) in self.tensors() {
            if planned.is_plain_float() && !planned.is_alias() {
                is_changed |= planned.dtype() != planned.source_dtype();
                *bytes.entry(planned.dtype()).or_default() += planned.byte_len();
            }
        }
        let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(dtype, _)| dtype);
        most.filter(|_| is_changed)
    }

    /// Returns experts in one tensor of three dimensions that are not quantised: transformers and
    /// vLLM read codes only from separate tensors.
    #[doc(hidden)]
    pub fn stacked_experts(&self) -> impl Iterator<Item = (&str, &PlannedTensor<'a, S>)> {
        self.tensors().filter(|(name, planned)| {
            let name = name.to_ascii_lowercase();
            let is_of_experts = name.contains("expert") || name.contains("moe");
            planned.shape().len() == 3 && planned.is_plain_float() && is_of_experts
        })
    }

    /// Returns the number of bytes of [quantised](Rewrite::quantize) weights, and of all floats, in
    /// the sources.
    #[doc(hidden)]
    pub fn quantized_bytes(&self) -> (u64, u64) {
        let mut quantized = 0;
        let mut all = 0;
        for (_, planned) in self.tensors() {
            // Scales are made of the same numbers as their codes.
            if planned.source_dtype().is_float() && !planned.is_alias() && !planned.is_of_codes() {
                all += planned.source_len();
                quantized += if planned.is_quantized() { planned.source_len() } else { 0 };
            }
        }
        (quantized, all)
    }
}

type FusedByTie<'a, S> = HashMap<u64, Arc<Fused<Origin<'a, S>>>>;

/// Each group has the number of another, or its own.
#[derive(Default)]
struct Groups(Vec<usize>);

impl Groups {
    fn add(&mut self) -> usize {
        self.0.push(self.0.len());
        self.0.len() - 1
    }

    fn find(&mut self, mut group: usize) -> usize {
        while self.0[group] != group {
            self.0[group] = self.0[self.0[group]];
            group = self.0[group];
        }
        group
    }

    fn join(&mut self, one: usize, other: usize) {
        let one = self.find(one);
        let other = self.find(other);
        self.0[one] = other;
    }
}

/// Returns an empty name for dtypes that no model has.
fn name_of_torch(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BF16 => "bfloat16",
        Dtype::F16 => "float16",
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        _ => "",
    }
}

/// transformers takes it for a matrix to be quantised unless it is named.
const HEAD: &str = "lm_head";
