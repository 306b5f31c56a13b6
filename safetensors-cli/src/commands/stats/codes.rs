//! Elements as codes. Their counts give the distribution of the values.
//!
//! | dtype | the code of an element | meaning of a code |
//! |---|---|---|
//! | 16 bits or fewer | its bits | the value |
//! | more bits | sign, exponent and 10 bits of the mantissa of the value as `f64` | a range with ends that differ by 1/1024 or less of the value |

use safetensors_core::{Dtype, Result};

use super::counts::{CODES, Counts};
use super::moments::Magnitudes;
use crate::model::values::Numbers;

/// The lowest bits of an `f64` that its code leaves out.
const DROPPED_BITS: u32 = 42;

/// Whether elements are counted by their bits, so that each value is known.
pub(super) fn are_exact(dtype: Dtype) -> bool {
    dtype.bits() <= 16
}

pub(super) fn count_bits(dtype: Dtype, bytes: &[u8], counts: &mut Counts<u32>) {
    let last = (1 << dtype.bits()) - 1;
    (0..=Counts::<u32>::page_of(last)).for_each(|page| counts.open(page));
    match dtype.bits() {
        16 => {
            let elements = bytes.as_chunks::<2>().0.iter();
            counts.count::<{ 1 << 16 }>(elements.map(|&bytes| u16::from_le_bytes(bytes).into()));
        }
        8 => {
            for (code, times) in (0..).zip(count_bytes(bytes)) {
                counts.add(code, times);
            }
        }
        // Packed elements begin with the lowest bits.
        6 => {
            let fours = bytes.as_chunks::<3>().0.iter();
            let fours = fours.map(|&[a, b, c]| u32::from_le_bytes([a, b, c, 0]));
            counts.count::<64>(fours.flat_map(|four| [0, 6, 12, 18].map(|at| four >> at & 0x3f)));
        }
        _ => {
            for (pair, times) in (0..).zip(count_bytes(bytes)) {
                counts.add(pair & 0xf, times);
                counts.add(pair >> 4, times);
            }
        }
    }
}

// Four tables take turns: to count the same byte twice in succession waits for memory.
fn count_bytes(bytes: &[u8]) -> [u32; 256] {
    let mut tables = [[0_u32; 256]; 4];
    let (chunks, rest) = bytes.as_chunks::<4>();
    for chunk in chunks {
        for (table, &byte) in tables.iter_mut().zip(chunk) {
            table[usize::from(byte)] += 1;
        }
    }
    rest.iter().for_each(|&byte| tables[0][usize::from(byte)] += 1);
    std::array::from_fn(|byte| tables.iter().map(|table| table[byte]).sum())
}

/// Returns the value of each code of a dtype of at most 16 bits.
pub(super) fn values(dtype: Dtype) -> Result<Vec<f64>> {
    let bits = dtype.bits() as usize;
    let mut bytes = vec![0_u8; (bits << bits) / 8];
    for code in 0..1_usize << bits {
        for bit in 0..bits {
            let at = code * bits + bit;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    // The other codes of BOOL are errors, which are found elsewhere.
    let dtype = if dtype == Dtype::BOOL { Dtype::U8 } else { dtype };
    Ok(Numbers::default().read(dtype, &bytes)?.to_vec())
}

/// `magnitudes` is `Some` only if all are finite.
pub(super) fn count_ranges(
    numbers: &[f64],
    magnitudes: Option<Magnitudes>,
    counts: &mut Counts<u32>,
) {
    let code = |number: f64| (number.to_bits() >> DROPPED_BITS) as u32;
    let page = |number: f64| Counts::<u32>::page_of(code(number));
    let page_of_sign = page(-0.0);
    match magnitudes {
        Some(Magnitudes { smallest, largest, has_zeros }) => {
            for page in page(smallest)..=page(largest) {
                counts.open(page);
                counts.open(page | page_of_sign);
            }
            if has_zeros {
                counts.open(page(0.0));
                counts.open(page(-0.0));
            }
        }
        None => numbers.iter().for_each(|&number| counts.open(page(number))),
    }
    counts.count::<CODES>(numbers.iter().map(|&number| code(number)));
}

/// Returns the first and the last finite number with this code of [`count_ranges`], or `None` for
/// NaN and infinity.
pub(super) fn range(code: u32, integers: bool) -> Option<(f64, f64)> {
    let first = u64::from(code) << DROPPED_BITS;
    let near = f64::from_bits(first);
    // The numbers nearest to 0: all but 0 itself are smaller than any F32.
    if near == 0.0 {
        return Some((0.0, 0.0));
    }
    let far = f64::from_bits(first | ((1 << DROPPED_BITS) - 1));
    let (low, high) = if near < far { (near, far) } else { (far, near) };
    if !low.is_finite() || !high.is_finite() {
        return None;
    }
    Some(if integers { (low.ceil(), high.floor()) } else { (low, high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_value_that_core_reads() {
        let fours = values(Dtype::F4).unwrap();
        assert_eq!((fours.len(), fours[1], fours[15]), (16, 0.5, -6.0));
        assert_eq!(values(Dtype::F6_E2M3).unwrap()[..3], [0.0, 0.125, 0.25]);
        assert_eq!(values(Dtype::I8).unwrap()[128..130], [-128.0, -127.0]);
        assert_eq!(values(Dtype::BOOL).unwrap()[..2], [0.0, 1.0]);
        let brains = values(Dtype::BF16).unwrap();
        for (code, &value) in brains.iter().enumerate() {
            let expected = half::bf16::from_bits(code as u16).to_f64();
            assert!(value == expected || value.is_nan() && expected.is_nan(), "{code}");
        }
    }

    #[test]
    fn packed_elements_are_counted_one_by_one() {
        let mut counts = Counts::default();
        count_bits(Dtype::F4, &[0x21, 0xf2, 0x21, 0x21, 0x21], &mut counts);
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(1, 4), (2, 5), (15, 1)]);
        counts.clear();
        count_bits(Dtype::F6_E3M2, &[0x81, 0x30, 0x10, 0x81, 0x30, 0x14], &mut counts);
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1)]);
    }

    #[test]
    fn a_number_is_in_the_range_of_its_code() {
        let numbers = [1.0, -1.0, 0.1, 3.4e38, -1e-300, f64::MAX, f64::MIN, 1e-45, -2047.0];
        for number in numbers {
            let code = (number.to_bits() >> DROPPED_BITS) as u32;
            let (low, high) = range(code, false).unwrap();
            assert!(low <= number && number <= high, "{number}: {low} to {high}");
            assert!(high - low <= number.abs() / 1024.0, "{number}: {low} to {high}");
        }
        for number in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(range((number.to_bits() >> DROPPED_BITS) as u32, false), None);
        }
        let mut counts = Counts::default();
        let magnitudes = Magnitudes { smallest: 1e-300, largest: f64::MAX, has_zeros: false };
        count_ranges(&numbers, Some(magnitudes), &mut counts);
        let found = counts.take();
        count_ranges(&numbers, None, &mut counts);
        let mut total = Counts::<u64>::default();
        total.merge(&found);
        assert!(total.iter().map(|(_, count)| count).sum::<u64>() == numbers.len() as u64);
        let sorted = |mut all: Vec<_>| {
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(total.iter().collect()), sorted(counts.iter().collect()));
        assert_eq!(range(0, false), Some((0.0, 0.0)));
        let minus_zero = ((-0.0_f64).to_bits() >> DROPPED_BITS) as u32;
        assert_eq!(range(minus_zero, false), Some((0.0, 0.0)));
        for whole in [1.0_f64, -7.0, 1023.0, -2047.0] {
            let code = (whole.to_bits() >> DROPPED_BITS) as u32;
            assert_eq!(range(code, true), Some((whole, whole)));
        }
    }
}
