//! Arrays of NumPy, and archives of them.

use super::zipped::archive;
use super::{FOREIGN, Files, Format, Part};

/// One array.
pub(super) const NPY: Format = Format {
    name: "npy",
    repeated: "dims, spaces, fields, nested, digits, claims",
    shared: "text",
    write: |parts| Files::one("a.npy", npy(parts)),
    ..FOREIGN
};

/// Archives of stored members.
pub(super) const NPZ: Format = Format {
    name: "npz",
    repeated: "arrays, folders, dims, spaces, digits, one name, references",
    shared: "one array",
    write: |parts| npz(parts, false),
    ..FOREIGN
};

/// Archives of deflated members.
pub(super) const DEFLATED: Format =
    Format { name: "npz, deflated", write: |parts| npz(parts, true), ..NPZ };

/// An array with this shape and more in its header.
fn array(shape: &str, more: &str) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}){more}}}\n");
    let len = (text.len() as u32).to_le_bytes();
    [b"\x93NUMPY\x02\0", &len[..], text.as_bytes()].concat()
}

fn npy(parts: &[Part]) -> Vec<u8> {
    let (mut shape, mut more) = (String::from("0,"), String::new());
    for part in parts {
        let Part { what, count, len } = *part;
        match what {
            "dims" => shape.push_str(&"1,".repeat(count)),
            "spaces" => shape.push_str(&" ".repeat(count * len.max(1))),
            "fields" => {
                part.names().for_each(|name| more.push_str(&format!(", '{name}': 1")));
            }
            "nested" => {
                more.push_str(&format!(", 'n': {}{}", "(".repeat(count), ")".repeat(count)));
            }
            "digits" => shape.push_str(&"9".repeat(count)),
            "claims" => shape.push_str("18446744073709551615,"),
            _ => more.push_str(&format!(", 't': '{}'", part.text())),
        }
    }
    array(&shape, &more)
}

fn npz(parts: &[Part], is_deflated: bool) -> Files {
    if let Some(part) = parts.iter().find(|part| part.what == "references") {
        return Files::one("a.npz", references(*part, &array("0,", "")));
    }
    let mut members: Vec<(String, Vec<u8>)> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, len } = *part;
        let short = part.at_most(60_000);
        // Each member has a long header.
        let mut each = |shape: &str| {
            let bytes = array(&format!("0,{}", shape.repeat(len)), "");
            members.extend((0..count).map(|i| (format!("{number}-{i:x}.npy"), bytes.clone())));
        };
        match what {
            "arrays" => {
                let empty = array("0,", "");
                members.extend(short.names().map(|name| (format!("{name}.npy"), empty.clone())));
            }
            "folders" => {
                members.extend(short.names().map(|name| (format!("{name}/"), Vec::new())));
            }
            "dims" => each("1,"),
            "spaces" => each(" "),
            "digits" => each("0"),
            "one array" => members.push((format!("{number}"), array(&"1,".repeat(len), ""))),
            _ => {
                let name = short.text();
                let names = (0..count).map(|i| format!("{name}/{i:x}.npy"));
                members.extend(names.map(|name| (name, array("0,", ""))));
            }
        }
    }
    Files::one(
        "a.npz",
        archive(members.iter().map(|(name, bytes)| (name.clone(), &**bytes)), is_deflated),
    )
}

/// An archive with one member, which its list has under many names.
fn references(part: Part, bytes: &[u8]) -> Vec<u8> {
    let names: Vec<_> =
        part.at_most(60_000).names().take(65_000).map(|name| format!("{name}.npy")).collect();
    let len = (bytes.len() as u32).to_le_bytes();
    // Version, flags, method, time, checksum, lengths, and the length of the name.
    let about = |name: &str| {
        let name_len = (name.len() as u16).to_le_bytes();
        [&b"\x14\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], &len, &len, &name_len, b"\0\0"].concat()
    };
    let mut file = b"PK\x03\x04".to_vec();
    file.extend(about("a"));
    file.extend([b"a", bytes].concat());
    let start = file.len();
    for name in &names {
        file.extend(b"PK\x01\x02\x14\0");
        file.extend(about(name));
        file.extend([0; 14]);
        file.extend(name.as_bytes());
    }
    let [list, start] = [file.len() - start, start].map(|len| (len as u32).to_le_bytes());
    let count = (names.len() as u16).to_le_bytes();
    file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &list, &start, b"\0\0"].concat());
    file
}
