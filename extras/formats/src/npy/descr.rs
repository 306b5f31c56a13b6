//! NumPy's types: their dtypes and byte orders.

use safetensors_core::Dtype;

use crate::error::ErrorKind;

const TYPES: [(Dtype, &str); 13] = [
    (Dtype::BOOL, "b1"),
    (Dtype::U8, "u1"),
    (Dtype::I8, "i1"),
    (Dtype::U16, "u2"),
    (Dtype::I16, "i2"),
    (Dtype::U32, "u4"),
    (Dtype::I32, "i4"),
    (Dtype::U64, "u8"),
    (Dtype::I64, "i8"),
    (Dtype::F16, "f2"),
    (Dtype::F32, "f4"),
    (Dtype::F64, "f8"),
    (Dtype::C64, "c8"),
];

/// Types near one with a dtype.
const HINTS: [(&str, &str); 6] = [
    ("c16", "; c8 has one, and so have the real and the imaginary part"),
    ("f12", "; f8 has one"),
    ("f16", "; f8 has one"),
    ("V1", "; if it is an 8-bit float of ml_dtypes, f4 holds its values"),
    ("f1", "; if it is an 8-bit float of ml_dtypes, f4 holds its values"),
    ("V2", "; if it is the bfloat16 of ml_dtypes, f4 holds its values"),
];

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first, as in safetensors.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

/// `<`, `=`, `|` and none mean little-endian, as for NumPy on such a machine.
pub(crate) fn parse(descr: &str) -> Result<(Dtype, ByteOrder), ErrorKind> {
    let plain = descr.strip_prefix(['<', '>', '=', '|']).unwrap_or(descr);
    let order = if descr.starts_with('>') { ByteOrder::Big } else { ByteOrder::Little };
    match TYPES.iter().find(|(_, known)| *known == plain) {
        Some((dtype, _)) => Ok((*dtype, order)),
        None => {
            let hint = HINTS.iter().find(|(known, _)| *known == plain);
            let hint = hint.map_or("", |(_, hint)| hint);
            Err(ErrorKind::UnsupportedType { descr: descr.into(), hint })
        }
    }
}

/// `None` if NumPy has no such type.
pub(crate) fn encode(dtype: Dtype, order: ByteOrder) -> Option<String> {
    let (_, plain) = TYPES.iter().find(|(known, _)| *known == dtype)?;
    let order = match order {
        _ if dtype.bits() == 8 => '|',
        ByteOrder::Little => '<',
        ByteOrder::Big => '>',
    };
    Some(format!("{order}{plain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_types_are_read() {
        for (dtype, plain) in TYPES {
            for order in [ByteOrder::Little, ByteOrder::Big] {
                let written = encode(dtype, order).unwrap();
                let expected = if dtype.bits() == 8 { ByteOrder::Little } else { order };
                assert_eq!(parse(&written).unwrap(), (dtype, expected));
            }
            for other in ["=", "|", ""] {
                let descr = format!("{other}{plain}");
                assert_eq!(parse(&descr).unwrap(), (dtype, ByteOrder::Little));
            }
        }
        assert_eq!(encode(Dtype::BF16, ByteOrder::Little), None);
    }

    #[test]
    fn other_types_are_refused_and_near_ones_named() {
        for descr in ["", "<", "<<f4", "<f4 ", "f", "<F4", "<i16", "<4f4", "|O", "<U3", "<M8[s]"] {
            let error = parse(descr).unwrap_err().to_string();
            assert_eq!(error, format!("the NumPy type {descr:?} has no dtype in the format"));
        }
        for (descr, near) in [("<c16", "c8"), (">f16", "f8"), ("<V2", "bfloat16"), ("<f1", "f4")] {
            let error = parse(descr).unwrap_err().to_string();
            assert!(error.contains("has no dtype in the format; "), "{error}");
            assert!(error.contains(near), "{error}");
        }
    }
}
