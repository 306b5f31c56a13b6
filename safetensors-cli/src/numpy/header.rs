//! The `.npy` format of NumPy, version 1.0: its header, and which dtypes it has.
//!
//! After NEP 1: the bytes `\x93NUMPY`, the version, the header's length as a little-endian `u16`,
//! and the header, which is a Python dictionary of `descr`, `fortran_order` and `shape`, padded
//! with spaces so that the data starts at a multiple of 64.

use std::io::{self, Read};

use safetensors_core::Dtype;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The data starts at a multiple of this.
const ALIGN: usize = 64;

/// Headers of other files than ours may be longer than needed, but not by this much.
const MAX_HEADER: usize = 1 << 20;

/// The array-protocol type of each dtype that NumPy has.
const TYPES: [(Dtype, &str); 13] = [
    (Dtype::BOOL, "|b1"),
    (Dtype::U8, "|u1"),
    (Dtype::I8, "|i1"),
    (Dtype::U16, "<u2"),
    (Dtype::I16, "<i2"),
    (Dtype::U32, "<u4"),
    (Dtype::I32, "<i4"),
    (Dtype::U64, "<u8"),
    (Dtype::I64, "<i8"),
    (Dtype::F16, "<f2"),
    (Dtype::F32, "<f4"),
    (Dtype::F64, "<f8"),
    (Dtype::C64, "<c8"),
];

/// What a header says of an array in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

/// The bytes before the data of an array in C order, or `None` if NumPy has no type for the dtype.
pub(super) fn header(dtype: Dtype, shape: &[usize]) -> Option<Vec<u8>> {
    let (_, descr) = TYPES.iter().find(|(known, _)| *known == dtype)?;
    let dims: String = match shape {
        [only] => format!("{only},"),
        dims => dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Magic, version and length before it, a line end after it.
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(ALIGN) - unpadded));
    text.push('\n');
    // No shape that a tensor of the format can have for real makes a header of 64 KiB; version 2.0
    // has room for those that can.
    let mut bytes = MAGIC.to_vec();
    match u16::try_from(text.len()) {
        Ok(len) => {
            bytes.extend([1, 0]);
            bytes.extend(len.to_le_bytes());
        }
        Err(_) => {
            bytes.extend([2, 0]);
            bytes.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
        }
    }
    bytes.extend(text.as_bytes());
    Some(bytes)
}

/// Reads a header; the data follows in the reader.
///
/// # Errors
///
/// Those of the reader; [`io::ErrorKind::InvalidData`] for what is no array of a known dtype in C
/// order, with the reason.
pub(super) fn read_header(reader: &mut impl Read) -> io::Result<Header> {
    let mut start = [0; 8];
    match reader.read_exact(&mut start) {
        Ok(()) if start.starts_with(MAGIC) => {}
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => return Err(invalid("not a .npy file")),
    }
    let len = match start[6] {
        1 => {
            let mut len = [0; 2];
            reader.read_exact(&mut len)?;
            u16::from_le_bytes(len).into()
        }
        2 | 3 => {
            let mut len = [0; 4];
            reader.read_exact(&mut len)?;
            u32::from_le_bytes(len) as usize
        }
        version => return Err(invalid(format!(".npy version {version} is unknown"))),
    };
    if len > MAX_HEADER {
        return Err(invalid(format!(
            "a .npy header of {len} bytes is over the limit of {MAX_HEADER}"
        )));
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(|_| invalid("the .npy header is not text"))?;
    parse(&text).map_err(invalid)
}

/// Reads the dictionary. Only what NumPy writes is understood: three keys, in any order.
fn parse(text: &str) -> Result<Header, String> {
    let field = |key: &str| {
        let quoted = [format!("'{key}':"), format!("\"{key}\":")];
        let start = quoted.iter().find_map(|quoted| text.find(quoted).map(|at| at + quoted.len()));
        start
            .map(|start| text[start..].trim_start())
            .ok_or_else(|| format!("the .npy header has no {key}"))
    };
    let descr = field("descr")?;
    let quote = descr.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let descr = quote.and_then(|quote| descr[1..].split(quote).next());
    let descr = descr.ok_or("the .npy array has fields; only plain arrays can be read")?;
    // One byte has no order, but `=` and `<` before it are the same to NumPy.
    let plain = |descr: &str| descr.trim_start_matches(['|', '<', '=']).to_owned();
    if descr.starts_with('>') {
        return Err(format!(
            "{descr:?} is big-endian; save it with .astype({:?}) first",
            descr.replace('>', "<")
        ));
    }
    let known = TYPES.iter().find(|(_, known)| plain(known) == plain(descr));
    let (dtype, _) =
        known.ok_or_else(|| format!("the NumPy type {descr:?} has no dtype in the format"))?;
    if !field("fortran_order")?.starts_with("False") {
        return Err("the array is in Fortran order; save it with np.ascontiguousarray first".into());
    }
    let shape = field("shape")?;
    let dims =
        shape.strip_prefix('(').and_then(|shape| shape.split_once(')')).map(|(dims, _)| dims);
    let dims = dims
        .ok_or("the .npy header has no shape")?
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty());
    let shape = dims.map(|dim| dim.trim_end_matches('L').parse()).collect::<Result<_, _>>();
    Ok(Header {
        dtype: *dtype,
        shape: shape.map_err(|error| format!("the shape of the .npy array: {error}"))?,
    })
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        // np.save(f, np.zeros((2, 3), dtype='<f4'))
        let expected =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let written = header(Dtype::F32, &[2, 3]).unwrap();
        assert!(written.starts_with(expected) && written.ends_with(b" \n"));
        assert_eq!(written.len(), 128);
        assert_eq!(header(Dtype::BF16, &[1]), None);
    }

    #[test]
    fn what_is_written_is_read() {
        for shape in [vec![], vec![7], vec![0, 3], vec![1; 40_000]] {
            for (dtype, _) in TYPES {
                let written = header(dtype, &shape).unwrap();
                assert_eq!(
                    written.len() % ALIGN,
                    if shape.len() > 1000 { 2 } else { 0 },
                    "{}",
                    shape.len()
                );
                let read = read_header(&mut written.as_slice()).unwrap();
                assert_eq!(read, Header { dtype, shape: shape.clone() });
            }
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, reason) in [
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (), }", "big-endian"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", "Fortran order"),
            ("{'descr': '<U7', 'fortran_order': False, 'shape': (), }", "no dtype in the format"),
            ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (), }", "fields"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "shape"),
            ("{'fortran_order': False, 'shape': ()}", "no descr"),
            ("", "no descr"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(read_header(&mut &b"\x93NUMPY\x09\x00aaaaaaaa"[..]).is_err());
        assert!(read_header(&mut &b"PK\x03\x04aaaaaaaa"[..]).is_err());
        assert!(
            read_header(&mut &b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..])
                .unwrap_err()
                .to_string()
                .contains("limit")
        );
    }
}
