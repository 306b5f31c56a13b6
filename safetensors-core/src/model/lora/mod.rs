//! LoRA adapters: small matrices with products that are added to the weights of a checkpoint.
//!
//! [`Checkpoint::merged`] makes a checkpoint with the sums instead of the weights. They are
//! computed when they are read, so every way to read a checkpoint gets them: in full, by slice, by
//! rank, into any framework, to be saved.
//!
//! ```
//! use safetensors_core::lora::Adapter;
//! use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
//!
//! # let dir = tempfile::tempdir()?;
//! # let base = dir.path().join("model.safetensors");
//! # let adapter = dir.path().join("adapter");
//! # std::fs::create_dir(&adapter)?;
//! # let values = [0.0_f32; 6];
//! # save(&base, [("q.weight", TensorView::from_slice(&[2, 3], &values)?)], &SaveOptions::new())?;
//! let down = [1.0_f32, 0.0, 2.0, 0.0, 1.0, -1.0]; // lora_A
//! let up = [0.5_f32, 0.0, 1.0, 1.0]; // lora_B
//! let tensors = [
//!     ("base_model.model.q.lora_A.weight", TensorView::from_slice(&[2, 3], &down)?),
//!     ("base_model.model.q.lora_B.weight", TensorView::from_slice(&[2, 2], &up)?),
//! ];
//! save(adapter.join("adapter_model.safetensors"), tensors, &SaveOptions::new())?;
//! let settings = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4}"#;
//! std::fs::write(adapter.join("adapter_config.json"), settings)?;
//!
//! let merged = Checkpoint::open(&base)?.merged([Adapter::open(&adapter)?])?;
//! let weight = merged.tensor("q.weight")?.read()?; // all zeros in the base
//! assert_eq!(weight.as_slice::<f32>()?, [1.0, 0.0, 2.0, 2.0, 2.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Adapters
//!
//! | file | tensors of module `X` | factor s |
//! |---|---|---|
//! | PEFT: a directory with `adapter_config.json` | `base_model.model.X.lora_A.weight` and `lora_B.weight`, or `lora_embedding_A` and `_B`; perhaps `lora_B.bias`, `lora_magnitude_vector` | α / r, or α / √r (`use_rslora`), with `rank_pattern` and `alpha_pattern` |
//! | PEFT, LoHa and LoKr | `X.hada_w1_a`, `_w1_b`, `_w2_a`, `_w2_b`; `X.lokr_w1` and `_w2`, or their factors `_a` and `_b`; perhaps `hada_t1`, `hada_t2`, `lokr_t2` | α / r |
//! | diffusers, ComfyUI: one file | `X.lora_A.weight`, `X.lora_B.weight` | as in the metadata `lora_adapter_metadata`, otherwise `X.alpha` / r, otherwise 1 |
//! | kohya, LyCORIS: one file | `lora_unet_X.lora_down.weight`, `lora_up.weight`, with `_` in `X` for `.`; also `lora_te_`, `lycoris_` and so on; perhaps `lora_mid.weight`, `dora_scale`; names of LoHa and LoKr | `X.alpha` / r, otherwise 1 |
//! | the same | `X.diff` and `X.diff_b`, or `X.w_norm` and `X.b_norm`: sums for the weight and the bias | 1 |
//! | mlx-lm: a directory with `adapters.safetensors` | `X.lora_a` and `X.lora_b`, transposed; for experts, stacks; perhaps `m` | `scale` |
//!
//! Other tensors of PEFT and mlx-lm replace the checkpoint's tensors with their names, such as
//! modules of `modules_to_save` and biases. A tensor of such a module that the checkpoint does not
//! have, such as a new head, is added. Any other tensor, and an unknown setting that would change
//! the result, is an error ([`ErrorKind::Adapter`]) that names it. Examples are
//! `trainable_token_indices`, OFT, VeRA and IA3.
//!
//! PEFT's `target_parameters` are stacked weights of experts, `[experts, out, in]`, or
//! `[experts, in, out]` in some models. Their shapes show which. If all are squares,
//! [`experts_input`](Adapter::experts_input) tells it, except for adapters of PEFT before 0.19.
//!
//! The name of a weight in the checkpoint is `X.weight`. Prefixes may differ as between versions of
//! transformers, such as `language_model.model` and `model.language_model`. If some names are still
//! missing, all of these must be found with one prefix more, or less. A weight that is not found is
//! an error that lists similar names. A module such as `q_proj` also changes its rows of a fused
//! `qkv_proj`, and the reverse; so do `gate_proj` and `up_proj` of `gate_up_proj`. The heads in
//! `config.json` show which rows; without it, the adapter must change queries and keys or values.
//!
//! If a file of diffusers or kohya has modules of several models, such as a UNet and a text encoder,
//! the models that do not fit this checkpoint in full are [left](Adapter::left). Where a prefix is
//! missing, the checkpoint is a whole pipeline and must have all. No two modules of an adapter may
//! change the same rows.
//!
//! [`Checkpoint::adapter_as`] converts an adapter to the format of another trainer.
//!
//! # Computation
//!
//! With A (`lora_A`, `lora_down`), B (`lora_B`, `lora_up`) and the factor s, a linear weight W
//! becomes W + s·B·A, and a convolution likewise. An embedding, and a weight that is stored
//! transposed (GPT-2's `Conv1D`), becomes W + s·(B·A)ᵀ. LoHa adds s times the products of the
//! elements of two such products, LoKr s times a Kronecker product. DoRA multiplies each output of
//! the sum by m / ‖·‖, the magnitude divided by the norm of the sum; a `dora_scale` of LyCORIS may
//! do this for each input. Several adapters are added in their order.
//!
//! Shapes show whether a weight is stored transposed. PEFT knows it from the class of the layer and
//! ignores `fan_in_fan_out`, which may be wrong. A square weight without a bias is not transposed,
//! because each `Conv1D` has a bias. With a bias, it is like the layers with biases next to it. If
//! they do not show it, the adapter is refused.
//!
//! The operations have the order of PEFT on a CPU, with all tensors as F32: the product is rounded
//! to F32, then s times it, then the sum, and at the end the sum once to the dtype of the result.
//! Within a product, F64 adds the terms, so that the result is the same on every machine, and
//! within the error of PEFT's F32 product. It has the same bits where sums are exact, for example
//! with a rank of 1.
//!
//! In addition to the result, memory holds the matrices of two weights for each core; differences
//! are read part by part. A weight with DoRA is read twice, because its norms need all of it.

mod config;
mod converted;
mod experts;
mod fit;
mod kinds;
mod matrix;
mod merged;
mod names;
mod numbers;
mod parts;
mod plan;
mod product;
mod source;
mod transposed;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use config::Config;
pub use converted::{AdapterFormat, ConvertedAdapter};
use merged::is_possible;
use parts::Parts;
use plan::{LoraPlan, POSSIBLE};
use source::{Source, mismatch};

use crate::checkpoint::{Checkpoint, Computed, NewTensor, Replacement};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::{Error, Result};
use crate::weights::MOST_SETTINGS;

/// The file of an adapter in a directory that PEFT saved.
const PEFT_FILE: &str = "adapter_model.safetensors";

/// The file of an adapter in a directory of mlx-lm.
const MLX_FILE: &str = "adapters.safetensors";

/// A LoRA adapter: see [the module](crate::lora). Its header and settings are read when it is
/// opened, its matrices when a weight is.
#[derive(Clone, Debug)]
pub struct Adapter {
    source: Arc<Source>,
    parts: Arc<Parts>,
    scale: f64,
    experts_input: Option<ExpertsInput>,
    pads_vocabulary: bool,
}

/// The dimension of a stacked weight of experts that `lora_A` multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsInput {
    /// `[experts, in, out]`: of gpt-oss and Aria, and by any PEFT before 0.19.
    Middle,
    /// `[experts, out, in]`.
    Last,
}

impl Adapter {
    /// Opens a directory that PEFT saved, or a file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] if the files do not form a LoRA adapter that can be merged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let files = [PEFT_FILE, MLX_FILE].map(|name| path.join(name));
        let file = files.iter().find(|file| file.is_file());
        Self::new(Checkpoint::open(file.map_or(path, |file| file))?)
    }

    /// Makes the adapter from an open checkpoint, from any [store](crate::checkpoint::store).
    /// `adapter_config.json` is read next to it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] if the tensors or settings do not form a LoRA adapter that can be
    /// merged; any error of reading.
    pub fn new<S: ReadAt + 'static>(checkpoint: Checkpoint<S>) -> Result<Self> {
        let source = checkpoint.into_boxed();
        let config = match source.read_beside("adapter_config.json", MOST_SETTINGS)? {
            Some((path, json)) => Some(Config::parse(&json).map_err(|error| error.in_path(&path))?),
            None => None,
        };
        let parts = Parts::read(&source, config.as_ref());
        let parts = parts.map_err(|error| source.in_first_path(error))?;
        Ok(Self {
            source: Arc::new(source),
            parts: Arc::new(parts),
            scale: 1.0,
            experts_input: None,
            pads_vocabulary: false,
        })
    }

    /// Multiplies all products of the adapter by a number: 1, the default, merges it as it was
    /// trained. Tensors that replace others are not multiplied. An adapter with a `dora_scale` of
    /// LyCORIS allows only 1.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the dimension of stacked weights of experts that `lora_A` multiplies. It is asked for
    /// where the two dimensions of all of them are equal, and PEFT's version leaves it open.
    #[must_use]
    pub fn experts_input(mut self, input: ExpertsInput) -> Self {
        self.experts_input = Some(input);
        self
    }

    /// Adds the rows of a vocabulary that the checkpoint lacks, if the adapter was trained with
    /// more: at most the number of elements that it stores for them. The rows are zeros before the adapter
    /// changes or replaces them. By default, such an adapter is an error.
    #[must_use]
    pub fn pad_vocab(mut self, pads: bool) -> Self {
        self.pads_vocabulary = pads;
        self
    }

    /// Returns the modules that a merge into this checkpoint leaves, since they belong to another
    /// model of the pipeline, such as the text encoder of a UNet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] if the other modules do not fit the checkpoint.
    pub fn left<S: ReadAt>(&self, base: &Checkpoint<S>) -> Result<Vec<&str>> {
        let quantized = base.quantized_weights()?;
        LoraPlan::new(base, &quantized).add(self)
    }

    /// Returns the names of the modules with changed weights, as they are in the adapter, without
    /// the prefix of a library.
    pub fn modules(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.modules.iter().map(|module| &*module.name)
    }
}

impl<S: ReadAt + 'static> Checkpoint<S> {
    /// Merges LoRA adapters into the weights, see [the module](crate::lora). A merged tensor has
    /// the dtype that it has in this checkpoint. So far only descriptions of quantised weights are
    /// read.
    ///
    /// A quantised weight is refused: call [`dequantized`](Checkpoint::dequantized) before. A
    /// weight with several [names](Checkpoint::aliases) changes under all of them. A complete
    /// tensor of an adapter replaces one name, as in PEFT: the others become separate tensors.
    ///
    /// A sum that is too large for its dtype becomes infinity or NaN, as in
    /// [`Overflow::Ieee`](crate::convert::Overflow::Ieee). For another policy, ask for F32 with
    /// [`merged_as`](Checkpoint::merged_as), and convert that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] for a module that does not fit the checkpoint; otherwise as for
    /// [`quantized_weights`](Checkpoint::quantized_weights).
    pub fn merged(
        self,
        adapters: impl IntoIterator<Item = Adapter>,
    ) -> Result<Checkpoint<Computed<S>>> {
        self.merged_as(adapters, |_, dtype| dtype)
    }

    /// Like [`merged`](Checkpoint::merged), with other dtypes: `dtype` gets the name and the dtype
    /// of a merged tensor in this checkpoint, and returns the dtype of the sum, which is rounded
    /// once. F32 is not rounded at all.
    pub fn merged_as(
        self,
        adapters: impl IntoIterator<Item = Adapter>,
        mut dtype: impl FnMut(&str, Dtype) -> Dtype,
    ) -> Result<Checkpoint<Computed<S>>> {
        let quantized = self.quantized_weights()?;
        let mut plan = LoraPlan::new(&self, &quantized);
        let mut others = Vec::new();
        for adapter in adapters {
            plan.add(&adapter)?;
            others.push(adapter.source);
        }
        let mut tensors = plan.tensors;
        for tensor in &mut tensors {
            tensor.dtype = dtype(&tensor.name, tensor.dtype);
            if !is_possible(tensor.dtype) {
                let problem = mismatch(POSSIBLE, tensor.dtype.to_string());
                return Err(Error::from(problem).in_tensor(&tensor.name));
            }
        }
        let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let (old, added): (Vec<_>, Vec<_>) = (0..names.len()).partition(|&number| {
            let name = &names[number];
            self.get(name).is_some_and(|tensor| tensor.name() == name)
        });
        let new: HashSet<_> = added.iter().map(|&number| &*names[number]).collect();
        self.computed(Replacement {
            tensors: tensors.into_iter().map(NewTensor::numbers).collect(),
            instead: old.into_iter().map(|number| (&*names[number], vec![number])).collect(),
            added,
            others,
            // A name with its own tensor is not an alias.
            metadata: &|metadata| {
                let mut kept = metadata.clone();
                kept.retain(|key, _| !new.contains(&**key));
                kept
            },
        })
    }
}
