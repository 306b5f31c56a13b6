//! [`Values`]: the values that were read from a checkpoint, on their way into slots.

use candle_core::Tensor;
use safetensors_core::error::Mismatch;
use safetensors_core::framework::Framework as _;
use safetensors_core::{Error, ErrorKind, LazyTensor, Result, TensorBuf};

use crate::error::from_candle_error;
use crate::{Candle, from_candle_dtype};

/// A tensor in memory that waits for a value from a checkpoint.
pub(super) struct TensorSlot {
    /// The names under which the checkpoint may have the value. One is enough.
    pub(super) names: Vec<String>,
    /// The present tensor. The value needs its shape, dtype and device.
    pub(super) tensor: Tensor,
}

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

    /// Moves each value to the device of its slots. Slots with the same value share its memory if
    /// they are on the same device.
    ///
    /// A value of another shape or dtype than its slot is an error. The names were compared before
    /// the read; this makes sure that the values match the comparison, because the first slot that
    /// is set cannot be taken back.
    pub(super) fn into_tensors(self, slots: &[TensorSlot]) -> Result<Vec<Option<Tensor>>> {
        let mut tensors = vec![None; slots.len()];
        let mut mismatches = Vec::new();
        for Value { tensor, slots: mut open, buf } in self.0 {
            // Later values for this slot have the same bytes.
            open.retain(|&slot| tensors[slot].is_none());
            let Some((&first, others)) = open.split_first() else { continue };
            let device = slots[first].tensor.device();
            let value = Candle::from_exact(buf, device).map_err(|error| tensor.locate(error))?;
            for &slot in &open {
                compare(tensor.name(), &value, &slots[slot], &mut mismatches)?;
            }
            for &slot in others {
                let copy = value.to_device(slots[slot].tensor.device());
                let copy = copy.map_err(|error| tensor.locate(from_candle_error(error)))?;
                tensors[slot] = Some(copy);
            }
            tensors[first] = Some(value);
        }
        refuse(mismatches)?;
        Ok(tensors)
    }
}

/// One error for all differences, if there are any, which names the options that allow them.
pub(super) fn refuse(mismatches: Vec<Mismatch>) -> Result<()> {
    if mismatches.is_empty() {
        return Ok(());
    }
    let mut advice = Vec::new();
    if mismatches.iter().any(|it| matches!(it, Mismatch::Missing { .. })) {
        advice.push("allow_missing(true) loads the rest");
    }
    if mismatches.iter().any(|it| matches!(it, Mismatch::Extra { .. })) {
        advice.push("allow_extra(true) skips what is not needed");
    }
    if mismatches.iter().any(|it| matches!(it, Mismatch::Dtype { .. })) {
        advice.push("cast(true) converts dtypes");
    }
    let error = Error::from(ErrorKind::Mismatches { mismatches });
    if advice.is_empty() {
        return Err(error);
    }
    Err(error.advise(format!("in StateOptions, {}", advice.join(", "))))
}

/// Lists how a value differs from its slot.
fn compare(
    name: &str,
    value: &Tensor,
    slot: &TensorSlot,
    mismatches: &mut Vec<Mismatch>,
) -> Result<()> {
    if value.dims() != slot.tensor.dims() {
        let expected = slot.tensor.dims().to_vec();
        let found = value.dims().to_vec();
        mismatches.push(Mismatch::Shape { name: name.into(), expected, found });
    }
    if value.dtype() != slot.tensor.dtype() {
        let expected = from_candle_dtype(slot.tensor.dtype())?;
        let found = from_candle_dtype(value.dtype())?;
        mismatches.push(Mismatch::Dtype { name: name.into(), expected, found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use safetensors_core::{Checkpoint, Dtype, ErrorKind, SaveOptions, serialize};

    use super::*;

    #[test]
    fn a_value_of_another_shape_or_dtype_than_its_slot_is_refused() {
        let ones = |len| TensorBuf::from_vec(vec![len], vec![1.0_f32; len]).unwrap();
        let names = ["a", "b", "c"];
        let saved = ones(2);
        let bytes = serialize(names.map(|name| (name, &saved)), &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::from_source(bytes, "bytes in memory").unwrap();
        let slots = names.map(|name| {
            let dtype = if name == "b" { DType::F8E4M3 } else { DType::F32 };
            let tensor = Tensor::zeros(2, dtype, &Device::Cpu).unwrap();
            TensorSlot { names: vec![name.into()], tensor }
        });
        let values = |lens: [usize; 3]| {
            let each = checkpoint.tensors().zip(lens).enumerate();
            let value = |(slot, (tensor, len))| Value { tensor, slots: vec![slot], buf: ones(len) };
            Values(each.map(value).collect())
        };
        let error = values([2, 2, 3]).into_tensors(&slots).unwrap_err();
        let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!("{error}") };
        let (expected, found) = (Dtype::F8_E4M3, Dtype::F32);
        let dtype = Mismatch::Dtype { name: "b".into(), expected, found };
        let shape = Mismatch::Shape { name: "c".into(), expected: vec![2], found: vec![3] };
        assert_eq!(mismatches[..], [dtype, shape]);

        let same = [0, 0, 2].map(|slot: usize| TensorSlot {
            names: slots[slot].names.clone(),
            tensor: slots[slot].tensor.clone(),
        });
        let tensors = values([2, 2, 2]).into_tensors(&same).unwrap();
        assert!(tensors.iter().all(Option::is_some));
    }
}
