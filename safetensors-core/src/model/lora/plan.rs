//! [`Plan`]: finds the tensors of a checkpoint that adapters change, and refuses adapters.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::Adapter;
use super::config::wrong;
use super::fit::Names;
use super::merged::{Delta, Merged, Product, Recent, Stored, is_possible};
use super::parts::{Module, Source, located, mismatch};
use super::transposed::Layers;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::error::{AdapterProblem, Error, Result, Shape};
use crate::model::quantized::QuantizedWeight;

/// The dtypes of weights that can be merged.
pub(super) const POSSIBLE: &str = "dtype F32, BF16, F16 or a float of 8 bits";

/// The changes of a checkpoint by the adapters so far.
pub(super) struct Plan<'a, S> {
    base: &'a Checkpoint<S>,
    names: Names<'a>,
    quantized: &'a [QuantizedWeight],
    tensors: Vec<Merged>,
    /// The numbers of the merged tensors by their names in the checkpoint.
    by_name: HashMap<&'a str, usize>,
    recent: Arc<Recent>,
    layers: OnceCell<Layers<'a>>,
}

impl<'a, S: ReadAt> Plan<'a, S> {
    pub(super) fn new(base: &'a Checkpoint<S>, quantized: &'a [QuantizedWeight]) -> Self {
        Self {
            base,
            names: Names::of(base, quantized.iter().map(|weight| &*weight.name)),
            quantized,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            recent: Arc::default(),
            layers: OnceCell::new(),
        }
    }

    /// Returns the tensors that change.
    pub(super) fn into_tensors(self) -> Vec<Merged> {
        self.tensors
    }

    /// Adds the changes of an adapter.
    pub(super) fn add(&mut self, adapter: &Adapter) -> Result<()> {
        let Adapter { source, parts, scale } = adapter;
        if !scale.is_finite() {
            return Err(wrong(format_args!("scale {scale} is not finite")));
        }
        let of_modules = parts.modules.iter().flat_map(Module::wanted);
        let wanted: Vec<_> = parts.whole.iter().cloned().chain(of_modules).collect();
        let found = self.names.find(&wanted).map_err(|(number, error)| {
            match source.tensor_at(wanted[number].position) {
                Some(tensor) => tensor.locate(error),
                None => error,
            }
        })?;
        let tensors = wanted.iter().filter_map(|wanted| source.tensor_at(wanted.position));
        let mut found = found.into_iter().zip(tensors);
        for (wanted, (found, tensor)) in parts.whole.iter().zip(found.by_ref()) {
            let number = match found {
                Some(name) => {
                    self.untie(name, &tensor)?;
                    self.target(name, &tensor)?
                }
                None => self.added(&wanted.name, &tensor),
            };
            self.replace(source, wanted.position, number, &tensor)?;
        }
        let mut found = found.filter_map(|(name, tensor)| Some((name?, tensor)));
        for module in &parts.modules {
            let scaling = (scale * module.scaling) as f32;
            let Some((name, up)) = found.next() else { break };
            let number = self.target(name, &up)?;
            let product = self.product(source, module, number, &up)?;
            self.tensors[number].deltas.push(Delta::new(
                source,
                product,
                scaling,
                module.magnitude,
                &self.recent,
            ));
            let Some(bias) = module.up_bias else { continue };
            let Some((name, tensor)) = found.next() else { break };
            let number = self.target(name, &tensor)?;
            check_shape(&tensor, &self.tensors[number])?;
            let delta = Delta::new(source, Product::Vector(bias), scaling, None, &self.recent);
            self.tensors[number].deltas.push(delta);
        }
        Ok(())
    }

    /// Returns the tensor of this name of the checkpoint, if it can be merged.
    fn numbers<T>(&self, name: &str, from: &LazyTensor<'_, T>) -> Result<LazyTensor<'a, S>> {
        let is_of = |weight: &&QuantizedWeight| {
            weight.name == name || weight.tensors.iter().any(|tensor| tensor == name)
        };
        let quantized = self.quantized.iter().find(is_of);
        let (None, Some(tensor)) = (quantized, self.base.get(name)) else {
            let scheme = quantized.map_or("", |weight| weight.scheme);
            let found = format!("{name:?} of the checkpoint, quantised as {scheme}");
            return Err(located(from, mismatch("a weight of numbers; dequantise it first", found)));
        };
        if !is_possible(tensor.dtype()) {
            let found = format!("{} of {name:?} of the checkpoint", tensor.dtype());
            return Err(located(from, mismatch(POSSIBLE, found)));
        }
        Ok(tensor)
    }

    /// Returns the number of the merged tensor for this name of the checkpoint, which a tensor of
    /// an adapter changes.
    fn target<T>(&mut self, name: &str, from: &LazyTensor<'_, T>) -> Result<usize> {
        let tensor = self.numbers(name, from)?;
        let known = self.by_name.get(name).or_else(|| self.by_name.get(tensor.name()));
        Ok(known.copied().unwrap_or_else(|| self.changed(tensor.name(), &tensor)))
    }

    /// Adds a tensor of the checkpoint, under one of its names.
    fn changed(&mut self, name: &'a str, tensor: &LazyTensor<'a, S>) -> usize {
        self.by_name.insert(name, self.tensors.len());
        self.tensors.push(Merged::new(name, tensor, Some(Stored::from(tensor))));
        self.tensors.len() - 1
    }

    /// Makes a separate tensor of each further name of a tied weight: the copy of a module that was
    /// trained completely replaces one name.
    fn untie<T>(&mut self, name: &str, from: &LazyTensor<'_, T>) -> Result<()> {
        let tensor = self.numbers(name, from)?;
        let aliases = self.base.aliases().filter(|(_, it)| it.name() == tensor.name());
        for (alias, tensor) in aliases {
            if self.by_name.contains_key(alias) {
                break;
            }
            if self.by_name.contains_key(tensor.name()) {
                return Err(changed_twice(from, name));
            }
            self.changed(alias, &tensor);
        }
        Ok(())
    }

    /// Returns the number of a tensor that the checkpoint does not have.
    fn added<T>(&mut self, name: &str, from: &LazyTensor<'_, T>) -> usize {
        let is_it = |merged: &Merged| merged.base.is_none() && merged.name == name;
        self.tensors.iter().position(is_it).unwrap_or_else(|| {
            self.tensors.push(Merged::new(name, from, None));
            self.tensors.len() - 1
        })
    }

    /// Replaces the checkpoint's tensor by an adapter's.
    fn replace<T: ReadAt>(
        &mut self,
        source: &Arc<Source>,
        position: usize,
        number: usize,
        tensor: &LazyTensor<'_, T>,
    ) -> Result<()> {
        let merged = &mut self.tensors[number];
        check_shape(tensor, merged)?;
        if !is_possible(tensor.dtype()) {
            return Err(located(tensor, mismatch(POSSIBLE, tensor.dtype().to_string())));
        }
        tensor.refuse_codes()?;
        if merged.replaced.is_some() || !merged.deltas.is_empty() {
            return Err(changed_twice(tensor, &merged.name));
        }
        merged.replaced = Some((Arc::clone(source), position));
        Ok(())
    }

    /// Returns how the product of a module fits its weight.
    fn product<T>(
        &self,
        source: &Arc<Source>,
        module: &Module,
        number: usize,
        up: &LazyTensor<'_, T>,
    ) -> Result<Product> {
        let merged = &self.tensors[number];
        let down = source.tensor_at(module.down).map(|down| down.shape()).unwrap_or_default();
        let outputs = up.shape()[0];
        let inputs = &down[1..];
        let [first, rest @ ..] = &merged.shape[..] else {
            let expected = "a weight with dimensions".to_owned();
            return Err(located(up, mismatch(expected, format!("{:?}, a scalar", merged.name))));
        };
        let is_plain = *first == outputs && rest == inputs;
        let is_crossed = inputs == [*first] && rest == [outputs];
        let is_transposed = match module.is_transposed {
            _ if module.is_embedding => is_crossed,
            Some(setting) if is_plain && is_crossed => {
                self.is_transposed(&merged.name, setting).ok_or_else(|| {
                    let class = if setting { "a linear layer" } else { "a Conv1D" };
                    let found = format!(
                        "{:?} of the checkpoint, a square; if it is {class}, set fan_in_fan_out to \
                         {} in adapter_config.json",
                        merged.name, !setting
                    );
                    located(up, mismatch("a layer that shows whether it is transposed", found))
                })?
            }
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

    /// Returns `true` if a square weight is stored transposed. `None` if it is not known.
    fn is_transposed(&self, name: &str, setting: bool) -> Option<bool> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        if self.base.get(&format!("{layer}.bias")).is_none() {
            // Every `Conv1D` has a bias.
            return Some(false);
        }
        self.layers.get_or_init(|| Layers::new(self.base)).is_transposed(layer, setting)
    }
}

fn changed_twice<S>(tensor: &LazyTensor<'_, S>, name: &str) -> Error {
    let found = format!("{name:?}, which another tensor of the adapters changes, too");
    located(tensor, AdapterProblem::Unsupported { found })
}

/// Checks that a tensor of an adapter has the shape of the one that it changes.
fn check_shape<S>(tensor: &LazyTensor<'_, S>, merged: &Merged) -> Result<()> {
    if tensor.shape() == merged.shape {
        return Ok(());
    }
    let expected = format!("shape {} of {:?}", Shape(&merged.shape), merged.name);
    Err(located(tensor, mismatch(expected, format!("shape {}", Shape(tensor.shape())))))
}
