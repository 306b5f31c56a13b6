//! The values of a tensor as numbers.

use safetensors_core::{ConvertOptions, Dtype, LazyTensor, ReadAt, Result, TensorBuf, convert};

/// Values as `f64`: exact but for 64-bit integers over 2⁵³, which are rounded. A complex number is two values.
pub(crate) fn numbers(buf: TensorBuf) -> Result<Vec<f64>> {
    let buf = if buf.dtype() == Dtype::C64 { convert::widen(buf, Dtype::F32)? } else { buf };
    buf.convert(Dtype::F64, &ConvertOptions::new())?.into_vec()
}

/// Calls `take` with all values of a tensor, in order, some at a time; and with how many bytes they have in the file.
pub(crate) fn for_each<S: ReadAt>(tensor: &LazyTensor<'_, S>, mut take: impl FnMut(&[f64], u64)) -> Result<()> {
    for piece in tensor.pieces() {
        let piece = piece?;
        let bytes = piece.bytes().len() as u64;
        take(&numbers(piece).map_err(|error| tensor.locate(error))?, bytes);
    }
    Ok(())
}
