//! LoRA adapters: small matrices whose products are added to the weights of a checkpoint.
//!
//! [`Checkpoint::merged`] makes a checkpoint with the sums in place of the weights. They are
//! computed when they are read, so every way to read a checkpoint reads them: whole, by slice, by
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
//! # Which adapters
//!
//! | file | tensors of module `X` | factor of the product |
//! |---|---|---|
//! | PEFT: a directory with `adapter_config.json` | `base_model.model.X.lora_A.weight` and `lora_B.weight`, or `lora_embedding_A` and `_B`; perhaps `lora_B.bias`, `lora_magnitude_vector` | α / r, or α / √r (`use_rslora`), with `rank_pattern` and `alpha_pattern` |
//! | diffusers, ComfyUI: one file | `X.lora_A.weight`, `X.lora_B.weight` | as in the metadata `lora_adapter_metadata`, or else `X.alpha` / r, or else 1 |
//! | kohya: one file | `lora_unet_X.lora_down.weight`, `lora_up.weight`, with `_` in `X` for `.`; also `lora_te_`, `lora_te1_` and so on | `X.alpha` / r, or else 1 |
//!
//! Other tensors of PEFT replace those of the checkpoint that have their names, such as modules of
//! `modules_to_save` and biases. What is not in this table, and a setting that would change the
//! result in a way that is not known here, is an error ([`ErrorKind::Adapter`]).
//!
//! The name of a weight in the checkpoint is `X.weight`. If some of these names are not there, all
//! that are missing must be found with one prefix more, or less, such as `model.`. A weight that is
//! not found is an error that has similar names.
//!
//! # What is computed
//!
//! With A (`lora_A`, `lora_down`), B (`lora_B`, `lora_up`) and the factor s, a linear weight W
//! becomes W + s·B·A, and a convolution likewise. An embedding, and a weight that lies transposed
//! (`fan_in_fan_out`), becomes W + s·(B·A)ᵀ. DoRA multiplies each output of that sum by m / ‖·‖, the
//! magnitude divided by the norm of W + s·B·A. Several adapters are added in their order.
//!
//! The order of the operations is that of PEFT on a CPU, with all tensors as F32: the product is
//! rounded to F32, then s times it, then the sum, and at the end the sum once to the dtype of the
//! result. Within a product, F64 adds the terms, so that the result is the same on every machine,
//! and within the error of an F32 product of PEFT's. It has the same bits where sums are exact, for
//! example with a rank of 1.
//!
//! Memory holds the matrices of a few modules besides what is read. A weight with DoRA is read
//! twice, because its norms need all of it.

mod config;
mod fit;
mod merged;
mod parts;
mod product;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use config::Config;
use fit::{Names, Wanted};
use merged::{Delta, Merged, Product, Recent, Stored, is_possible};
use parts::{Module, Parts, Source, located};

use crate::checkpoint::{Checkpoint, Computed, ComputedTensor, Replacement};
use crate::dtype::Dtype;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{AdapterProblem, Result, Shape};
use crate::io::ReadAt;
use crate::load::LazyTensor;
use crate::quantized::QuantizedWeight;

/// The largest settings that are read. Real ones have a few KiB.
const MOST: u64 = 16 << 20;

/// The file of an adapter in a directory that PEFT saved.
const PEFT_FILE: &str = "adapter_model.safetensors";

/// A LoRA adapter: see [the module](crate::lora). Its header and settings are read when it is
/// opened, its matrices when a weight is.
#[derive(Clone, Debug)]
pub struct Adapter {
    source: Arc<Source>,
    parts: Arc<Parts>,
    scale: f64,
}

impl Adapter {
    /// Opens a directory that PEFT saved, or a file.
    ///
    /// # Errors
    ///
    /// The errors of [`Checkpoint::open`] and [`Adapter::of`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = path.join(PEFT_FILE);
        Self::of(Checkpoint::open(if file.is_file() { &file } else { path })?)
    }

    /// The adapter in a checkpoint that is open, from whatever [store](crate::checkpoint::store).
    /// `adapter_config.json` is read beside it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] if the tensors or settings are not those of a LoRA adapter that can be
    /// merged; the errors of reading.
    pub fn of<S: ReadAt + 'static>(checkpoint: Checkpoint<S>) -> Result<Self> {
        let source = checkpoint.into_boxed();
        let config = match source.read_beside("adapter_config.json", MOST)? {
            Some((path, json)) => Some(Config::parse(&json).map_err(|error| error.in_path(&path))?),
            None => None,
        };
        let parts = Parts::of(&source, config.as_ref());
        let parts = parts.map_err(|error| source.in_first_path(error))?;
        Ok(Self { source: Arc::new(source), parts: Arc::new(parts), scale: 1.0 })
    }

    /// Multiplies all products of the adapter by a number: 1, the default, merges it as it was
    /// trained. Tensors that replace others are not multiplied.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// The names of the modules whose weights change, as they are in the adapter, without a
    /// prefix that says for which library they are.
    pub fn modules(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.modules.iter().map(|module| &*module.name)
    }
}

impl<S: ReadAt + 'static> Checkpoint<S> {
    /// The same checkpoint with LoRA adapters merged into its weights, as [the
    /// module](crate::lora) says. A merged tensor has the dtype that it has in this checkpoint.
    /// Nothing is read yet but what describes quantised weights.
    ///
    /// A quantised weight is refused: call [`dequantized`](Checkpoint::dequantized) before. A
    /// weight with several [names](Checkpoint::aliases) changes under all of them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Adapter`] for a module that does not fit the checkpoint; the errors of
    /// [`quantized_weights`](Checkpoint::quantized_weights).
    pub fn merged(
        self,
        adapters: impl IntoIterator<Item = Adapter>,
    ) -> Result<Checkpoint<Computed<S>>> {
        self.merged_as(adapters, |_, dtype| dtype)
    }

    /// [`merged`](Checkpoint::merged) with other dtypes: `dtype` gets the name and the dtype that
    /// a merged tensor has in this checkpoint, and returns that of the sum, which is rounded once.
    /// F32 is not rounded at all.
    ///
    /// # Errors
    ///
    /// The errors of [`merged`](Checkpoint::merged).
    pub fn merged_as(
        self,
        adapters: impl IntoIterator<Item = Adapter>,
        mut dtype: impl FnMut(&str, Dtype) -> Dtype,
    ) -> Result<Checkpoint<Computed<S>>> {
        let quantized = self.quantized_weights()?;
        let mut merge = Merge {
            names: Names::of(&self, quantized.iter().map(|weight| &*weight.name)),
            base: &self,
            quantized: &quantized,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            recent: Arc::default(),
        };
        let mut others = Vec::new();
        for adapter in adapters {
            merge.add(&adapter)?;
            others.push(adapter.source);
        }
        let mut tensors = merge.tensors;
        for tensor in &mut tensors {
            tensor.dtype = dtype(&tensor.name, tensor.dtype);
            if !is_possible(tensor.dtype) {
                let problem = mismatch(POSSIBLE, tensor.dtype.to_string());
                return Err(crate::error::Error::from(problem).in_tensor(&tensor.name));
            }
        }
        let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let instead = names.iter().enumerate().map(|(number, name)| (&**name, Some(number)));
        self.computed(Replacement {
            tensors: tensors
                .into_iter()
                .map(|it| Box::new(it) as Box<dyn ComputedTensor>)
                .collect(),
            instead: instead.collect(),
            others,
            metadata: &Clone::clone,
        })
    }
}

/// The dtypes of weights that can be merged.
const POSSIBLE: &str = "dtype F32, BF16, F16 or a float of 8 bits";

fn mismatch(expected: impl Into<String>, found: impl Into<String>) -> AdapterProblem {
    AdapterProblem::Mismatch { expected: expected.into(), found: found.into() }
}

/// What the adapters so far make of a checkpoint.
struct Merge<'a, S> {
    base: &'a Checkpoint<S>,
    names: Names<'a>,
    quantized: &'a [QuantizedWeight],
    tensors: Vec<Merged>,
    /// The numbers of the merged tensors by their names in the checkpoint.
    by_name: HashMap<&'a str, usize>,
    recent: Arc<Recent>,
}

impl<'a, S: ReadAt> Merge<'a, S> {
    fn add(&mut self, adapter: &Adapter) -> Result<()> {
        let Adapter { source, parts, scale } = adapter;
        if !scale.is_finite() {
            return Err(config::wrong(format_args!("scale {scale} is not finite")));
        }
        let mut wanted = Vec::new();
        let mut tensors = Vec::new();
        let mut want = |name: String, position, module: Option<&Module>| {
            let is_flattened = module.is_some_and(|module| module.is_flattened);
            let group = module.map(|module| module.group.clone()).unwrap_or_default();
            wanted.push(Wanted { name, is_flattened, group });
            tensors.push(source.tensor_at(position));
        };
        for (position, name) in &parts.whole {
            want(name.clone(), *position, None);
        }
        for module in &parts.modules {
            let dot = if module.is_flattened { '_' } else { '.' };
            want(format!("{}{dot}weight", module.name), module.up, Some(module));
            if let Some(bias) = module.up_bias {
                want(format!("{}{dot}bias", module.name), bias, Some(module));
            }
        }
        let found = self.names.find(&wanted).map_err(|(number, error)| match tensors[number] {
            Some(tensor) => tensor.locate(error),
            None => error,
        })?;
        let mut found = found.into_iter().zip(tensors.into_iter().flatten());
        for (position, _) in &parts.whole {
            let Some((name, tensor)) = found.next() else { break };
            self.replace(source, *position, name, &tensor)?;
        }
        for module in &parts.modules {
            let scaling = (scale * module.scaling) as f32;
            let Some((name, up)) = found.next() else { break };
            let number = self.target(name, &up)?;
            let product = self.product(source, module, number, &up)?;
            let recent = &self.recent;
            let delta = Delta::new(source, product, scaling, module.magnitude, recent);
            self.tensors[number].deltas.push(delta);
            let Some(bias) = module.up_bias else { continue };
            let Some((name, tensor)) = found.next() else { break };
            let number = self.target(name, &tensor)?;
            check_shape(&tensor, &self.tensors[number])?;
            let delta = Delta::new(source, Product::Vector(bias), scaling, None, &self.recent);
            self.tensors[number].deltas.push(delta);
        }
        Ok(())
    }

    /// The number of the merged tensor for this name of the checkpoint, which a tensor of an
    /// adapter changes.
    fn target<T>(&mut self, name: &str, from: &LazyTensor<'_, T>) -> Result<usize> {
        let is_of = |weight: &&QuantizedWeight| {
            weight.name == name || weight.tensors.iter().any(|tensor| tensor == name)
        };
        let quantized = self.quantized.iter().find(is_of);
        let (None, Some(tensor)) = (quantized, self.base.get(name)) else {
            let scheme = quantized.map_or("", |weight| weight.scheme);
            let found = format!("{name:?} of the checkpoint, quantised as {scheme}");
            return Err(located(from, mismatch("a weight of numbers; dequantise it first", found)));
        };
        if let Some(&number) = self.by_name.get(tensor.name()) {
            return Ok(number);
        }
        if !is_possible(tensor.dtype()) {
            let found = format!("{} of {name:?} of the checkpoint", tensor.dtype());
            return Err(located(from, mismatch(POSSIBLE, found)));
        }
        self.by_name.insert(tensor.name(), self.tensors.len());
        self.tensors.push(Merged {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            base: Stored {
                file: tensor.file_index(),
                offset: tensor.file_offset(),
                dtype: tensor.dtype(),
            },
            replaced: None,
            deltas: Vec::new(),
        });
        Ok(self.tensors.len() - 1)
    }

    /// Puts a tensor of an adapter in place of the checkpoint's.
    fn replace<T>(
        &mut self,
        source: &Arc<Source>,
        position: usize,
        name: &str,
        tensor: &LazyTensor<'_, T>,
    ) -> Result<()> {
        let number = self.target(name, tensor)?;
        let merged = &mut self.tensors[number];
        check_shape(tensor, merged)?;
        if !is_possible(tensor.dtype()) {
            return Err(located(tensor, mismatch(POSSIBLE, tensor.dtype().to_string())));
        }
        if merged.replaced.is_some() || !merged.deltas.is_empty() {
            let found = format!("{name:?}, which another tensor of the adapters changes, too");
            return Err(located(tensor, AdapterProblem::Unsupported { found }));
        }
        merged.replaced = Some((Arc::clone(source), position));
        Ok(())
    }

    /// How the product of a module fits its weight.
    fn product<T>(
        &self,
        source: &Arc<Source>,
        module: &Module,
        number: usize,
        up: &LazyTensor<'_, T>,
    ) -> Result<Product> {
        let merged = &self.tensors[number];
        let down = source.tensor_at(module.down).map(|down| down.shape()).unwrap_or_default();
        let (outputs, inputs) = (up.shape()[0], &down[1..]);
        let [first, rest @ ..] = &merged.shape[..] else {
            let expected = "a weight with dimensions".to_owned();
            return Err(located(up, mismatch(expected, format!("{:?}, a scalar", merged.name))));
        };
        let is_plain = *first == outputs && rest == inputs;
        let is_crossed = inputs == [*first] && rest == [outputs];
        let is_transposed = match module.is_transposed {
            _ if module.is_embedding => is_crossed,
            // A square weight does not tell.
            Some(is_transposed) if is_plain => is_transposed && is_crossed,
            Some(_) => is_crossed,
            None => false,
        };
        if !is_transposed && (module.is_embedding || !is_plain) {
            let expected = format!("a product of shape {}", Shape(&merged.shape));
            let shape = [&[outputs], inputs].concat();
            let found = format!("{} for {:?} of the checkpoint", Shape(&shape), merged.name);
            return Err(located(up, mismatch(expected, found)));
        }
        if let Some(magnitude) = module.magnitude.and_then(|it| source.tensor_at(it)) {
            let is_vector = magnitude.shape().iter().all(|&dim| dim == 1 || dim == outputs);
            if !is_vector || magnitude.element_count() != outputs as u64 {
                let found = format!("shape {}", Shape(magnitude.shape()));
                return Err(located(&magnitude, mismatch(format!("{outputs} numbers"), found)));
            }
        }
        Ok(Product::Matrices { up: module.up, down: module.down, is_transposed })
    }
}

/// Checks that a tensor of an adapter has the shape of the one that it changes.
fn check_shape<S>(tensor: &LazyTensor<'_, S>, merged: &Merged) -> Result<()> {
    if tensor.shape() == merged.shape {
        return Ok(());
    }
    let expected = format!("shape {} of {:?}", Shape(&merged.shape), merged.name);
    Err(located(tensor, mismatch(expected, format!("shape {}", Shape(tensor.shape())))))
}
