//! The values of a tensor as numbers.

use safetensors_core::load::Piece;
use safetensors_core::{ConvertOptions, Dtype, ReadAt, Result, TensorBuf, convert};

/// Converts values to `f64`. Integers beyond 2⁵³ are rounded; every other value is exact. A complex
/// number becomes two values.
pub(crate) fn numbers(buf: TensorBuf) -> Result<Vec<f64>> {
    let buf = if buf.dtype() == Dtype::C64 { convert::widen(buf, Dtype::F32)? } else { buf };
    buf.convert(Dtype::F64, &ConvertOptions::new())?.into_vec()
}

/// Reads the values of a piece.
pub(crate) fn of<S: ReadAt>(piece: &Piece<'_, S>) -> Result<Vec<f64>> {
    numbers(piece.read()?).map_err(|error| piece.tensor().locate(error))
}
