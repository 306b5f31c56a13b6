//! Lossless widening: the wider dtype has every value of the narrow one.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::{ConvertOptions, can_convert};
use crate::format::dtype::{Dtype, with_integer};
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorBuf;

/// Converts `buf` to a wider dtype that has each of its values.
///
/// | from | to | result |
/// |---|---|---|
/// | BOOL | U8 | the buffer is kept |
/// | U64 | I64 | the buffer is kept; a value over `i64::MAX` is an error |
/// | C64 | F32 | the buffer is kept; the shape gains a last dimension of 2: real, imaginary |
/// | an integer | any integer dtype with each of its values | copied |
/// | a float | any float dtype of at least 8 bits with each of its values | copied; packed elements are unpacked |
///
/// For example, I8 widens to I16, I32 and I64, and each float of at most 8 bits except F8_E8M0 to
/// F16.
///
/// ```
/// use safetensors_core::convert::widen;
/// use safetensors_core::{Dtype, TensorBuf, TensorView};
///
/// // Four elements of F4 in two bytes, the first in the low half.
/// let packed = TensorBuf::from_view(&TensorView::new(Dtype::F4, &[4], &[0x21, 0xf7])?)?;
/// let halves = widen(packed, Dtype::F16)?.into_vec::<half::f16>()?;
/// assert_eq!(halves, [0.5, 1.0, 6.0, -6.0].map(half::f16::from_f32));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::DoesNotFit`] for U64; [`ErrorKind::WrongDtype`] for a pair that is not in the
/// table; [`ErrorKind::ShapeOverflow`]; [`ErrorKind::TooLargeForMemory`].
pub fn widen(buf: TensorBuf, to: Dtype) -> Result<TensorBuf> {
    let from = buf.dtype();
    match (from, to) {
        (Dtype::BOOL, Dtype::U8) => Ok(buf.relabel(to)),
        (Dtype::U64, Dtype::I64) => {
            let too_large = buf
                .as_slice::<u64>()?
                .iter()
                .enumerate()
                .find(|&(_, &value)| value > i64::MAX as u64);
            match too_large {
                Some((index, value)) => {
                    Err(ErrorKind::DoesNotFit { index: index as u64, value: value.to_string(), to }
                        .into())
                }
                None => Ok(buf.relabel(to)),
            }
        }
        (Dtype::C64, Dtype::F32) => {
            let pairs = widened_shape(from, to, buf.shape());
            Ok(buf.reinterpret(to, pairs))
        }
        _ if is_lossless(from, to) => buf.convert(to, &ConvertOptions::new()),
        _ => Err(ErrorKind::WrongDtype { expected: to, found: from }.into()),
    }
}

/// Returns `true` if `to` is another dtype than `from` and has each of its values.
///
/// ```
/// use safetensors_core::Dtype;
/// use safetensors_core::convert::is_lossless;
///
/// assert!(is_lossless(Dtype::BF16, Dtype::F32) && is_lossless(Dtype::U8, Dtype::I16));
/// assert!(!is_lossless(Dtype::F32, Dtype::BF16) && !is_lossless(Dtype::F16, Dtype::BF16));
/// ```
#[doc(hidden)]
pub fn is_lossless(from: Dtype, to: Dtype) -> bool {
    let holds = match (from.format(), to.format()) {
        (Some(narrow), Some(wide)) => wide.holds(narrow) && can_convert(from, to),
        _ => with_integer!(from, From => with_integer!(to, To => {
            To::MIN as i128 <= From::MIN as i128 && From::MAX as i128 <= To::MAX as i128
        }, else false), else false),
    };
    holds && from != to
}

/// C64 as F32 gains a last dimension of 2.
pub(crate) fn widened_shape(from: Dtype, to: Dtype, shape: &[usize]) -> Vec<usize> {
    let pair: &[usize] = if from == Dtype::C64 && to == Dtype::F32 { &[2] } else { &[] };
    [shape, pair].concat()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use half::f16;
    use num_complex::Complex;

    use super::*;
    use crate::format::tensor::element::{F4Packed, F8E4M3Fnuz};

    #[test]
    fn only_complex_numbers_that_become_pairs_change_their_shape() {
        assert_eq!(widened_shape(Dtype::C64, Dtype::F32, &[3]), [3, 2]);
        assert_eq!(widened_shape(Dtype::C64, Dtype::C64, &[3]), [3]);
        assert_eq!(widened_shape(Dtype::U16, Dtype::U32, &[3]), [3]);
    }

    #[test]
    fn integers_and_booleans_keep_their_values() {
        let wide = widen(TensorBuf::from_vec(vec![3], vec![-128_i8, 0, 127]).unwrap(), Dtype::I16)
            .unwrap();
        assert_eq!(wide.into_vec::<i16>().unwrap(), [-128, 0, 127]);
        let wide = widen(TensorBuf::from_vec(vec![2], vec![0_u16, u16::MAX]).unwrap(), Dtype::U32)
            .unwrap();
        assert_eq!(wide.into_vec::<u32>().unwrap(), [0, 65_535]);
        let wide =
            widen(TensorBuf::from_vec(vec![2], vec![true, false]).unwrap(), Dtype::U8).unwrap();
        assert_eq!(wide.into_vec::<u8>().unwrap(), [1, 0]);
    }

    #[test]
    fn a_u64_that_does_not_fit_is_an_error_that_names_it() {
        let fits = TensorBuf::from_vec(vec![1], vec![i64::MAX as u64]).unwrap();
        assert_eq!(widen(fits, Dtype::I64).unwrap().into_vec::<i64>().unwrap(), [i64::MAX]);
        let over = TensorBuf::from_vec(vec![2], vec![1_u64, 1 << 63]).unwrap();
        let error = widen(over, Dtype::I64).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, to: Dtype::I64, .. }),
            "{error}"
        );
    }

    #[test]
    fn complex_becomes_pairs() {
        let buf = TensorBuf::from_vec(
            vec![1, 2],
            vec![Complex::new(1.0_f32, 2.0), Complex::new(3.0, 4.0)],
        )
        .unwrap();
        let pairs = widen(buf, Dtype::F32).unwrap();
        assert_eq!(pairs.shape(), [1, 2, 2]);
        assert_eq!(pairs.into_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn small_floats_are_exact_in_half_precision() {
        for &dtype in Dtype::ALL {
            let is_small = dtype.bits() <= 8 && dtype != Dtype::F8_E8M0;
            let Some(format) = dtype.format().filter(|_| is_small) else { continue };
            for value in format.values() {
                let half = f16::from_f32(value);
                assert!(
                    half.to_f32() == value || value.is_nan() && half.is_nan(),
                    "{dtype} {value}"
                );
                assert_eq!(half.is_sign_negative(), value.is_sign_negative(), "{dtype} {value}");
            }
        }
        let buf = TensorBuf::from_vec(vec![2], vec![F8E4M3Fnuz(0x80), F8E4M3Fnuz(0x40)]).unwrap();
        let wide = widen(buf, Dtype::F16).unwrap().into_vec::<f16>().unwrap();
        assert!(wide[0].is_nan() && wide[1] == f16::ONE);
        let packed = TensorBuf::from_vec(vec![2, 2], vec![F4Packed(0x21), F4Packed(0xf7)]).unwrap();
        let wide = widen(packed, Dtype::F16).unwrap();
        assert_eq!(wide.shape(), [2, 2]);
        assert_eq!(wide.into_vec::<f16>().unwrap().map_to_f32(), [0.5, 1.0, 6.0, -6.0]);
    }

    #[test]
    fn other_pairs_are_refused() {
        let buf = TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap();
        assert!(matches!(widen(buf, Dtype::F16).unwrap_err().kind(), ErrorKind::WrongDtype { .. }));
    }

    #[test]
    fn only_pairs_that_keep_each_value_widen() {
        for &from in Dtype::ALL {
            for &to in Dtype::ALL {
                let of_kind = [from, to].iter().all(|dtype| dtype.is_float())
                    || [from, to].iter().all(|dtype| dtype.is_integer());
                let buf = TensorBuf::zeroed(from, vec![4]).unwrap();
                let widens = widen(buf, to).is_ok();
                let lossless = of_kind && is_lossless(from, to);
                let (bool, pair) = (from == Dtype::BOOL, from == Dtype::C64);
                let in_place = bool && to == Dtype::U8
                    || pair && to == Dtype::F32
                    || from == Dtype::U64 && to == Dtype::I64;
                assert_eq!(widens, lossless || in_place, "{from} to {to}");
            }
        }
        use Dtype::{BF16, F16, F32, F64, I8, I16, I32, U8, U16, U32};
        let wider = [
            (I8, I16),
            (U8, I16),
            (U16, U32),
            (U16, I32),
            (F16, F32),
            (BF16, F32),
            (F32, F64),
            (Dtype::F8_E4M3, BF16),
            (Dtype::F8_E8M0, F32),
        ];
        let narrower = [
            (I16, I8),
            (U8, I8),
            (I8, U16),
            (U32, I32),
            (F16, BF16),
            (BF16, F16),
            (F32, F16),
            (F64, F32),
            (Dtype::F8_E5M2FNUZ, Dtype::F8_E5M2),
            (Dtype::F8_E8M0, F16),
            (F32, F32),
            (F16, I16),
        ];
        assert!(wider.iter().all(|&(from, to)| is_lossless(from, to)));
        assert!(!narrower.iter().any(|&(from, to)| is_lossless(from, to)));
    }

    trait MapToF32 {
        fn map_to_f32(self) -> Vec<f32>;
    }

    impl MapToF32 for Vec<f16> {
        fn map_to_f32(self) -> Vec<f32> {
            self.into_iter().map(f16::to_f32).collect()
        }
    }
}
