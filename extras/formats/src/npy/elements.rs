//! [`Elements`]: converts stored elements to the elements of safetensors.

use safetensors_core::framework::check_bools;
use safetensors_core::{Dtype, ErrorKind};

use super::descr::ByteOrder;
use super::header::Header;

/// The steps that each piece of an array's elements goes through, in order.
#[derive(Debug)]
pub(super) struct Elements {
    dtype: Dtype,
    byte_order: ByteOrder,
    /// The index of the next element.
    next: u64,
}

impl Elements {
    pub(super) fn of(header: &Header) -> Self {
        Self { dtype: header.dtype, byte_order: header.byte_order, next: 0 }
    }

    /// Swaps bytes where the file is big-endian. Refuses a boolean that is neither 0 nor 1: for
    /// NumPy any byte is one, the format knows these two.
    ///
    /// A piece is whole elements.
    pub(super) fn finish(&mut self, piece: &mut [u8]) -> Result<(), ErrorKind> {
        if self.dtype == Dtype::BOOL {
            check_bools(piece, self.next)?;
        }
        if self.byte_order == ByteOrder::Big {
            // A complex element is two numbers, each as large as the alignment.
            match self.dtype.alignment() {
                2 => swap::<2>(piece),
                4 => swap::<4>(piece),
                8 => swap::<8>(piece),
                _ => {}
            }
        }
        self.next += piece.len() as u64 * 8 / u64::from(self.dtype.bits());
        Ok(())
    }
}

fn swap<const W: usize>(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<W>().0.iter_mut().for_each(|number| number.reverse());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(dtype: Dtype, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let header = Header { byte_order: ByteOrder::Big, ..Header::new(dtype, &[]) };
        Elements::of(&header).finish(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn numbers_are_swapped_each_by_itself() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(finished(Dtype::I8, &bytes), bytes);
        assert_eq!(finished(Dtype::F16, &bytes), [2, 1, 4, 3, 6, 5, 8, 7]);
        assert_eq!(finished(Dtype::U32, &bytes), [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(finished(Dtype::C64, &bytes), [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(finished(Dtype::F64, &bytes), [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn booleans_are_checked_and_counted_over_all_pieces() {
        let mut elements = Elements::of(&Header::new(Dtype::BOOL, &[]));
        elements.finish(&mut [0, 1, 1]).unwrap();
        let error = elements.finish(&mut [1, 2]).unwrap_err();
        assert!(matches!(error, ErrorKind::InvalidBool { index: 4, found: 2 }), "{error}");
    }
}
