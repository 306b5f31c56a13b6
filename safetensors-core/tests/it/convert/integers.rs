//! Conversion from and to integers and BOOL.

use half::f16;
use proptest::prelude::*;

use super::oracle::{Exact, Expected, Format, TARGETS, agrees};
use super::{POLICIES, convert, converted, misfit};
use crate::support::*;

/// Every integer dtype, with its range.
const INTEGERS: [(Dtype, i128, i128); 9] = [
    (Dtype::BOOL, 0, 1),
    (Dtype::U8, 0, u8::MAX as i128),
    (Dtype::U16, 0, u16::MAX as i128),
    (Dtype::U32, 0, u32::MAX as i128),
    (Dtype::U64, 0, u64::MAX as i128),
    (Dtype::I8, i8::MIN as i128, i8::MAX as i128),
    (Dtype::I16, i16::MIN as i128, i16::MAX as i128),
    (Dtype::I32, i32::MIN as i128, i32::MAX as i128),
    (Dtype::I64, i64::MIN as i128, i64::MAX as i128),
];

fn bytes(dtype: Dtype, value: i128) -> Vec<u8> {
    value.to_le_bytes()[..dtype.bits() as usize / 8].to_vec()
}

/// Every limit of every range, and its neighbours.
fn limits() -> impl Iterator<Item = i128> {
    let limits = INTEGERS.iter().flat_map(|&(_, low, high)| [low, high]);
    limits.flat_map(|limit| [limit - 1, limit, limit + 1])
}

#[test]
fn integers_keep_their_value_or_are_refused() {
    for (from, low, high) in INTEGERS {
        for (to, to_low, to_high) in INTEGERS {
            for value in limits().filter(|value| (low..=high).contains(value)) {
                let result = convert(from, to, Overflow::Ieee, &bytes(from, value));
                if (to_low..=to_high).contains(&value) {
                    assert_eq!(
                        file_bytes(&result.unwrap()),
                        bytes(to, value),
                        "{from} {value} to {to}"
                    );
                } else {
                    let error = result.unwrap_err();
                    let message = format!("the value {value} of element 0 does not fit {to}");
                    assert_eq!(error.to_string(), message, "{from}");
                }
            }
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_reported_after_many_that_do() {
    let mut values = vec![100_i64; 5_000];
    values[4_321] = 128;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(
        misfit(&convert(Dtype::I64, Dtype::I8, Overflow::Saturate, &bytes).unwrap_err()),
        4_321
    );
    assert_eq!(misfit(&convert(Dtype::I64, Dtype::BOOL, Overflow::Ieee, &bytes).unwrap_err()), 0);
    assert!(convert(Dtype::I64, Dtype::U8, Overflow::Ieee, &bytes).is_ok());
}

/// Converts an integer to every floating-point dtype, and compares the results with the oracle.
fn check_floats(from: Dtype, value: i128) {
    let bytes = bytes(from, value);
    for (to, overflow) in TARGETS.into_iter().flat_map(|to| POLICIES.map(|overflow| (to, overflow)))
    {
        let expected = Format::new(to).encode(Exact::Integer(value), overflow);
        match convert(from, to, overflow, &bytes) {
            Ok(buf) => {
                let mut code = [0; 8];
                code[..buf.bytes().len()].copy_from_slice(&file_bytes(&buf));
                let found = u64::from_le_bytes(code);
                assert!(
                    agrees(Format::new(to), found, expected),
                    "{from} {value} to {to} {overflow:?}: {found:#x}"
                );
            }
            Err(error) => assert_eq!(
                (misfit(&error), expected),
                (0, Expected::DoesNotFit),
                "{from} {value} to {to}"
            ),
        }
    }
    let double =
        convert(from, Dtype::F64, Overflow::Error, &bytes).unwrap().into_vec::<f64>().unwrap();
    assert_eq!(double, [value as f64], "{from} {value}");
}

#[test]
fn integers_are_rounded_once() {
    let powers = (0..64).flat_map(|power| [(1_i128 << power) - 1, 1 << power, (1 << power) + 1]);
    // One more than a midpoint of two F16, BF16 or F32 numbers. Rounding to f64 or f32 first would
    // give the midpoint.
    let ties = [11, 8, 24].into_iter().flat_map(|digits| {
        (digits + 1..63).map(move |power| (1_i128 << power) + (1_i128 << (power - digits)) + 1)
    });
    let values: Vec<i128> =
        powers.chain(ties).chain(limits()).flat_map(|value| [value, -value]).collect();
    for (from, low, high) in INTEGERS {
        values
            .iter()
            .filter(|value| (low..=high).contains(value))
            .for_each(|&value| check_floats(from, value));
    }
}

#[test]
fn only_floats_without_a_fraction_become_integers() {
    for (to, low, high) in INTEGERS {
        let candidates =
            [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, f64::NAN, f64::INFINITY, f64::from_bits(1), 1e300];
        let limits = limits()
            .map(|value| value as f64)
            .flat_map(|value| [value.next_down(), value, value.next_up()]);
        for value in candidates.into_iter().chain(limits) {
            let integral = value.fract() == 0.0 && value.abs() < 1e30;
            let fits = integral && (low..=high).contains(&(value as i128));
            for overflow in POLICIES {
                match convert(Dtype::F64, to, overflow, &value.to_le_bytes()) {
                    Ok(buf) => {
                        assert!(fits, "{value:?} {to}");
                        assert_eq!(file_bytes(&buf), bytes(to, value as i128), "{value:?} {to}");
                    }
                    Err(error) => {
                        assert!(!fits, "{value:?} {to}");
                        assert_eq!(
                            error.to_string(),
                            format!("the value {value:?} of element 0 does not fit {to}")
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn narrow_floats_become_integers() {
    let halves = [-2048.0, 7.0, 65504.0].map(f16::from_f32).to_vec();
    assert_eq!(converted::<_, i32>(halves), [-2048, 7, 65504]);
    let packed = convert(Dtype::F4, Dtype::I8, Overflow::Ieee, &[0x20, 0xf7]).unwrap();
    assert_eq!(packed.into_vec::<i8>().unwrap(), [0, 1, 6, -6]);
    let error = convert(Dtype::F4, Dtype::I8, Overflow::Ieee, &[0x20, 0x17]).unwrap_err();
    assert_eq!(error.to_string(), "the value 0.5 of element 3 does not fit I8");
    let bits = convert(Dtype::BF16, Dtype::BOOL, Overflow::Ieee, &[0x80, 0x3f, 0, 0x80]).unwrap();
    assert_eq!(bits.into_vec::<bool>().unwrap(), [true, false]);
    let error =
        convert(Dtype::BF16, Dtype::BOOL, Overflow::Ieee, &[0x80, 0x3f, 0x80, 0xbf]).unwrap_err();
    assert_eq!(error.to_string(), "the value -1.0 of element 1 does not fit BOOL");
}

#[test]
fn a_bool_buffer_has_only_0_and_1_after_a_failure() {
    let mut out = TensorBuf::from_vec(vec![2], vec![true; 2]).unwrap();
    let view = TensorView::from_slice(&[2], &[1_i8, 7]).unwrap();
    let error = view.convert_into(&mut out, &ConvertOptions::new()).unwrap_err();
    assert_eq!(misfit(&error), 1);
    assert!(out.bytes().iter().all(|&byte| byte <= 1), "{:?}", out.bytes());
    assert!(out.as_slice::<bool>().is_ok());
}

#[test]
fn bool_bytes_other_than_0_and_1_are_refused() {
    let mut bytes = vec![1; 3_000];
    bytes[2_500] = 2;
    for to in [Dtype::BOOL, Dtype::U8, Dtype::F32] {
        refused!(
            convert(Dtype::BOOL, to, Overflow::Ieee, &bytes),
            ErrorKind::InvalidBool { index: 2_500, found: 2 }
        );
    }
}

proptest! {
    #[test]
    fn any_integer(value in any::<i64>(), shift in 0..64_u32) {
        check_floats(Dtype::I64, (value >> shift).into());
        check_floats(Dtype::U64, (value as u64 >> shift).into());
    }
}
