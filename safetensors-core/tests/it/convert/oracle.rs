//! An oracle for rounding: searches all numbers of a format for the one nearest to a value.

use std::cmp::Ordering;

use crate::support::*;

/// The parameters of a format, from its specification.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// The largest code of a finite number, without sign.
    pub(crate) largest: u64,
    has_infinity: bool,
    has_negative_zero: bool,
}

/// The result that encoding must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Code(u64),
    Nan,
    DoesNotFit,
}

/// A value that is to be encoded, exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exact {
    Float(f64),
    Integer(i128),
}

/// The targets that the search can handle. F64 is missing, because its midpoints are not f64
/// numbers.
pub(crate) const TARGETS: [Dtype; 7] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::BF16,
    Dtype::F8_E4M3,
    Dtype::F8_E5M2,
    Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ,
];

impl Format {
    pub(crate) fn new(dtype: Dtype) -> Self {
        let (exponent_bits, mantissa_bits, bias, largest, has_infinity, has_negative_zero) =
            match dtype {
                Dtype::F32 => (8, 23, 127, 0x7f7f_ffff, true, true),
                Dtype::BF16 => (8, 7, 127, 0x7f7f, true, true),
                Dtype::F16 => (5, 10, 15, 0x7bff, true, true),
                Dtype::F8_E4M3 => (4, 3, 7, 0x7e, false, true),
                Dtype::F8_E5M2 => (5, 2, 15, 0x7b, true, true),
                Dtype::F8_E4M3FNUZ => (4, 3, 8, 0x7f, false, false),
                Dtype::F8_E5M2FNUZ => (5, 2, 16, 0x7f, false, false),
                Dtype::F6_E2M3 => (2, 3, 1, 0x1f, false, true),
                Dtype::F6_E3M2 => (3, 2, 3, 0x1f, false, true),
                Dtype::F4 => (2, 1, 1, 0x7, false, true),
                _ => panic!("{dtype}"),
            };
        Self { exponent_bits, mantissa_bits, bias, largest, has_infinity, has_negative_zero }
    }

    pub(crate) fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Returns the number of a code without sign. Also the number that the code after the largest
    /// would have.
    pub(crate) fn magnitude(self, code: u64) -> f64 {
        let exponent = (code >> self.mantissa_bits) as i32;
        let mantissa = (code & ((1 << self.mantissa_bits) - 1)) as f64;
        let power = exponent.max(1) - self.bias - self.mantissa_bits as i32;
        // Two to this power, which is a normal number. The search asks for millions of them.
        let unit = f64::from_bits(((power + 1023) as u64) << 52);
        let hidden = if exponent > 0 { (1_u64 << self.mantissa_bits) as f64 } else { 0.0 };
        (hidden + mantissa) * unit
    }

    /// The value of any code.
    pub(crate) fn decode(self, code: u64) -> f64 {
        let magnitude = code & (self.sign_bit() - 1);
        if !self.has_negative_zero && code == self.sign_bit() {
            return f64::NAN;
        }
        let value = match magnitude {
            _ if magnitude <= self.largest => self.magnitude(magnitude),
            _ if self.has_infinity && magnitude == self.largest + 1 => f64::INFINITY,
            _ => f64::NAN,
        };
        if code & self.sign_bit() == 0 { value } else { -value }
    }

    pub(crate) fn encode(self, value: Exact, overflow: Overflow) -> Expected {
        self.encode_as(self.nearest(value), value, overflow)
    }

    /// Encodes a value for which [`Self::nearest`] has found this code.
    pub(crate) fn encode_as(self, code: u64, value: Exact, overflow: Overflow) -> Expected {
        if value.is_nan() {
            return Expected::Nan;
        }
        let sign = if value.is_negative() { self.sign_bit() } else { 0 };
        if code <= self.largest {
            let positive = code == 0 && !self.has_negative_zero;
            return Expected::Code(if positive { 0 } else { sign | code });
        }
        match overflow {
            Overflow::Saturate => Expected::Code(sign | self.largest),
            Overflow::Ieee if self.has_infinity => Expected::Code(sign | (self.largest + 1)),
            Overflow::Ieee => Expected::Nan,
            Overflow::Error if self.has_infinity && value.is_infinite() => {
                Expected::Code(sign | (self.largest + 1))
            }
            Overflow::Error => Expected::DoesNotFit,
        }
    }

    /// Returns the code of the number that is nearest to the magnitude of the value. For two that
    /// are equally near, the even one. `largest + 1` means overflow, or NaN.
    pub(crate) fn nearest(self, value: Exact) -> u64 {
        if value.is_nan() {
            return self.largest + 1;
        }
        // The first code with a number that is larger than the value.
        let (mut low, mut high) = (0, self.largest + 2);
        while low < high {
            let middle = (low + high) / 2;
            if value.compare(self.magnitude(middle)) == Ordering::Less {
                high = middle
            } else {
                low = middle + 1
            }
        }
        if low == self.largest + 2 {
            return self.largest + 1;
        }
        let (below, above) = (low - 1, low);
        match value.compare((self.magnitude(below) + self.magnitude(above)) / 2.0) {
            Ordering::Less => below,
            Ordering::Greater => above,
            Ordering::Equal => below + (below & 1),
        }
    }
}

impl Exact {
    fn is_nan(self) -> bool {
        matches!(self, Self::Float(value) if value.is_nan())
    }

    fn is_infinite(self) -> bool {
        matches!(self, Self::Float(value) if value.is_infinite())
    }

    fn is_negative(self) -> bool {
        match self {
            Self::Float(value) => value.is_sign_negative(),
            Self::Integer(value) => value < 0,
        }
    }

    /// Compares the magnitude with a number that is not negative.
    fn compare(self, other: f64) -> Ordering {
        match self {
            Self::Float(value) => value.abs().partial_cmp(&other).unwrap(),
            Self::Integer(value) => match value.abs().cmp(&(other as i128)) {
                Ordering::Equal if other.fract() > 0.0 => Ordering::Less,
                ordering => ordering,
            },
        }
    }
}

/// Whether a code is the expected one.
pub(crate) fn agrees(format: Format, found: u64, expected: Expected) -> bool {
    match expected {
        Expected::Code(code) => found == code,
        Expected::Nan => format.decode(found).is_nan(),
        Expected::DoesNotFit => false,
    }
}
