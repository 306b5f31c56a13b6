//! Records of burn: MessagePack, and burnpack.

use super::{FOREIGN, Files, Format, Part};

/// `NamedMpkFileRecorder`.
pub(super) const RECORD: Format = Format {
    name: "burn record",
    repeated: "tensors, parameters, modules, lists, params, numbers, list, bytes, ids, nested",
    shared: "one path, one id, one shape",
    write: |parts| Files::one("a.mpk", record(parts)),
    ..FOREIGN
};

/// burnpack.
pub(super) const PACK: Format = Format {
    name: "burnpack",
    repeated: "tensors, metadata, scalars, nested, others, dims, ids, dtypes",
    shared: "kept name, one text",
    write: |parts| Files::one("a.bpk", pack(parts)),
    ..FOREIGN
};

/// The codes of MessagePack for values with a length of four bytes.
const TEXT: u8 = 0xdb;
const LIST: u8 = 0xdd;
const MAP: u8 = 0xdf;

/// The start of a value with a length.
fn start(bytes: &mut Vec<u8>, code: u8, len: usize) {
    bytes.push(code);
    bytes.extend((len as u32).to_be_bytes());
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    match text.len() {
        len @ 0..32 => bytes.push(0xa0 | len as u8),
        len => start(bytes, TEXT, len),
    }
    bytes.extend(text.as_bytes());
}

/// A tensor without elements.
const TENSOR: &[u8] = b"\x83\xa5bytes\xc4\0\xa5shape\x91\0\xa5dtype\xa3F32";
/// The bytes before the tensor of a parameter.
const PARAMETER: &[u8] = b"\x82\xa2id\xa1a\xa5param";

fn record(parts: &[Part]) -> Vec<u8> {
    let mut file = b"\x82\xa8metadata\x81\xa7version\xa60.16.0\xa4item".to_vec();
    start(&mut file, MAP, parts.len());
    for (number, part) in parts.iter().enumerate() {
        text(&mut file, &format!("{number}"));
        let Part { what, count, len } = *part;
        let entries = |file: &mut Vec<u8>, value: &[u8]| {
            start(file, MAP, count);
            for name in part.names() {
                text(file, &name);
                file.extend(value);
            }
        };
        match what {
            "tensors" => entries(&mut file, TENSOR),
            "parameters" => entries(&mut file, &[PARAMETER, TENSOR].concat()),
            "ids" => {
                start(&mut file, MAP, count);
                for name in part.names() {
                    text(&mut file, "a");
                    file.extend(b"\x82\xa2id");
                    text(&mut file, &name);
                    file.extend(b"\xa5param\xc0");
                }
            }
            "modules" => entries(&mut file, b"\x80"),
            "numbers" => entries(&mut file, b"\x01"),
            "list" => entries_of(&mut file, count),
            "lists" => {
                file.extend(vec![0x91; count]);
                file.extend(TENSOR);
            }
            "params" => {
                (0..count).for_each(|_| file.extend(PARAMETER));
                file.extend(TENSOR);
            }
            "nested" => {
                for name in part.names() {
                    file.push(0x81);
                    text(&mut file, &name);
                }
                file.extend(TENSOR);
            }
            "bytes" => {
                file.extend(b"\x83\xa5bytes");
                start(&mut file, LIST, count);
                file.extend(vec![1; count]);
                file.extend(b"\xa5shape\x91");
                file.extend([&[0xce][..], &(count as u32).to_be_bytes()].concat());
                file.extend(b"\xa5dtype\xa2U8");
            }
            "one path" => {
                file.push(0x81);
                text(&mut file, &part.text());
                entries_of(&mut file, count);
            }
            "one id" => {
                file.extend(b"\x82\xa2id");
                text(&mut file, &part.text());
                file.extend(b"\xa5param");
                entries_of(&mut file, count);
            }
            _ => {
                file.extend(b"\x83\xa5bytes\xc4\0\xa5shape");
                start(&mut file, LIST, len);
                file.extend(vec![0; len]);
                file.extend(b"\xa5dtype\xa3F32");
            }
        }
    }
    file
}

/// A list of tensors.
fn entries_of(file: &mut Vec<u8>, count: usize) {
    start(file, LIST, count);
    (0..count).for_each(|_| file.extend(TENSOR));
}

/// The start of a value of CBOR.
fn head(bytes: &mut Vec<u8>, major: u8, number: usize) {
    match number {
        0..24 => bytes.push(major << 5 | number as u8),
        _ => {
            bytes.push(major << 5 | 26);
            bytes.extend((number as u32).to_be_bytes());
        }
    }
}

fn cbor(bytes: &mut Vec<u8>, text: &str) {
    head(bytes, 3, text.len());
    bytes.extend(text.as_bytes());
}

/// A tensor of these offsets.
fn described(bytes: &mut Vec<u8>, dims: &[usize], end: usize, id: Option<usize>) {
    head(bytes, 5, 3 + usize::from(id.is_some()));
    cbor(bytes, "dtype");
    cbor(bytes, "F32");
    cbor(bytes, "shape");
    head(bytes, 4, dims.len());
    dims.iter().for_each(|&dim| head(bytes, 0, dim));
    cbor(bytes, "data_offsets");
    head(bytes, 4, 2);
    head(bytes, 0, 0);
    head(bytes, 0, end);
    if let Some(id) = id {
        cbor(bytes, "param_id");
        head(bytes, 0, id);
    }
}

fn pack(parts: &[Part]) -> Vec<u8> {
    let (mut tensors, mut metadata, mut scalars, mut others) = (vec![], vec![], vec![], vec![]);
    let mut counts = [0; 4];
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, len } = *part;
        let named = |bytes: &mut Vec<u8>, value: &mut dyn FnMut(&mut Vec<u8>)| {
            for name in part.names() {
                cbor(bytes, &name);
                value(bytes);
            }
            count
        };
        let (which, added) = match what {
            "tensors" => (0, named(&mut tensors, &mut |bytes| described(bytes, &[0], 0, None))),
            "ids" => (0, named(&mut tensors, &mut |bytes| described(bytes, &[0], 0, Some(7)))),
            "dims" => {
                let dims = vec![0; len.min(1024)];
                (0, named(&mut tensors, &mut |bytes| described(bytes, &dims, 0, None)))
            }
            "dtypes" => {
                let added = named(&mut tensors, &mut |bytes| {
                    bytes.extend(b"\xa3\x65dtype\xa1");
                    cbor(bytes, "QFloat");
                    bytes.extend(vec![0x81; len]);
                    bytes.extend(b"\0\x65shape\x80\x6cdata_offsets\x82\0\0");
                });
                (0, added)
            }
            "kept name" => {
                cbor(&mut tensors, &part.text());
                described(&mut tensors, &[1], 4, None);
                for number in 0..count {
                    cbor(&mut tensors, &format!("z{number:x}"));
                    described(&mut tensors, &[1], 4, None);
                }
                (0, count + 1)
            }
            "metadata" => (1, named(&mut metadata, &mut |bytes| cbor(bytes, ""))),
            "one text" => {
                cbor(&mut metadata, &format!("text{number}"));
                cbor(&mut metadata, &"\u{1}".repeat(len));
                (1, 1)
            }
            "scalars" => (2, named(&mut scalars, &mut |bytes| bytes.extend(b"\xa1\x63Int\x01"))),
            "nested" => {
                cbor(&mut others, &format!("nested{number}"));
                others.extend(vec![0x81; count]);
                others.push(0);
                (3, 1)
            }
            _ => (3, named(&mut others, &mut |bytes| bytes.push(0))),
        };
        counts[which] += added;
    }
    let mut content = Vec::new();
    head(&mut content, 5, 3 + counts[3]);
    for (name, count, entries) in [
        ("tensors", counts[0], tensors),
        ("metadata", counts[1], metadata),
        ("scalars", counts[2], scalars),
    ] {
        cbor(&mut content, name);
        head(&mut content, 5, count);
        content.extend(entries);
    }
    content.extend(others);
    let mut file = b"NRUB\x01\0".to_vec();
    file.extend((content.len() as u32).to_le_bytes());
    file.extend(content);
    file.resize(file.len().next_multiple_of(256) + 4, 0);
    file
}
