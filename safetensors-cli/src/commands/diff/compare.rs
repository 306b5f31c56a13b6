//! Compares two tensors of the same shape, piece by piece.

use safetensors_core::load::Piece;
use safetensors_core::{Dtype, ReadAt, Result};

use super::distance::Difference;
use super::tolerance::Tolerance;
use crate::model::values::{self, Numbers, block_bytes};

/// Memory of a thread, for the bytes and the numbers of two pieces.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    bytes: [Vec<u8>; 2],
    numbers: [Numbers; 2],
    /// Real numbers as complex ones.
    complex: Vec<f64>,
}

impl Difference {
    /// Compares the same piece of two tensors of the same shape. Pieces of the same dtype and the
    /// same bytes are equal without a look at their values.
    pub(crate) fn compare<S: ReadAt>(
        a: &Piece<'_, S>,
        b: &Piece<'_, S>,
        tolerance: Tolerance,
        buffers: &mut Buffers,
    ) -> Result<Self> {
        let Buffers { bytes: [left_bytes, right_bytes], numbers, complex } = buffers;
        let (left, right) = (a.tensor().dtype(), b.tensor().dtype());
        let (left_bytes, right_bytes) =
            (values::read(a, left_bytes)?, values::read(b, right_bytes)?);
        let mut difference = Self::default();
        if left == right && left_bytes == right_bytes {
            difference.of = value_count(left, left_bytes);
            return Ok(difference);
        }
        let blocks =
            left_bytes.chunks(block_bytes(left)).zip(right_bytes.chunks(block_bytes(right)));
        for (left_block, right_block) in blocks {
            let found = if left == right {
                Self::of_bytes(left, left_block, right_block, tolerance, numbers)
                    .map_err(|error| a.tensor().locate(error))?
            } else {
                let [left_numbers, right_numbers] = &mut *numbers;
                let mut left_numbers = left_numbers.of_part(a, left_block)?;
                let mut right_numbers = right_numbers.of_part(b, right_block)?;
                match (left, right) {
                    (Dtype::C64, _) => right_numbers = as_complex(right_numbers, complex),
                    (_, Dtype::C64) => left_numbers = as_complex(left_numbers, complex),
                    _ => {}
                }
                Self::of_numbers(left_numbers, right_numbers, tolerance)
            };
            difference.merge(&found);
        }
        Ok(difference)
    }

    /// Compares elements of the same dtype.
    fn of_bytes(
        dtype: Dtype,
        a: &[u8],
        b: &[u8],
        tolerance: Tolerance,
        [left, right]: &mut [Numbers; 2],
    ) -> Result<Self> {
        let of = value_count(dtype, a);
        if a == b {
            return Ok(Self { of, ..Self::default() });
        }
        match dtype {
            Dtype::I64 => {
                let pairs = pairs(a, b, i64::from_le_bytes);
                return Ok(Self::of_integers(pairs, i64::abs_diff, i64::unsigned_abs, tolerance));
            }
            Dtype::U64 => {
                let pairs = pairs(a, b, u64::from_le_bytes);
                return Ok(Self::of_integers(pairs, u64::abs_diff, |value| value, tolerance));
            }
            _ => {}
        }
        // As U8, bytes that are not booleans can be compared too.
        let numeric = if dtype == Dtype::BOOL { Dtype::U8 } else { dtype };
        let (left, right) = (left.read(numeric, a)?, right.read(numeric, b)?);
        let mut difference = Self::of_numbers(left, right, tolerance);
        if tolerance.is_none() {
            let other_bits = match (dtype.bits(), dtype.alignment()) {
                // Packed elements have no NaN, so their values determine their bits.
                (..8, _) => {
                    let bits = left.iter().zip(right).map(|(a, b)| (a.to_bits(), b.to_bits()));
                    bits.filter(|(a, b)| a != b).count() as u64
                }
                (_, 1) => count_different::<1>(a, b),
                (_, 2) => count_different::<2>(a, b),
                // The parts of a complex number one by one.
                (_, 4) => count_different::<4>(a, b),
                _ => count_different::<8>(a, b),
            };
            difference.other_bits = other_bits - difference.values;
        }
        Ok(difference)
    }
}

/// Returns the number of values in this many bytes.
fn value_count(dtype: Dtype, bytes: &[u8]) -> u64 {
    let bits = if dtype == Dtype::C64 { 32 } else { dtype.bits() };
    bytes.len() as u64 * 8 / u64::from(bits)
}

/// Returns complex numbers with imaginary parts of 0.
fn as_complex<'b>(real: &[f64], buffer: &'b mut Vec<f64>) -> &'b [f64] {
    buffer.clear();
    buffer.extend(real.iter().flat_map(|&real| [real, 0.0]));
    buffer
}

/// Elements of `N` bytes in pairs.
fn pairs<const N: usize, T>(
    a: &[u8],
    b: &[u8],
    element: impl Fn([u8; N]) -> T,
) -> impl Iterator<Item = (T, T)> {
    let pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
    pairs.map(move |(&a, &b)| (element(a), element(b)))
}

/// Returns the number of elements of `N` bytes that differ.
fn count_different<const N: usize>(a: &[u8], b: &[u8]) -> u64 {
    pairs::<N, _>(a, b, |element| element).filter(|(a, b)| a != b).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(dtype: Dtype, a: &[u8], b: &[u8], tolerance: Tolerance) -> Difference {
        Difference::of_bytes(dtype, a, b, tolerance, &mut Default::default()).unwrap()
    }

    #[test]
    fn other_bits_are_a_difference_unless_there_is_a_tolerance() {
        let bytes = |numbers: [u32; 4]| numbers.map(u32::to_le_bytes).concat();
        let (nan, other_nan, minus_zero) = (0x7fc0_0000, 0x7fc0_0001, 0x8000_0000);
        let a = bytes([0, nan, 0x3f80_0000, nan]);
        let b = bytes([minus_zero, other_nan, 0x4000_0000, nan]);
        let exact = of_bytes(Dtype::F32, &a, &b, Tolerance::default());
        assert_eq!((exact.values, exact.other_bits, exact.of, exact.max_absolute), (1, 2, 4, 1.0));
        let equal = of_bytes(Dtype::F32, &a, &b, Tolerance::new(0.0, 0.0));
        assert_eq!((equal.values, equal.other_bits, equal.of), (1, 0, 4));
        // Both parts of a complex number, and both halves of a byte, are values.
        let complex = of_bytes(Dtype::C64, &a, &b, Tolerance::default());
        assert_eq!((complex.values, complex.other_bits, complex.of), (1, 2, 4));
        let packed = of_bytes(Dtype::F4, &[0x10, 0x21], &[0x18, 0x31], Tolerance::default());
        assert_eq!((packed.values, packed.other_bits, packed.of), (1, 1, 4));
        let same = of_bytes(Dtype::C64, &a, &a, Tolerance::default());
        assert_eq!(same, Difference { of: 4, ..Difference::default() });
    }

    #[test]
    fn large_integers_are_compared_exactly() {
        let bytes = |numbers: [u64; 3]| numbers.map(u64::to_le_bytes).concat();
        let (a, b) = (bytes([1 << 53, u64::MAX, 7]), bytes([(1 << 53) + 1, 0, 7]));
        let unsigned = of_bytes(Dtype::U64, &a, &b, Tolerance::default());
        assert_eq!((unsigned.values, unsigned.of), (2, 3));
        assert_eq!(unsigned.max_absolute, u64::MAX as f64);
        // These bytes as signed integers: -1 and 0.
        let signed = of_bytes(Dtype::I64, &a, &b, Tolerance::default());
        assert_eq!((signed.values, signed.max_absolute), (2, 1.0));
    }

    #[test]
    fn a_file_that_changes_during_a_comparison_is_an_error() {
        use std::fs::{File, OpenOptions};
        use std::time::{Duration, SystemTime};

        use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let values = [1_u8; 9];
        let tensors = [("w", TensorView::from_slice(&[9], &values).unwrap())];
        save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = checkpoint.tensor("w").unwrap();
        let piece = tensor.pieces().next().unwrap();
        let mut buffers = Buffers::default();
        let mut compare =
            || Difference::compare(&piece, &piece, Tolerance::default(), &mut buffers);
        assert_eq!(compare().unwrap(), Difference { of: 9, ..Difference::default() });
        let file: File = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
        let error = compare().unwrap_err();
        assert!(error.to_string().contains("tensor \"w\": the file has changed"), "{error}");
    }
}
