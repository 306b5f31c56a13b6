//! The values of a tensor as numbers, piece by piece: a tensor larger than memory takes no more than a small one.

use safetensors_core::{ConvertOptions, Dtype, ErrorKind, LazyTensor, ReadAt, Result, TensorBuf, convert, shape};

/// The elements of a piece. A multiple of the elements that share bytes in any packed dtype.
const PIECE: u64 = 1 << 18;

/// Where the pieces of a tensor lie: each with its offset in bytes and its number of elements.
pub(crate) fn pieces<S>(tensor: &LazyTensor<'_, S>) -> Result<impl Iterator<Item = Piece> + use<S>> {
    let elements = shape::element_count(tensor.shape()).map_err(|kind| tensor.locate(kind.into()))?;
    let bits = u64::from(tensor.dtype().bits());
    Ok((0..elements).step_by(PIECE as usize).map(move |start| {
        let len = PIECE.min(elements - start);
        Piece { start, elements: len as usize, offset: start * bits / 8, bytes: len * bits / 8 }
    }))
}

/// A range of a tensor's elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The first element.
    start: u64,
    /// How many elements.
    pub(crate) elements: usize,
    /// Where its bytes begin, from the start of the tensor.
    pub(crate) offset: u64,
    /// How many bytes it has.
    pub(crate) bytes: u64,
}

impl Piece {
    /// Reads the piece of a tensor that it was made for.
    pub(crate) fn read<S: ReadAt>(&self, tensor: &LazyTensor<'_, S>) -> Result<TensorBuf> {
        TensorBuf::read_with(tensor.dtype(), vec![self.elements], |bytes| {
            let offset = tensor.file_offset() + self.offset;
            Ok(tensor.source().read_exact_at(bytes, offset).map_err(ErrorKind::Io)?)
        })
        .map_err(|error| match error.kind() {
            // Counted from the piece's start so far.
            ErrorKind::InvalidBool { index, found } => {
                tensor.locate(ErrorKind::InvalidBool { index: self.start + index, found: *found }.into())
            }
            _ => tensor.locate(error),
        })
    }
}

/// Values as `f64`: exact but for 64-bit integers over 2⁵³, which are rounded. A complex number is two values.
pub(crate) fn numbers(buf: TensorBuf) -> Result<Vec<f64>> {
    let buf = if buf.dtype() == Dtype::C64 { convert::widen(buf, Dtype::F32)? } else { buf };
    buf.convert(Dtype::F64, &ConvertOptions::new())?.into_vec()
}

/// Calls `take` with all values of a tensor, in order, some at a time.
pub(crate) fn for_each<S: ReadAt>(tensor: &LazyTensor<'_, S>, mut take: impl FnMut(&[f64])) -> Result<()> {
    for piece in pieces(tensor)? {
        take(&numbers(piece.read(tensor)?).map_err(|error| tensor.locate(error))?);
    }
    Ok(())
}
