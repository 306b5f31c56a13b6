//! Compares [`TensorSlot`]s with a checkpoint, and reads their values.

use std::collections::{BTreeSet, HashMap, HashSet};

use candle_core::Tensor;
use safetensors_core::convert::can_convert;
use safetensors_core::error::Mismatch;
use safetensors_core::load::DtypePlan;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result,
};

use super::StateOptions;
use super::values::{TensorSlot, Value, Values, refuse};
use crate::from_candle_dtype;
use crate::weights::stored_otherwise;

pub(super) struct Filled {
    /// A value for each slot; `None` if the checkpoint may lack it, and does.
    pub(super) tensors: Vec<Option<Tensor>>,
    /// The first names of slots without a value, sorted.
    pub(super) missing: Vec<String>,
    pub(super) extra: Vec<String>,
}

/// Reads values without changing the slots. Reports `mismatches` together with its own, before any
/// data is read. `needs_slot` returns `true` for tensors that must not lack a slot.
pub(super) fn fill<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    slots: &[TensorSlot],
    mismatches: Vec<Mismatch>,
    needs_slot: impl Fn(&str) -> bool,
    options: &StateOptions,
) -> Result<Filled> {
    let plan = SlotPlan::new(checkpoint, slots, mismatches, needs_slot, options);
    let filled = plan.and_then(|plan| {
        let values = plan.read(checkpoint, options)?;
        values.check_ties(slots.len())?;
        let tensors = values.into_tensors(slots)?;
        Ok(Filled { tensors, missing: plan.missing, extra: plan.extra })
    });
    filled.map_err(|error| checkpoint.in_first_path(error))
}

#[derive(Default)]
struct SlotPlan<'a> {
    /// Slots by the name of the tensor, with the dtype that it is cast to.
    slots: HashMap<&'a str, Vec<(usize, Option<Dtype>)>>,
    missing: Vec<String>,
    extra: Vec<String>,
}

impl<'a> SlotPlan<'a> {
    fn new<S: ReadAt>(
        checkpoint: &'a Checkpoint<S>,
        slots: &[TensorSlot],
        mut mismatches: Vec<Mismatch>,
        needs_slot: impl Fn(&str) -> bool,
        options: &StateOptions,
    ) -> Result<Self> {
        let mut plan = Self::default();
        plan.find(checkpoint, slots, &mut mismatches, options)?;
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let extra = names.filter(|name| !plan.slots.contains_key(name) && needs_slot(name));
        plan.extra = extra.map(String::from).collect();
        // The order of a hash map differs from run to run. Messages must not.
        plan.missing.sort_unstable();
        plan.extra.sort_unstable();
        let wants = |name: &str| plan.missing.binary_search_by(|it| (**it).cmp(name)).is_ok();
        if let Some(weight) = stored_otherwise(checkpoint, wants, &options.load_options) {
            return Err(checkpoint.missing(&weight.name));
        }
        if !options.allow_missing {
            let missing = plan.missing.iter().cloned();
            mismatches.extend(missing.map(|name| Mismatch::Missing { name }));
        }
        if !options.allow_extra {
            let extra = plan.extra.iter().cloned();
            mismatches.extend(extra.map(|name| Mismatch::Extra { name }));
        }
        // All differences at once: a checkpoint of another model has many, and one names too
        // little.
        refuse(mismatches)?;
        Ok(plan)
    }

    fn find<S: ReadAt>(
        &mut self,
        checkpoint: &'a Checkpoint<S>,
        slots: &[TensorSlot],
        mismatches: &mut Vec<Mismatch>,
        options: &StateOptions,
    ) -> Result<()> {
        let mut names = HashSet::new();
        for (position, slot) in slots.iter().enumerate() {
            let first = slot.names.first().map_or("", String::as_str);
            let dtype = from_candle_dtype(slot.tensor.dtype());
            let dtype = dtype.map_err(|error| error.in_tensor(first))?;
            let mut found = BTreeSet::new();
            for name in &slot.names {
                // A second slot of this name would get the value of the first.
                if !names.insert(name.as_str()) {
                    return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
                }
                let Some(tensor) = checkpoint.get(name) else { continue };
                // Several names may lead to one tensor of the file.
                if found.insert(tensor.name()) {
                    let cast = options.cast_to(dtype);
                    let load = options.for_cast(cast);
                    let loaded = loaded(&tensor, &load)?;
                    let wanted = RequestedSlot { name, slot, dtype };
                    mismatches.extend(compare(&tensor, loaded, &wanted, &load));
                    self.slots.entry(tensor.name()).or_default().push((position, cast));
                }
            }
            if found.is_empty() {
                self.missing.push(first.into());
            }
        }
        Ok(())
    }

    /// Reads each tensor once for each dtype that it is cast to, in parallel.
    fn read<'c, S: ReadAt>(
        &self,
        checkpoint: &'c Checkpoint<S>,
        options: &StateOptions,
    ) -> Result<Values<'c, S>> {
        // A read has one dtype for all its tensors. A model has few dtypes, so a list finds a group
        // as fast as a map, and keeps the order of the file, in which reading is fastest.
        let mut groups: Vec<Group<'c, S>> = Vec::new();
        for tensor in checkpoint.tensors() {
            for &(slot, cast) in self.slots.get(tensor.name()).into_iter().flatten() {
                match groups.iter_mut().find(|group| group.cast == cast) {
                    Some(group) => group.add(tensor, slot),
                    None => groups.push(Group { cast, tensors: vec![(tensor, vec![slot])] }),
                }
            }
        }
        let mut values = Vec::new();
        for Group { cast, tensors } in groups {
            let (tensors, slots): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
            let names = tensors.iter().map(|tensor| tensor.name());
            let bufs = checkpoint.read_named(names, &options.for_cast(cast))?;
            let each = tensors.into_iter().zip(slots).zip(bufs);
            values.extend(each.map(|((tensor, slots), buf)| Value { tensor, slots, buf }));
        }
        Ok(Values(values))
    }
}

/// Tensors that are cast to one dtype or not cast.
struct Group<'a, S> {
    cast: Option<Dtype>,
    /// Tensors and their slots, in the order of the checkpoint.
    tensors: Vec<(LazyTensor<'a, S>, Vec<usize>)>,
}

impl<'a, S> Group<'a, S> {
    /// Adds a slot of the last tensor, or of the next one.
    fn add(&mut self, tensor: LazyTensor<'a, S>, slot: usize) {
        match self.tensors.last_mut() {
            // The slots of a tensor follow each other. It is read once for all of them.
            Some((last, slots)) if last.name() == tensor.name() => slots.push(slot),
            _ => self.tensors.push((tensor, vec![slot])),
        }
    }
}

/// Returns `None` if candle cannot hold the tensor with these options. Codes of a quantised weight
/// are a separate error.
fn loaded<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    options: &LoadOptions,
) -> Result<Option<DtypePlan>> {
    match tensor.dtype_plan(options) {
        Ok(loaded) => Ok(Some(loaded)),
        Err(error) => match error.kind() {
            // Reported with the other differences, not instead of them.
            ErrorKind::UnsupportedDtype { .. } | ErrorKind::WouldWiden { .. } => Ok(None),
            _ => Err(error),
        },
    }
}

struct RequestedSlot<'s> {
    name: &'s str,
    slot: &'s TensorSlot,
    dtype: Dtype,
}

/// Returns how a tensor differs from a slot.
fn compare<S>(
    tensor: &LazyTensor<'_, S>,
    loaded: Option<DtypePlan>,
    &RequestedSlot { name, slot, dtype: expected }: &RequestedSlot<'_>,
    options: &LoadOptions,
) -> impl Iterator<Item = Mismatch> {
    let file = tensor.dtype();
    let shape = match loaded {
        Some(loaded) => loaded.shape(tensor.shape()),
        None => tensor.shape().to_vec(),
    };
    let shapes = Mismatch::of_shapes(name, slot.tensor.dims(), &shape);
    let fits = loaded.is_some_and(|loaded| {
        let asked = options.dtype_of(file);
        // Complex numbers become pairs of F32 before they are converted.
        let from = if file == Dtype::C64 && asked != file { Dtype::F32 } else { file };
        loaded.dtype() == expected && can_convert(from, asked)
    });
    let dtypes = (!fits).then(|| Mismatch::Dtype { name: name.into(), expected, found: file });
    shapes.into_iter().chain(dtypes)
}
