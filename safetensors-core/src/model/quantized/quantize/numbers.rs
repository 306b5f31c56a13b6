//! The numbers of a weight, piece by piece.

use std::borrow::Cow;

use super::Quantization;
use super::rounding::largest;
use crate::format::convert::STREAMED;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorSource, shape, write_in_pieces};

/// Whole groups of all schemes.
pub(super) const ELEMENTS: usize = STREAMED / 8;

/// Passes on pieces of whole groups, each with the index of its first number.
pub(super) fn pieces(
    weight: &dyn TensorSource,
    how: Quantization,
    take: &mut dyn FnMut(u64, &[f32]) -> Result<()>,
) -> Result<()> {
    let len = shape::byte_len(Dtype::F32, weight.shape())?;
    let mut first = 0;
    write_in_pieces(weight, len, ELEMENTS * 4, &mut |piece| {
        let numbers = match bytemuck::try_cast_slice(piece) {
            Ok(numbers) if cfg!(target_endian = "little") => Cow::Borrowed(numbers),
            _ => piece.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        };
        refuse_infinite(first, &numbers, how)?;
        take(first, &numbers)?;
        first += numbers.len() as u64;
        Ok(())
    })
}

fn refuse_infinite(first: u64, numbers: &[f32], how: Quantization) -> Result<()> {
    if largest(numbers).is_finite() {
        return Ok(());
    }
    let position = numbers.iter().position(|number| !number.is_finite()).unwrap_or(0);
    let index = first + position as u64;
    let value = format!("{:?}", numbers[position]);
    Err(ErrorKind::DoesNotFit { index, value, to: how.code() }.into())
}
