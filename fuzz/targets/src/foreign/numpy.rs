//! Arrays of NumPy, and archives of them.

use super::zipped::archive;
use super::{Files, Format, Part, open};

/// One array.
pub(super) const NPY: Format = Format {
    name: "npy",
    repeated: &["dims", "spaces", "fields", "nested", "digits", "claims"],
    shared: &["text"],
    each: 8,
    write: |parts| Files::one("a.npy", npy(parts)),
    open: open::foreign,
};

/// Archives of stored members.
pub(super) const NPZ: Format = Format {
    name: "npz",
    repeated: &["arrays", "folders", "dims", "spaces", "digits", "one name"],
    shared: &["one array"],
    each: 8,
    write: |parts| npz(parts, false),
    open: open::foreign,
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
    let mut members: Vec<(String, Vec<u8>)> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, len } = *part;
        // Each member has a long header of its own.
        let mut each = |shape: &str| {
            let bytes = array(&format!("0,{}", shape.repeat(len)), "");
            members.extend((0..count).map(|i| (format!("{number}-{i:x}.npy"), bytes.clone())));
        };
        match what {
            "arrays" => {
                let empty = array("0,", "");
                members
                    .extend(part.names().map(|name| (format!("{name:.60000}.npy"), empty.clone())));
            }
            "folders" => {
                members.extend(part.names().map(|name| (format!("{name:.60000}/"), Vec::new())));
            }
            "dims" => each("1,"),
            "spaces" => each(" "),
            "digits" => each("0"),
            "one array" => members.push((format!("{number}"), array(&"1,".repeat(len), ""))),
            _ => {
                let name = part.text();
                let names = (0..count).map(|i| format!("{name:.60000}/{i:x}.npy"));
                members.extend(names.map(|name| (name, array("0,", ""))));
            }
        }
    }
    Files::one(
        "a.npz",
        archive(members.iter().map(|(name, bytes)| (name.clone(), &**bytes)), is_deflated),
    )
}
