//! [`Values`]: the values that were read from a checkpoint, on their way into slots.

use candle_core::Tensor;
use safetensors_core::error::Mismatch;
use safetensors_core::framework::Framework as _;
use safetensors_core::{LazyTensor, Result, TensorBuf};

use crate::Candle;
use crate::error::from_candle_error;

/// A tensor in memory that waits for a value from a checkpoint.
pub(super) struct TensorSlot {
    /// Names in the checkpoint. One of them is enough.
    pub(super) names: Vec<String>,
    /// The present tensor. The value needs its shape, dtype and device.
    pub(super) tensor: Tensor,
}

pub(super) struct Value<'a, S> {
    pub(super) tensor: LazyTensor<'a, S>,
    pub(super) slots: Vec<usize>,
    pub(super) buf: TensorBuf,
}

pub(super) struct Values<'a, S>(pub(super) Vec<Value<'a, S>>);

impl<S> Values<'_, S> {
    /// Compares the values of slots that have several.
    pub(super) fn check_ties(&self, slots: usize) -> Result<()> {
        let mut first: Vec<Option<&Value<'_, S>>> = Vec::new();
        first.resize_with(slots, || None);
        let mut mismatches = Vec::new();
        for value in &self.0 {
            for &slot in &value.slots {
                let Some(before) = first[slot] else {
                    first[slot] = Some(value);
                    continue;
                };
                // The file may have tied variables apart. If they differ, either value would be
                // wrong.
                if before.buf.bytes() != value.buf.bytes() {
                    let name = before.tensor.name().into();
                    mismatches.push(Mismatch::Tied { name, other: value.tensor.name().into() });
                }
            }
        }
        refuse(mismatches)
    }

    /// Moves values to the devices of their slots, which share their memory there.
    pub(super) fn into_tensors(self, slots: &[TensorSlot]) -> Result<Vec<Option<Tensor>>> {
        let mut tensors = vec![None; slots.len()];
        for Value { tensor, slots: mut open, buf } in self.0 {
            // Later values for this slot have the same bytes.
            open.retain(|&slot| tensors[slot].is_none());
            let Some((&first, others)) = open.split_first() else { continue };
            let device = slots[first].tensor.device();
            let value = Candle::from_exact(buf, device).map_err(|error| tensor.locate(error))?;
            for &slot in others {
                let copy = value.to_device(slots[slot].tensor.device());
                let copy = copy.map_err(|error| tensor.locate(from_candle_error(error)))?;
                tensors[slot] = Some(copy);
            }
            tensors[first] = Some(value);
        }
        Ok(tensors)
    }
}

/// Makes one error, which names the options that allow the differences.
pub(super) fn refuse(mismatches: Vec<Mismatch>) -> Result<()> {
    let mut advice = Vec::new();
    if mismatches.iter().any(|it| matches!(it, Mismatch::Missing { .. })) {
        advice.push("allow_missing(true) loads the rest");
    }
    if mismatches.iter().any(|it| matches!(it, Mismatch::Extra { .. })) {
        advice.push("allow_extra(true) skips the tensors that are not needed");
    }
    if mismatches.iter().any(|it| matches!(it, Mismatch::Dtype { .. })) {
        advice.push("cast(true) converts dtypes");
    }
    Mismatch::refuse(mismatches).map_err(|error| match advice[..] {
        [] => error,
        _ => error.advise(format!("in StateOptions, {}", advice.join(", "))),
    })
}
