//! [`Header`]: the part of a `.npy` file before the elements.
//!
//! NEP 1: the bytes `\x93NUMPY`, the version, the length of the rest (little-endian, 16 bits in
//! version 1.0, later 32), and a Python dictionary of `descr`, `fortran_order` and `shape`, padded
//! with spaces to a multiple of 64. It is Latin-1, in version 3.0 UTF-8.

use std::io::{self, Read};

use safetensors_core::{Dtype, shape};

use super::descr::{self, ByteOrder};
use super::literal::{self, Value};
use crate::Limits;
use crate::error::{ErrorKind, Result};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

const ALIGN: usize = 64;

/// NumPy leaves room for the first dimension (the last in Fortran order) to grow to this many
/// digits, so that an array can be appended to in place.
const GROWTH_DIGITS: usize = 21;

/// The index that changes fastest in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last, as in safetensors.
    #[default]
    C,
    /// The first, as in Fortran.
    Fortran,
}

/// The type, shape and layout of the array in a `.npy` file.
///
/// ```
/// use safetensors_core::Dtype;
/// use safetensors_formats::Limits;
/// use safetensors_formats::npy::{Header, Order};
///
/// let bytes = Header::new(Dtype::F32, &[2, 3]).encode()?;
/// assert!(bytes[10..].starts_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)"));
///
/// let header = Header::read(&mut bytes.as_slice(), &Limits::default())?;
/// assert_eq!((header.dtype, header.shape), (Dtype::F32, vec![2, 3]));
/// assert_eq!(header.order, Order::C);
/// # Ok::<(), safetensors_formats::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The order of the elements in the file.
    pub order: Order,
    /// The order of the bytes of an element.
    pub byte_order: ByteOrder,
}

impl Header {
    /// Makes a header in C order, little-endian, as in safetensors.
    pub fn new(dtype: Dtype, shape: &[usize]) -> Self {
        let order = Order::C;
        let byte_order = ByteOrder::Little;
        Self { dtype, shape: shape.to_vec(), order, byte_order }
    }

    /// Returns the bytes of all elements.
    ///
    /// # Errors
    ///
    /// [`ShapeOverflow`](safetensors_core::ErrorKind::ShapeOverflow) above 64 bits.
    pub fn data_len(&self) -> Result<u64> {
        Ok(shape::byte_len(self.dtype, &self.shape)?)
    }

    /// Reads a header; the elements follow in the reader.
    ///
    /// Refuses a header that NumPy refuses, literals that only Python writes, such as `0x10`, and
    /// duplicate keys, of which NumPy takes the last.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io), and kinds of [`ErrorKind`] about headers.
    pub fn read(reader: &mut dyn Read, limits: &Limits) -> Result<Self> {
        let start = up_to(reader, 8)?;
        let [major, minor] = match *start {
            [ref magic @ .., major, minor] if magic == MAGIC => [major, minor],
            _ => return Err(ErrorKind::NotNpy { found: start }.into()),
        };
        let len_bytes = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => return Err(ErrorKind::UnknownVersion { major, minor }.into()),
        };
        let len = exactly(reader, len_bytes)?;
        let found = len.iter().rev().fold(0, |len, &byte| len << 8 | u64::from(byte));
        let limit = limits.header_bytes;
        if found > limit {
            return Err(ErrorKind::HeaderTooLong { limit, found }.into());
        }
        let text = exactly(reader, found)?;
        Ok(Self::parse(text, major)?)
    }

    fn parse(text: Vec<u8>, version: u8) -> Result<Self, ErrorKind> {
        let text = if version < 3 {
            text.into_iter().map(char::from).collect()
        } else {
            String::from_utf8(text).map_err(|error| ErrorKind::HeaderNotUtf8 {
                offset: error.utf8_error().valid_up_to(),
            })?
        };
        let value = literal::parse(&text, version < 3).map_err(|error| match error {
            // In Latin-1 a character is a byte.
            ErrorKind::BadLiteral { offset, expected, found } if version < 3 => {
                let offset = text[..offset].chars().count();
                ErrorKind::BadLiteral { offset, expected, found }
            }
            error => error,
        })?;
        let entries = match value {
            Value::Dictionary(entries) => entries,
            other => return Err(ErrorKind::NotADictionary { found: other.kind() }),
        };
        let mut fields = [("descr", None), ("fortran_order", None), ("shape", None)];
        for (key, value) in entries {
            let key = match key {
                Value::Text(key) => key,
                other => return Err(ErrorKind::UnknownKey { found: other.kind().into() }),
            };
            match fields.iter_mut().find(|(known, _)| *known == key) {
                Some((_, field @ None)) => *field = Some(value),
                Some((key, Some(_))) => return Err(ErrorKind::DuplicateKey { key }),
                None => return Err(ErrorKind::UnknownKey { found: key }),
            }
        }
        let [descr, order, shape] =
            fields.map(|(key, value)| value.ok_or(ErrorKind::MissingKey { key }));
        let shape = parse_shape(shape?)?;
        let order = match order? {
            Value::Bool(false) => Order::C,
            Value::Bool(true) => Order::Fortran,
            other => return Err(wrong("fortran_order", "True or False", other.kind())),
        };
        let (dtype, byte_order) = match descr? {
            Value::Text(descr) => descr::parse(&descr)?,
            Value::List(_) | Value::Tuple(_) => return Err(ErrorKind::Fields),
            other => return Err(wrong("descr", "a string", other.kind())),
        };
        Ok(Self { dtype, shape, order, byte_order })
    }

    /// Returns the bytes before the elements, as NumPy writes them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoNumpyType`]; [`ErrorKind::HeaderTooLong`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let dtype = self.dtype;
        let descr = descr::encode(dtype, self.byte_order);
        let descr = descr.ok_or(ErrorKind::NoNumpyType { dtype })?;
        let order = if self.order == Order::C { "False" } else { "True" };
        let dims: String = match self.shape.as_slice() {
            [only] => format!("{only},"),
            dims => dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
        };
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({dims}), }}");
        let growing = match self.order {
            Order::C => self.shape.first(),
            Order::Fortran => self.shape.last(),
        };
        let room = growing.map_or(0, |dim| GROWTH_DIGITS.saturating_sub(dim.to_string().len()));
        text.extend(std::iter::repeat_n(' ', room));
        // Version 1.0, and 2.0 where its length is too small.
        let padded = |before: usize| (before + text.len() + 1).next_multiple_of(ALIGN) - before;
        let mut bytes = MAGIC.to_vec();
        let len = match u16::try_from(padded(10)) {
            Ok(len) => {
                bytes.extend([1, 0]);
                bytes.extend(len.to_le_bytes());
                len.into()
            }
            Err(_) => {
                let len = padded(12);
                let limit = u32::MAX;
                let too_long =
                    |_| ErrorKind::HeaderTooLong { limit: limit.into(), found: len as u64 };
                bytes.extend([2, 0]);
                bytes.extend(u32::try_from(len).map_err(too_long)?.to_le_bytes());
                len
            }
        };
        text.extend(std::iter::repeat_n(' ', len - text.len() - 1));
        bytes.extend(text.as_bytes());
        bytes.push(b'\n');
        Ok(bytes)
    }
}

fn parse_shape(shape: Value) -> Result<Vec<usize>, ErrorKind> {
    let dims = match shape {
        Value::Tuple(dims) => dims,
        other => return Err(wrong("shape", "a tuple", other.kind())),
    };
    let dim = |dim: Value| match dim {
        Value::Integer(digits) => digits
            .parse()
            .map_err(|_| wrong("shape", "of integers from 0 to 2^64 - 1", &shortened(&digits))),
        other => Err(wrong("shape", "of integers", other.kind())),
    };
    dims.into_iter().map(dim).collect()
}

fn shortened(digits: &str) -> String {
    const SHOWN: usize = 40;
    // Digits and a sign are one byte each.
    if digits.len() <= SHOWN { digits.into() } else { format!("{}...", &digits[..SHOWN]) }
}

fn wrong(key: &'static str, expected: &'static str, found: &str) -> ErrorKind {
    ErrorKind::WrongType { key, expected, found: found.into() }
}

fn up_to(reader: &mut dyn Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn exactly(reader: &mut dyn Read, expected: u64) -> Result<Vec<u8>> {
    let bytes = up_to(reader, expected)?;
    let found = bytes.len() as u64;
    if found == expected { Ok(bytes) } else { Err(ErrorKind::HeaderCut { expected, found }.into()) }
}

pub(crate) fn header_of_member(
    member: &mut dyn Read,
    size: u64,
    limits: &Limits,
) -> Result<(Header, u64)> {
    let mut counted = member.take(size);
    let header = Header::read(&mut counted, limits)?;
    check_length(&header, counted.limit())?;
    Ok((header, size - counted.limit()))
}

pub(super) fn check_length(header: &Header, found: u64) -> Result<()> {
    let expected = header.data_len()?;
    if expected != found {
        return Err(ErrorKind::DataLength { expected, found }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Header, ErrorKind> {
        Header::parse(text.as_bytes().to_vec(), 1)
    }

    #[test]
    fn headers_equal_numpys() {
        // np.save(f, np.zeros((2, 3), dtype='<f4'))
        let expected =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let written = Header::new(Dtype::F32, &[2, 3]).encode().unwrap();
        assert!(written.starts_with(expected) && written.ends_with(b" \n"));
        assert_eq!(written.len(), 128);
        let error = Header::new(Dtype::BF16, &[1]).encode().unwrap_err();
        assert_eq!(error.to_string(), "NumPy has no type for BF16");
    }

    #[test]
    fn written_headers_are_read() {
        for shape in [vec![], vec![7], vec![0, 3], vec![usize::MAX], vec![1; 40_000]] {
            for order in [Order::C, Order::Fortran] {
                for byte_order in [ByteOrder::Little, ByteOrder::Big] {
                    let header = Header { order, byte_order, ..Header::new(Dtype::C64, &shape) };
                    let written = header.encode().unwrap();
                    assert_eq!(written.len() % ALIGN, 0);
                    let mut reader = &*[&*written, b"data"].concat();
                    assert_eq!(Header::read(&mut reader, &Limits::default()).unwrap(), header);
                    assert_eq!(reader, b"data");
                }
            }
        }
    }

    #[test]
    fn unreadable_headers_are_refused_with_the_reason() {
        for (text, reason) in [
            ("{'descr': '<U7', 'fortran_order': False, 'shape': (), }", "no dtype in the format"),
            ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (), }", "fields"),
            ("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (), }", "fields"),
            ("{'descr': 4, 'fortran_order': False, 'shape': (), }", "string, found an integer"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "found -1"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", "tuple, found an integer"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': [6], }", "tuple, found a list"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (None,)}", "found None"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (), }", "found an integer"),
            ("{'descr': '<f4', 'fortran_order': Falsehood, 'shape': ()}", "found \"Falsehood\""),
            ("{'fortran_order': False, 'shape': ()}", "no descr"),
            ("{'descr': '<f4', 'shape': ()}", "no fortran_order"),
            ("{'descr': '<f4', 'descr': '<f8', 'shape': ()}", "descr twice"),
            ("{'descr': '<f4', 'x\\ny': 1}", r#"unknown key "x\\ny""#),
            ("{1: 1}", "unknown key \"an integer\""),
            ("(1,)", "a dictionary, found a tuple"),
            ("", "found the end"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let huge = format!("{{'shape': ({},)}}", "9".repeat(1000));
        let huge = huge.replace('}', ", 'descr': 'f4', 'fortran_order': True}");
        assert!(parse(&huge).unwrap_err().to_string().ends_with("9999..."));
    }

    #[test]
    fn truncated_and_foreign_files_are_refused_with_the_reason() {
        let whole = Header::new(Dtype::F32, &[2]).encode().unwrap();
        for len in 0..whole.len() {
            let error = Header::read(&mut &whole[..len], &Limits::default()).unwrap_err();
            let expected = match len {
                0..8 => "not a .npy file".into(),
                8..10 => format!("header should have 2 bytes, but only {} are there", len - 8),
                _ => format!("header should have 118 bytes, but only {} are there", len - 10),
            };
            assert!(error.to_string().contains(&expected), "{error}");
        }
        for (bytes, reason) in [
            (&b"\x93NUMPY\x09\x00aaaaaaaa"[..], "version 9.0"),
            (b"\x93NUMPY\x01\x01aaaaaaaa", "version 1.1"),
            (b"PK\x03\x04aaaaaaaa", "not a .npy file"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "limit of 1048576"),
            (b"\x93NUMPY\x03\x00\x03\x00\x00\x00{'\xe9", "not UTF-8 from its byte 2"),
            (b"\x93NUMPY\x01\x00\x05\x00'\xe9' 1", "at its byte 4"),
        ] {
            let error = Header::read(&mut &*bytes, &Limits::default()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
