//! [`Difference`]: how far the values of two tensors of the same shape are apart.

use safetensors_core::load::Piece;
use safetensors_core::{Dtype, ReadAt, Result};

use super::distance::Distances;
use super::tolerance::Tolerance;
use crate::model::values::{self, Numbers, block_bytes};

/// The differences between the values of two tensors. Each part of a complex number is a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Difference {
    /// The number of values that are further apart than the tolerance.
    pub(crate) values: u64,
    /// The number of values that are equal as numbers but differ in their bits: 0 and -0, and the
    /// many kinds of NaN. It is 0 if there is a tolerance or if the dtypes differ.
    pub(crate) other_bits: u64,
    /// The number of values that were compared.
    pub(crate) of: u64,
    /// The largest distance. NaN on one side only is infinitely far away.
    pub(crate) max_absolute: f64,
    /// The largest distance as a part of the larger of the two values.
    pub(crate) max_relative: f64,
}

/// Memory of a thread, for the bytes and the numbers of two pieces.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    bytes: [Vec<u8>; 2],
    numbers: [Numbers; 2],
    /// Real numbers as complex ones.
    complex: Vec<f64>,
}

impl Difference {
    /// Returns `true` if all values are equal.
    pub(crate) fn is_none(&self) -> bool {
        self.values == 0 && self.other_bits == 0
    }

    /// Compares the same piece of two tensors of the same shape. Pieces of the same dtype and the
    /// same bytes are equal without a look at their values.
    pub(crate) fn of<S: ReadAt>(
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
                    .map_err(|error| values::explain(a, error))?
            } else {
                let [left_numbers, right_numbers] = &mut *numbers;
                let left_numbers = left_numbers.of(left, left_block);
                let right_numbers = right_numbers.of(right, right_block);
                let mut left_numbers = left_numbers.map_err(|error| values::explain(a, error))?;
                let mut right_numbers = right_numbers.map_err(|error| values::explain(b, error))?;
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
                let pairs =
                    pairs(a, b).map(|(a, b)| (i64::from_le_bytes(a), i64::from_le_bytes(b)));
                let distances =
                    Distances::of_integers(pairs, i64::abs_diff, i64::unsigned_abs, tolerance);
                return Ok(Self::new(of, distances));
            }
            Dtype::U64 => {
                let pairs =
                    pairs(a, b).map(|(a, b)| (u64::from_le_bytes(a), u64::from_le_bytes(b)));
                let distances =
                    Distances::of_integers(pairs, u64::abs_diff, |value| value, tolerance);
                return Ok(Self::new(of, distances));
            }
            _ => {}
        }
        // As U8, bytes that are not booleans can be compared too.
        let numeric = if dtype == Dtype::BOOL { Dtype::U8 } else { dtype };
        let (left, right) = (left.of(numeric, a)?, right.of(numeric, b)?);
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

    fn of_numbers(a: &[f64], b: &[f64], tolerance: Tolerance) -> Self {
        Self::new(a.len() as u64, Distances::of(a, b, tolerance))
    }

    fn new(of: u64, distances: Distances) -> Self {
        let Distances { differ: values, max_absolute, max_relative } = distances;
        Self { values, other_bits: 0, of, max_absolute, max_relative }
    }

    /// Adds the differences of another piece of the same tensors.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.other_bits += other.other_bits;
        self.of += other.of;
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_relative = self.max_relative.max(other.max_relative);
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
fn pairs<const N: usize>(a: &[u8], b: &[u8]) -> impl Iterator<Item = ([u8; N], [u8; N])> {
    let (a, b) = (a.as_chunks::<N>().0, b.as_chunks::<N>().0);
    a.iter().zip(b).map(|(&a, &b)| (a, b))
}

/// Returns the number of elements of `N` bytes that differ.
fn count_different<const N: usize>(a: &[u8], b: &[u8]) -> u64 {
    pairs::<N>(a, b).filter(|(a, b)| a != b).count() as u64
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
    fn a_file_that_changes_meanwhile_is_an_error() {
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
        let mut compare = || Difference::of(&piece, &piece, Tolerance::default(), &mut buffers);
        assert_eq!(compare().unwrap(), Difference { of: 9, ..Difference::default() });
        let file: File = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
        let error = compare().unwrap_err();
        assert!(error.to_string().contains("tensor \"w\": the file has changed"), "{error}");
    }
}
