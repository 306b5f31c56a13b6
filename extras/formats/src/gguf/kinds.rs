//! [`Type`]: GGUF's types of tensors, from one table.

use std::fmt;

use safetensors_core::{Dtype, shape};

use super::dequantize::{self, Dequantize};
use crate::tensor_file::Blocks;

/// The type of a tensor of GGUF.
///
/// ```
/// use safetensors_formats::gguf::Type;
///
/// let kind = Type::from_id(12).unwrap();
/// assert_eq!(kind.to_string(), "Q4_K");
/// assert_eq!(kind.byte_len(&[2, 256]), Some(2 * 144));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type(&'static Row);

#[derive(Debug)]
struct Row {
    id: u32,
    name: &'static str,
    /// In elements.
    len: usize,
    bytes: usize,
    values: Values,
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Row {}

#[derive(Clone, Copy, Debug)]
enum Values {
    Plain(Dtype),
    Quantised(Dequantize),
    Unknown,
}

const fn plain(id: u32, name: &'static str, bytes: usize, dtype: Dtype) -> Row {
    Row { id, name, len: 1, bytes, values: Values::Plain(dtype) }
}

const fn known(id: u32, name: &'static str, len: usize, bytes: usize, how: Dequantize) -> Row {
    Row { id, name, len, bytes, values: Values::Quantised(how) }
}

const fn unknown(id: u32, name: &'static str, len: usize, bytes: usize) -> Row {
    Row { id, name, len, bytes, values: Values::Unknown }
}

/// After `ggml.h`. Missing numbers are types that no file has any more.
static TYPES: [Row; 38] = [
    plain(0, "F32", 4, Dtype::F32),
    plain(1, "F16", 2, Dtype::F16),
    known(2, "Q4_0", 32, 18, dequantize::simple::q4_0),
    known(3, "Q4_1", 32, 20, dequantize::simple::q4_1),
    known(6, "Q5_0", 32, 22, dequantize::simple::q5_0),
    known(7, "Q5_1", 32, 24, dequantize::simple::q5_1),
    known(8, "Q8_0", 32, 34, dequantize::simple::q8_0),
    unknown(9, "Q8_1", 32, 40),
    known(10, "Q2_K", 256, 84, dequantize::k::q2_k),
    known(11, "Q3_K", 256, 110, dequantize::k::q3_k),
    known(12, "Q4_K", 256, 144, dequantize::k::q4_k),
    known(13, "Q5_K", 256, 176, dequantize::k::q5_k),
    known(14, "Q6_K", 256, 210, dequantize::k::q6_k),
    unknown(15, "Q8_K", 256, 292),
    known(16, "IQ2_XXS", 256, 66, dequantize::iq::iq2_xxs),
    known(17, "IQ2_XS", 256, 74, dequantize::iq::iq2_xs),
    known(18, "IQ3_XXS", 256, 98, dequantize::iq::iq3_xxs),
    known(19, "IQ1_S", 256, 50, dequantize::iq::iq1_s),
    known(20, "IQ4_NL", 32, 18, dequantize::other::iq4_nl),
    known(21, "IQ3_S", 256, 110, dequantize::iq::iq3_s),
    known(22, "IQ2_S", 256, 82, dequantize::iq::iq2_s),
    known(23, "IQ4_XS", 256, 136, dequantize::other::iq4_xs),
    plain(24, "I8", 1, Dtype::I8),
    plain(25, "I16", 2, Dtype::I16),
    plain(26, "I32", 4, Dtype::I32),
    plain(27, "I64", 8, Dtype::I64),
    plain(28, "F64", 8, Dtype::F64),
    known(29, "IQ1_M", 256, 56, dequantize::iq::iq1_m),
    plain(30, "BF16", 2, Dtype::BF16),
    unknown(31, "Q4_0_4_4", 32, 18),
    unknown(32, "Q4_0_4_8", 32, 18),
    unknown(33, "Q4_0_8_8", 32, 18),
    known(34, "TQ1_0", 256, 54, dequantize::other::tq1_0),
    known(35, "TQ2_0", 256, 66, dequantize::other::tq2_0),
    known(39, "MXFP4", 32, 17, dequantize::other::mxfp4),
    known(40, "NVFP4", 64, 36, dequantize::other::nvfp4),
    known(41, "Q1_0", 128, 18, dequantize::simple::q1_0),
    known(42, "Q2_0", 64, 18, dequantize::simple::q2_0),
];

/// `Q2_0` of PrismML's fork of llama.cpp, with the same number.
static LONG_Q2_0: Row = known(42, "Q2_0", 128, 34, dequantize::simple::q2_0);

impl Type {
    /// 32 bits, as a plain number.
    pub const F32: Self = Self::with_id(0);
    /// IEEE 754 half precision.
    pub const F16: Self = Self::with_id(1);
    /// Blocks of 32 numbers of 4 bits, with one scale.
    pub const Q4_0: Self = Self::with_id(2);
    /// Blocks of 32 numbers of 8 bits, with one scale.
    pub const Q8_0: Self = Self::with_id(8);
    /// The upper half of F32.
    pub const BF16: Self = Self::with_id(30);

    /// Two bits, from -1 to 2, with a scale for 64, or for 128 in files of a fork.
    pub(super) const Q2_0: [Self; 2] = [Self::with_id(42), Self(&LONG_Q2_0)];

    /// All types that can be written.
    pub const WRITTEN: [Self; 5] = [Self::Q8_0, Self::Q4_0, Self::BF16, Self::F16, Self::F32];

    const fn with_id(id: u32) -> Self {
        let mut i = 0;
        while TYPES[i].id != id {
            i += 1;
        }
        Self(&TYPES[i])
    }
}

impl Type {
    /// Returns the type of this number in a file; `None` if unknown.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.id == id).map(Self)
    }

    pub(super) fn id(self) -> u32 {
        self.0.id
    }

    pub(super) fn name(self) -> &'static str {
        self.0.name
    }

    pub(super) fn block_len(self) -> usize {
        self.0.len
    }

    pub(super) fn block_bytes(self) -> usize {
        self.0.bytes
    }

    /// Returns the bytes of a tensor. `None` if its rows are not complete blocks, or on overflow.
    pub fn byte_len(self, shape: &[usize]) -> Option<u64> {
        let is_whole = shape.last().unwrap_or(&1).is_multiple_of(self.0.len);
        let elements = shape::element_count(shape).ok().filter(|_| is_whole)?;
        (elements / self.0.len as u64).checked_mul(self.0.bytes as u64)
    }

    /// Returns the dtype of a plain type; `None` for a quantised one.
    pub fn dtype(self) -> Option<Dtype> {
        match self.0.values {
            Values::Plain(dtype) => Some(dtype),
            Values::Quantised(_) | Values::Unknown => None,
        }
    }

    /// `None` for plain and unknown types.
    pub(super) fn blocks(self) -> Option<Blocks> {
        let Row { name, len, bytes, values, .. } = *self.0;
        let Values::Quantised(dequantize) = values else { return None };
        Some(Blocks { name, len, bytes, dequantize })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_itself() {
        for (i, row) in TYPES.iter().enumerate() {
            let kind = Type::from_id(row.id).unwrap();
            assert_eq!(kind.name(), row.name, "an earlier row has this number");
            assert!(TYPES[..i].iter().all(|other| other.name != row.name && other.id < row.id));
            if let Some(dtype) = kind.dtype() {
                assert_eq!(dtype.bits() as usize, row.bytes * 8, "{kind}");
            }
        }
        assert!(Type::from_id(4).is_none() && Type::from_id(u32::MAX).is_none());
    }
}
