//! [`Plan`]: finds the tensors of a checkpoint that adapters change, and refuses adapters.

use std::collections::HashMap;
use std::sync::Arc;

use super::Adapter;
use super::config::wrong;
use super::fit::{Found, Names, Spelling};
use super::merged::{Delta, Kept, Merged, Recent, Stored, is_possible};
use super::parts::{Change, Module};
use super::place::{Fit, Met};
use super::source::{located, mismatch};
use super::transposed::Base;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::error::{AdapterProblem, Error, Result, Shape};
use crate::model::quantized::QuantizedWeight;

/// The dtypes of weights that can be merged.
pub(super) const POSSIBLE: &str = "dtype F32, BF16, F16 or a float of 8 bits";

/// The changes of a checkpoint by the adapters so far.
pub(super) struct Plan<'a, S> {
    base: Arc<Base<'a, S>>,
    names: Names<'a>,
    quantized: &'a [QuantizedWeight],
    tensors: Vec<Merged>,
    /// The numbers of the merged tensors by their names in the checkpoint.
    by_name: HashMap<&'a str, usize>,
    recent: Arc<Recent>,
}

impl<'a, S: ReadAt> Plan<'a, S> {
    pub(super) fn new(base: &'a Checkpoint<S>, quantized: &'a [QuantizedWeight]) -> Self {
        Self {
            base: Arc::new(Base::new(base)),
            names: Names::new(base, quantized.iter().map(|weight| &*weight.name)),
            quantized,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            recent: Arc::default(),
        }
    }

    /// Returns the tensors that change.
    pub(super) fn into_tensors(self) -> Vec<Merged> {
        self.tensors
    }

    /// Adds the changes of an adapter.
    pub(super) fn add(&mut self, adapter: &Adapter) -> Result<()> {
        let Adapter { source, parts, scale, .. } = adapter;
        if !scale.is_finite() {
            return Err(wrong(format_args!("scale {scale} is not finite")));
        }
        let mut found = parts.find(source, &self.names)?.into_iter();
        for (wanted, found) in parts.whole.iter().zip(found.by_ref()) {
            let Some(tensor) = source.tensor_at(wanted.position) else { continue };
            let number = match found {
                Found::At(names, _) => {
                    self.untie(names[0], &tensor)?;
                    self.target(names[0], &tensor)?
                }
                _ => self.added(&wanted.name, &tensor),
            };
            self.replace(adapter, wanted.position, number, &tensor)?;
        }
        let changes = parts.modules.iter().flat_map(Module::changes);
        let all: Vec<Met<'_>> = changes.zip(found).collect();
        let base = Arc::clone(&self.base);
        let mut fit = Fit::new(adapter, &base, &all);
        for (change, found) in &all {
            self.change(&mut fit, *change, found)?;
        }
        Ok(())
    }

    /// Adds a change of a module to the tensors that it means.
    fn change(
        &mut self,
        fit: &mut Fit<'_, 'a, S>,
        change: (&Module, &Change),
        found: &Found<'_>,
    ) -> Result<()> {
        // `Left` belongs to another model.
        let Found::At(names, spelling) = found else { return Ok(()) };
        let Some(tensor) = fit.adapter.source.tensor_at(change.1.position) else { return Ok(()) };
        let mut first = 0;
        for (number, name) in names.iter().enumerate() {
            let is_last = number + 1 == names.len();
            let number = self.target(name, &tensor)?;
            let merged = &mut self.tensors[number];
            let mut matrix = change.1.matrix.clone();
            let place = match *spelling {
                Spelling::Fused(part, parts) => fit.in_fused(change, (part, parts), merged)?,
                Spelling::Parts => fit.in_part(change, (first, is_last), merged)?,
                Spelling::Same => fit.whole(change, &mut matrix, merged)?,
            };
            first += place.rows.len();
            if !fit.claim(name, &place.rows) {
                return Err(changed_twice(&tensor, name));
            }
            let scaling = (fit.adapter.scale * change.1.scaling) as f32;
            if !scaling.is_finite() {
                let found = format!("{} times scale {}", change.1.scaling, fit.adapter.scale);
                return Err(located(&tensor, mismatch("a finite factor", found)));
            }
            let magnitude = fit.magnitude(change, &place, merged)?;
            merged.deltas.push(Delta {
                adapter: Arc::clone(&fit.adapter.source),
                matrix,
                place,
                scaling,
                magnitude,
                recent: Arc::clone(&self.recent),
                kept: Kept::default(),
            });
        }
        Ok(())
    }

    /// Returns the tensor of this name of the checkpoint, if it can be merged.
    fn numbers<T>(&self, name: &str, from: &LazyTensor<'_, T>) -> Result<LazyTensor<'a, S>> {
        let is_of = |weight: &&QuantizedWeight| {
            weight.name == name || weight.tensors.iter().any(|tensor| tensor == name)
        };
        let quantized = self.quantized.iter().find(is_of);
        let (None, Some(tensor)) = (quantized, self.base.checkpoint.get(name)) else {
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
        let aliases = self.base.checkpoint.aliases().filter(|(_, it)| it.name() == tensor.name());
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
        adapter: &Adapter,
        position: usize,
        number: usize,
        tensor: &LazyTensor<'_, T>,
    ) -> Result<()> {
        let merged = &mut self.tensors[number];
        if let ([rows, row @ ..], [_, rest @ ..]) = (tensor.shape(), &*merged.shape)
            && row == rest
        {
            adapter.grow(*rows, merged).map_err(|problem| located(tensor, problem))?;
        }
        check_shape(tensor, merged)?;
        if !is_possible(tensor.dtype()) {
            return Err(located(tensor, mismatch(POSSIBLE, tensor.dtype().to_string())));
        }
        tensor.refuse_codes()?;
        if merged.replaced.is_some() || !merged.deltas.is_empty() {
            return Err(changed_twice(tensor, &merged.name));
        }
        merged.replaced = Some((Arc::clone(&adapter.source), position));
        Ok(())
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
