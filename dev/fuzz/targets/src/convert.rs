//! Conversion between dtypes: all pairs and policies, each element against the oracle of core's
//! tests, which searches for the nearest value.

#[path = "../../../../safetensors-core/tests/it/convert/oracle.rs"]
#[allow(dead_code, missing_docs, reason = "the tests of core use all of it")]
mod oracle;

use oracle::{Exact, Expected, Format, agrees};
use safetensors_core::convert::{Converted, Overflow, can_convert};
use safetensors_core::{
    ConvertOptions, Dtype, ErrorKind, SafeTensors, SaveOptions, TensorBuf, TensorView, serialize,
};

use crate::input::Input;

/// The most bytes of a tensor that is checked element by element.
const MOST: usize = 512;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (from, to) = (input.one_of(Dtype::ALL), input.one_of(Dtype::ALL));
    let overflow = input.one_of(&[Overflow::Ieee, Overflow::Saturate, Overflow::Error]);
    let offset = input.below(8);
    let values = input.rest();
    let values = &values[..values.len().min(MOST)];

    // As many elements as fill whole bytes, anywhere in memory.
    let bits = from.bits() as usize;
    let group = if from.is_sub_byte() { 3 } else { bits / 8 };
    let groups = values.len() / group;
    let shape = [groups * group * 8 / bits];
    let mut shifted = vec![0; offset];
    shifted.extend_from_slice(&values[..groups * group]);
    let bytes = &shifted[offset..];
    let view = TensorView::new(from, &shape, bytes).unwrap();

    let options = ConvertOptions::new().overflow(overflow).threads(1);
    let converted = view.convert(to, &options);
    if !can_convert(from, to) {
        let error = converted.unwrap_err();
        return assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }), "{error}");
    }
    let expected: Vec<Option<Wanted>> = elements(from, bytes)
        .map(|code| wanted(value(from, code), code, from, to, overflow))
        .collect();
    match &converted {
        Ok(converted) => {
            assert_eq!((converted.dtype(), converted.shape()), (to, &shape[..]));
            for ((code, wanted), old) in
                elements(to, converted.bytes()).zip(&expected).zip(elements(from, bytes))
            {
                let wanted = wanted.unwrap_or_else(|| panic!("{from} {old:#x} fits no {to}"));
                assert!(wanted.is(to, code), "{from} {old:#x} is {to} {code:#x}, not {wanted:?}");
            }
        }
        Err(error) => match error.kind() {
            ErrorKind::DoesNotFit { index, .. } | ErrorKind::InvalidBool { index, .. } => {
                let first = expected.iter().position(Option::is_none);
                assert_eq!(first, Some(*index as usize), "{error}");
            }
            _ => panic!("{error}"),
        },
    }
    in_other_ways(&view, to, &options, converted);
}

/// The other functions that convert give the same.
fn in_other_ways(
    view: &TensorView<'_>,
    to: Dtype,
    options: &ConvertOptions,
    converted: Result<TensorBuf, safetensors_core::Error>,
) {
    let saved = Converted::new(*view, to, options)
        .and_then(|source| serialize([("t", source)], &SaveOptions::new()));
    let owned = TensorBuf::from_view(view).and_then(|buf| buf.convert(to, options));
    let mut out = TensorBuf::filled_by(to, view.shape().to_vec(), |_| Ok(())).unwrap();
    let into = view.convert_into(&mut out, options);
    match converted {
        Ok(converted) => {
            assert_eq!(owned.unwrap().bytes(), converted.bytes());
            into.unwrap();
            assert_eq!(out.bytes(), converted.bytes());
            let saved = SafeTensors::parse(saved.unwrap()).unwrap();
            assert_eq!(saved.view("t").unwrap().data(), converted.bytes());
        }
        Err(error) => {
            let same = |other: &str| {
                let reason = error.to_string();
                assert!(other.ends_with(&reason), "{other:?}, expected {reason:?}");
            };
            same(&owned.unwrap_err().to_string());
            same(&into.unwrap_err().to_string());
            if view.dtype() == to {
                // Passed on as it is, whatever the bytes are.
                let saved = SafeTensors::parse(saved.unwrap()).unwrap();
                assert_eq!(saved.view("t").unwrap().data(), view.data());
            } else {
                same(&saved.unwrap_err().to_string());
            }
        }
    }
}

/// What must come out for an element.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// These bits.
    Bits(u64),
    /// Any code of NaN.
    Nan,
}

impl Wanted {
    fn is(self, to: Dtype, code: u64) -> bool {
        match self {
            Self::Bits(bits) => bits == code,
            Self::Nan if to == Dtype::F64 => f64::from_bits(code).is_nan(),
            Self::Nan => agrees(Format::of(to), code, Expected::Nan),
        }
    }
}

/// What must come out for a value; `None` for an error.
fn wanted(
    value: Option<Exact>,
    code: u64,
    from: Dtype,
    to: Dtype,
    overflow: Overflow,
) -> Option<Wanted> {
    if from == Dtype::BOOL && code > 1 {
        return None;
    }
    if from == to {
        return Some(Wanted::Bits(code));
    }
    let value = value?;
    match to {
        Dtype::F64 => Some(match value {
            Exact::Float(value) if value.is_nan() => Wanted::Nan,
            Exact::Float(value) if value.is_infinite() && overflow == Overflow::Saturate => {
                Wanted::Bits(f64::MAX.copysign(value).to_bits())
            }
            Exact::Float(value) => Wanted::Bits(value.to_bits()),
            Exact::Integer(value) => Wanted::Bits((value as f64).to_bits()),
        }),
        _ if to.is_float() => match Format::of(to).encode(value, overflow) {
            Expected::Code(code) => Some(Wanted::Bits(code)),
            Expected::Nan => Some(Wanted::Nan),
            Expected::DoesNotFit => None,
        },
        _ => integer(value, to).map(Wanted::Bits),
    }
}

/// A whole number as the bits of an integer dtype, if it has that number.
fn integer(value: Exact, to: Dtype) -> Option<u64> {
    let value = match value {
        Exact::Integer(value) => value,
        Exact::Float(value) if value.fract() == 0.0 && value.abs() <= 2_f64.powi(70) => {
            value as i128
        }
        Exact::Float(_) => return None,
    };
    let bits = to.bits();
    let range = match to {
        Dtype::BOOL => 0..=1,
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => {
            -(1_i128 << (bits - 1))..=(1_i128 << (bits - 1)) - 1
        }
        _ => 0..=(1_i128 << bits) - 1,
    };
    let mask = u64::MAX >> (64 - bits);
    range.contains(&value).then_some(value as u64 & mask)
}

/// The number that an element stands for; `None` for those that stand for none.
fn value(dtype: Dtype, code: u64) -> Option<Exact> {
    Some(match dtype {
        Dtype::BOOL | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => {
            Exact::Integer(i128::from(code))
        }
        Dtype::I8 => Exact::Integer(i128::from(code as i8)),
        Dtype::I16 => Exact::Integer(i128::from(code as i16)),
        Dtype::I32 => Exact::Integer(i128::from(code as i32)),
        Dtype::I64 => Exact::Integer(i128::from(code as i64)),
        Dtype::F64 => Exact::Float(f64::from_bits(code)),
        Dtype::F8_E8M0 if code == 255 => Exact::Float(f64::NAN),
        Dtype::F8_E8M0 => Exact::Float(2_f64.powi(code as i32 - 127)),
        Dtype::C64 => return None,
        _ => Exact::Float(Format::of(dtype).decode(code)),
    })
}

/// The bits of each element, lowest bits of a byte first.
fn elements(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let width = dtype.bits() as usize;
    let bit = move |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
    (0..bytes.len() * 8 / width)
        .map(move |element| (0..width).map(|i| bit(element * width + i) << i).sum())
}
