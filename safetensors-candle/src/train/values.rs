//! [`Values`]: what was read of a checkpoint, on its way into slots.

use candle_core::Tensor;
use safetensors_core::error::Mismatch;
use safetensors_core::framework::Framework as _;
use safetensors_core::{LazyTensor, Result, TensorBuf};

use super::slots::{Slot, refuse};
use crate::Candle;
use crate::error::from_candle_error;

/// A tensor that was read, and the slots that it is for.
pub(super) struct Value<'a, S> {
    pub(super) tensor: LazyTensor<'a, S>,
    pub(super) slots: Vec<usize>,
    pub(super) buf: TensorBuf,
}

/// All that was read.
pub(super) struct Values<'a, S>(pub(super) Vec<Value<'a, S>>);

impl<S> Values<'_, S> {
    /// Compares the values of each slot that has several.
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
                if before.buf.bytes() != value.buf.bytes() {
                    let (name, other) = (before.tensor.name().into(), value.tensor.name().into());
                    mismatches.push(Mismatch::Tied { name, other });
                }
            }
        }
        refuse(mismatches)
    }

    /// Moves each value to the device of its slots. Slots with the same value share its memory if
    /// they are on the same device.
    pub(super) fn into_tensors(self, slots: &[Slot]) -> Result<Vec<Option<Tensor>>> {
        let mut tensors = vec![None; slots.len()];
        for Value { tensor, slots: mut open, buf } in self.0 {
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
