//! The values of a tensor as numbers.

use safetensors_core::load::Piece;
use safetensors_core::{ConvertOptions, Dtype, ErrorKind, ReadAt, Result, TensorBuf, TensorView};

use super::vectors;

/// How many elements are converted at a time.
// Their numbers stay in the cache of a core. A multiple of 8 gives whole bytes of any packed dtype.
pub(crate) const BLOCK: usize = 1 << 11;

/// Reads into a buffer that is reused.
// Fresh memory for each piece would cost more than reading.
pub(crate) fn read<'b, S: ReadAt>(
    piece: &Piece<'_, S>,
    buffer: &'b mut Vec<u8>,
) -> Result<&'b [u8]> {
    let len = piece.byte_len() as usize;
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let bytes = &mut buffer[..len];
    piece.read_bytes_into(bytes)?;
    Ok(bytes)
}

pub(crate) fn block_bytes(dtype: Dtype) -> usize {
    BLOCK / 8 * dtype.bits() as usize
}

/// Elements of any dtype as numbers, in reused memory.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    converted: Option<TensorBuf>,
    widened: Vec<f64>,
}

impl Numbers {
    /// Integers beyond 2⁵³ are rounded; all else is exact. A complex number becomes two. Fails for
    /// a part of an element, and for bytes that are no booleans.
    pub(crate) fn read(&mut self, dtype: Dtype, bytes: &[u8]) -> Result<&[f64]> {
        // Most data has these dtypes, and to widen them takes less time than core's way, which is
        // for every pair of dtypes.
        match dtype {
            Dtype::F32 | Dtype::C64 => return Ok(self.widen(bytes, f32::from_le_bytes)),
            Dtype::BF16 => {
                return Ok(self.widen(bytes, |[low, high]| f32::from_le_bytes([0, 0, low, high])));
            }
            _ => {}
        }
        let shape = [bytes.len() * 8 / dtype.bits() as usize];
        let buf = match self.converted.take() {
            Some(buf) if buf.shape() == shape => buf,
            _ => TensorBuf::from_vec(shape.to_vec(), vec![0.0_f64; shape[0]])?,
        };
        let buf = self.converted.insert(buf);
        let view = TensorView::new(dtype, &shape, bytes)?;
        view.convert_into(buf, &ConvertOptions::new())?;
        buf.as_slice()
    }

    /// [`Numbers::read`] a part of a piece. Errors have the tensor and its file; positions count from
    /// the start of the tensor.
    pub(crate) fn of_part<S: ReadAt>(
        &mut self,
        piece: &Piece<'_, S>,
        bytes: &[u8],
    ) -> Result<&[f64]> {
        self.read(piece.tensor().dtype(), bytes).map_err(|error| match error.kind() {
            ErrorKind::InvalidBool { .. } => piece.read().err().unwrap_or(error),
            _ => piece.tensor().locate(error),
        })
    }

    fn widen<const N: usize>(&mut self, bytes: &[u8], single: impl Fn([u8; N]) -> f32) -> &[f64] {
        let elements = bytes.as_chunks::<N>().0;
        if self.widened.len() < elements.len() {
            self.widened.resize(elements.len(), 0.0);
        }
        let widened = &mut self.widened[..elements.len()];
        vectors::dispatch(|| {
            for (number, &element) in widened.iter_mut().zip(elements) {
                *number = single(element).into();
            }
        });
        widened
    }
}
