//! [`LoraPlan`]: finds the tensors of a checkpoint that adapters change, and refuses adapters.

use std::collections::HashMap;
use std::sync::Arc;

use super::Adapter;
use super::config::wrong;
use super::fit::{Fit, Met, vocabulary};
use super::matrix::len;
use super::merged::{Delta, Merged, Recent, Stored, is_possible};
use super::names::{LoraName, LoraTarget, Names};
use super::parts::Changed;
use super::source::{Source, at, located, mismatch, misshapen};
use super::transposed::Base;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::error::{AdapterProblem, Result, Shape};
use crate::model::quantized::QuantizedWeight;

/// The dtypes of weights that can be merged.
pub(super) const POSSIBLE: &str = "dtype F32, BF16, F16 or a float of 8 bits";

/// The changes of a checkpoint by the adapters so far.
pub(super) struct LoraPlan<'a, S> {
    base: Base<'a, S>,
    names: Names<'a>,
    quantized: &'a [QuantizedWeight],
    /// The tensors that change.
    pub(super) tensors: Vec<Merged>,
    /// The numbers of the merged tensors by their names in the checkpoint.
    by_name: HashMap<String, usize>,
    recent: Arc<Recent>,
}

impl<'a, S: ReadAt> LoraPlan<'a, S> {
    pub(super) fn new(base: &'a Checkpoint<S>, quantized: &'a [QuantizedWeight]) -> Self {
        Self {
            base: Base::new(base),
            names: Names::new(base, quantized),
            quantized,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            recent: Arc::default(),
        }
    }

    /// Adds the changes of an adapter. Returns the names of modules that do not fit, because they
    /// belong to another model of the pipeline.
    pub(super) fn add<'n>(&mut self, adapter: &'n Adapter) -> Result<Vec<&'n str>> {
        if !adapter.scale.is_finite() {
            return Err(wrong(format_args!("scale {} is not finite", adapter.scale)));
        }
        let source = &adapter.source;
        let (mut whole, mut deltas) = (Vec::new(), Vec::new());
        let (mut left, mut unfit, mut is_pipeline) = (Vec::new(), None, false);
        for changes in adapter.parts.groups().into_values() {
            let fitted = match adapter.parts.find(source, &self.names, &changes) {
                Ok((mut found, has_longer_names)) => {
                    is_pipeline |= has_longer_names;
                    let of_changes = found.split_off(adapter.parts.whole.len());
                    whole.extend(found);
                    let all = self.meet(source, &changes, of_changes)?;
                    let fit = Fit::new(adapter, &self.base, &all)?;
                    let delta = |met: &Met<'_, 'a>| Ok((met.weight, fit.delta(met)?));
                    all.iter().map(delta).collect::<Result<Vec<_>>>()
                }
                Err(error) => Err(error),
            };
            match (fitted, changes.first()) {
                (Ok(fitted), _) => deltas.extend(fitted),
                (Err(error), Some((module, _))) if module.may_be_left() => {
                    left.extend(changes.iter().map(|(module, _)| &*module.name));
                    unfit.get_or_insert(error);
                }
                (Err(error), _) => return Err(error),
            }
        }
        // The names of an entire pipeline are longer than those of one model.
        if let Some(error) = unfit.filter(|_| is_pipeline || deltas.is_empty()) {
            return Err(error);
        }
        for (wanted, found) in adapter.parts.whole.iter().zip(whole) {
            self.replace(adapter, wanted, found)?;
        }
        check_rows(&mut deltas)?;
        for (name, delta) in deltas {
            let Some(number) = self.target(name) else { continue };
            let merged = &mut self.tensors[number];
            // A vocabulary may be longer.
            let row = len(&merged.shape[1..]).max(1);
            merged.shape[0] = merged.shape[0].max(delta.place.rows.end * delta.place.columns / row);
            merged.deltas.push(delta);
        }
        left.dedup();
        Ok(left)
    }

    /// Returns each change with each weight that it means.
    fn meet<'n>(
        &self,
        source: &Source,
        changes: &[Changed<'n>],
        found: Vec<Option<LoraTarget<'a>>>,
    ) -> Result<Vec<Met<'n, 'a>>> {
        let mut all = Vec::new();
        for (&(module, change), found) in changes.iter().zip(found) {
            let Some(LoraTarget { names, spelling }) = found else { continue };
            let mut first = 0;
            for (number, weight) in names.iter().enumerate() {
                let shape = self.numbers(weight, source, change.position())?.shape();
                let rows = shape.first().copied().unwrap_or_default();
                let is_last = number + 1 == names.len();
                all.push(Met { module, change, weight, shape, rows, spelling, first, is_last });
                first = first.saturating_add(rows);
            }
        }
        Ok(all)
    }

    /// Returns the tensor of this name of the checkpoint, if a tensor of an adapter can change it.
    fn numbers(&self, name: &str, adapter: &Source, position: usize) -> Result<LazyTensor<'a, S>> {
        let is_of = |weight: &&QuantizedWeight| {
            weight.name == name || weight.tensors.iter().any(|tensor| tensor == name)
        };
        let quantized = self.quantized.iter().find(is_of);
        let problem = match (quantized, self.base.checkpoint.get(name)) {
            (None, Some(tensor)) if is_possible(tensor.dtype()) => return Ok(tensor),
            (None, Some(tensor)) => {
                mismatch(POSSIBLE, format!("{} of {name:?} of the checkpoint", tensor.dtype()))
            }
            (quantized, _) => {
                let scheme = quantized.map_or("", |weight| weight.scheme);
                let found = format!("{name:?} of the checkpoint, quantised as {scheme}");
                mismatch("a weight of numbers; dequantise it first", found)
            }
        };
        Err(at(adapter, position, problem))
    }

    /// Returns the number of the merged tensor with this name, which is new unless it is known.
    fn number<T>(&mut self, name: &str, like: &LazyTensor<'_, T>, base: Option<Stored>) -> usize {
        *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.tensors.push(Merged::new(name, like, base, Arc::clone(&self.recent)));
            self.tensors.len() - 1
        })
    }

    /// Returns the number of the merged tensor for a name of the checkpoint.
    fn target(&mut self, name: &str) -> Option<usize> {
        let tensor = self.base.checkpoint.get(name)?;
        let name = if self.by_name.contains_key(name) { name } else { tensor.name() };
        Some(self.number(name, &tensor, Some(Stored::from(&tensor))))
    }

    /// Makes a separate tensor of each further name of a tied weight: the copy of a module that was
    /// trained completely replaces one name.
    fn untie<T>(&mut self, name: &str, from: &LazyTensor<'_, T>) -> Result<()> {
        let Some(tensor) = self.base.checkpoint.get(name) else { return Ok(()) };
        let aliases = self.base.checkpoint.aliases().filter(|(_, it)| it.name() == tensor.name());
        for (alias, tensor) in aliases {
            if self.by_name.contains_key(alias) {
                break;
            }
            if self.by_name.contains_key(tensor.name()) {
                return Err(located(from, twice(name)));
            }
            self.number(alias, &tensor, Some(Stored::from(&tensor)));
        }
        Ok(())
    }

    /// Replaces the checkpoint's tensor by an adapter's, or adds that.
    fn replace(
        &mut self,
        adapter: &Adapter,
        wanted: &LoraName,
        found: Option<LoraTarget<'a>>,
    ) -> Result<()> {
        let Some(tensor) = adapter.source.tensor_at(wanted.position) else { return Ok(()) };
        let number = match found.map(|found| found.names[0]) {
            Some(name) => {
                self.numbers(name, &adapter.source, wanted.position)?;
                self.untie(name, &tensor)?;
                self.target(name)
            }
            None => Some(self.number(&wanted.name, &tensor, None)),
        };
        let Some(merged) = number.map(|number| &mut self.tensors[number]) else { return Ok(()) };
        if let ([rows, row @ ..], [_, rest @ ..]) = (tensor.shape(), &*merged.shape)
            && row == rest
        {
            let rows = vocabulary(adapter, (&merged.name, &merged.shape), *rows, u64::MAX);
            merged.shape[0] = rows.map_err(|problem| located(&tensor, problem))?;
        }
        if tensor.shape() != merged.shape {
            let expected = format!("shape {} of {:?}", Shape(&merged.shape), merged.name);
            return Err(misshapen(&tensor, expected));
        }
        if !is_possible(tensor.dtype()) {
            return Err(located(&tensor, mismatch(POSSIBLE, tensor.dtype().to_string())));
        }
        tensor.refuse_codes()?;
        if merged.replaced.is_some() || !merged.deltas.is_empty() {
            return Err(located(&tensor, twice(&merged.name)));
        }
        merged.replaced = Some((Arc::clone(&adapter.source), Stored::from(&tensor)));
        Ok(())
    }
}

/// Refuses two modules of an adapter that change the same rows. The names of a tied weight are
/// separate: like a merge by PEFT, its sum has the changes of all of them.
fn check_rows(deltas: &mut [(&str, Delta)]) -> Result<()> {
    deltas.sort_by_key(|(name, delta)| (*name, delta.place.rows.start));
    for pair in deltas.windows(2) {
        if let [(name, one), (other, delta)] = pair
            && name == other
            && delta.place.rows.start < one.place.rows.end
        {
            return Err(at(&delta.adapter, delta.matrix.ends()[0], twice(name)));
        }
    }
    Ok(())
}

fn twice(name: &str) -> AdapterProblem {
    let found = format!("{name:?}, which another tensor of the adapters changes, too");
    AdapterProblem::Unsupported { found }
}
