//! Files of PyTorch: archives, legacy files, TorchScript, and an index with its shards.

use super::pickle::{self, Pickle, REPEATED, SHARED_PARTS, TENSOR};
use super::zipped::archive;
use super::{FOREIGN, Files, Format, Part, plain};

/// An archive as `torch.save` writes it.
pub(super) const ARCHIVE: Format = Format {
    name: "PyTorch archive",
    repeated: REPEATED,
    shared: SHARED_PARTS,
    write: |parts| Files::one("a.pt", saved(&pickled(parts), parts, false)),
    ..FOREIGN
};

/// Archives with members that are all deflated. Only other programs write these.
pub(super) const DEFLATED: Format = Format {
    name: "PyTorch archive, deflated",
    write: |parts| Files::one("a.pt", saved(&pickled(parts), parts, true)),
    ..ARCHIVE
};

/// A file of PyTorch 0.1.10 to 1.5.
pub(super) const LEGACY: Format =
    Format { name: "PyTorch legacy", write: |parts| Files::one("a.pt", legacy(parts)), ..ARCHIVE };

/// Modules, also frozen ones with tensors that are constants.
pub(super) const SCRIPT: Format = Format {
    name: "TorchScript",
    repeated: "attributes, listed, classes, modules, constants, nested, lines, members",
    shared: "one module, one constant, one tensor, one class, one list",
    write: |parts| Files::one("a.pt", script(parts)),
    ..FOREIGN
};

/// `pytorch_model.bin.index.json` and its shards.
pub(super) const INDEX: Format = Format {
    name: "PyTorch index",
    repeated: "names, shards, metadata, nested, values, aliases, full shards, one shard",
    shared: "itself, kept name",
    write: index,
    ..FOREIGN
};

/// Returns the elements of the storage that the tensors of these parts share.
pub(super) fn elements(parts: &[Part]) -> usize {
    let tensors = parts.iter().filter(|part| part.what == "tensors");
    tensors.map(|part| part.count).max().unwrap_or(0).max(1)
}

pub(super) fn pickled(parts: &[Part]) -> Vec<u8> {
    pickle::object(parts, "0", elements(parts))
}

/// An archive with this pickle.
pub(super) fn saved(pickled: &[u8], parts: &[Part], is_deflated: bool) -> Vec<u8> {
    let storage = vec![0; elements(parts) * 4];
    let members: [(&str, &[u8]); 4] = [
        ("archive/data.pkl", pickled),
        ("archive/byteorder", b"little"),
        ("archive/data/0", &storage),
        ("archive/version", b"3\n"),
    ];
    archive(members.map(|(name, bytes)| (name.into(), bytes)), is_deflated)
}

fn legacy(parts: &[Part]) -> Vec<u8> {
    let elements = elements(parts);
    let mut file = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    file.extend(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.");
    // A storage has a sixth field there: the view.
    let sixth = [b"tQ".as_slice(), &[]].concat();
    let pickled = pickled(parts);
    let at = pickled.windows(2).position(|two| two == sixth).unwrap_or(0);
    file.extend([&pickled[..at], b"N", &pickled[at..]].concat());
    file.extend(b"\x80\x02]X\x01\0\0\x000a.");
    file.extend((elements as u64).to_le_bytes());
    file.resize(file.len() + elements * 4, 0);
    file
}

fn script(parts: &[Part]) -> Vec<u8> {
    let (mut code, mut classes) = (String::new(), String::new());
    let (mut constants, mut root) = (Pickle::new(), Pickle::new());
    let mut members = Vec::new();
    for pickle in [&mut constants, &mut root] {
        pickle.prelude("0", 1);
    }
    constants.op(b"(");
    root.global("__torch__", "M").op(b")\x81}(");
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, .. } = *part;
        let field = format!("field{number}");
        match what {
            "attributes" => part.names().for_each(|name| _ = root.text(&name).tensor(0)),
            "one tensor" => {
                root.text(&part.text()).get(TENSOR).named(count, TENSOR);
            }
            "listed" => part.names().for_each(|name| code.push_str(&format!("\"{name}\", "))),
            "classes" => {
                part.names().for_each(|name| classes.push_str(&format!("class {name}(Module):\n")))
            }
            "lines" => part.names().for_each(|name| classes.push_str(&format!("  {name}\n"))),
            "modules" => part.names().for_each(|name| {
                root.text(&name)
                    .global("__torch__", "N")
                    .op(b")\x81}")
                    .text("w")
                    .get(TENSOR)
                    .op(b"sb");
            }),
            "nested" => {
                part.names().for_each(|name| {
                    root.text(&name).global("__torch__", "N").op(b")\x81}(");
                });
                root.text("w").get(TENSOR).times(count, b"ub");
            }
            "one module" => {
                root.text(&field).global("__torch__", "N").op(b")\x81}").text(&part.text());
                root.get(TENSOR).op(b"sb").put(9).named(count, 9);
            }
            "one class" => {
                root.text(&field).global("__torch__", &part.text()).put(9);
                for number in 0..count {
                    root.text(&format!("z{number:x}")).get(9).op(b")\x81}b");
                }
            }
            "one list" => {
                root.text(&field).list(part.len, b"h\0").put(9).named(count, 9);
            }
            "constants" => (0..count).for_each(|_| _ = constants.tensor(0)),
            "one constant" => _ = constants.times(count, b"h\0"),
            _ => {
                let part = part.at_most(60_000);
                members.extend(part.names().map(|name| format!("archive/code/{name}.py")));
            }
        }
    }
    root.op(b"ub.");
    constants.op(b"t.");
    let list = "  __parameters__ = [";
    code = format!(
        "class M(Module):\n{list}{code}]\n  __buffers__ = []\nclass N(Module):\n{list}\"w\", ]\n{classes}"
    );
    let storage = [0; 4];
    let all: [(&str, &[u8]); 6] = [
        ("archive/data.pkl", &root.0),
        ("archive/constants.pkl", &constants.0),
        ("archive/code/__torch__.py", code.as_bytes()),
        ("archive/data/0", &storage),
        ("archive/constants/0", &storage),
        ("archive/version", b"3\n"),
    ];
    let all = all.map(|(name, bytes)| (name.to_owned(), bytes));
    archive(all.into_iter().chain(members.into_iter().map(|name| (name, &b""[..]))), false)
}

/// The tensor that each index names.
const WEIGHT: Part = Part { what: "aliases", count: 1, len: 1 };

fn index(parts: &[Part]) -> Files {
    let tensor = [Part { what: "aliases", count: 0, len: 0 }, WEIGHT];
    let weight = ("1.a0", saved(&pickled(&tensor), &[], false));
    plain::indexed(parts, "pytorch_model.bin.index.json", ".bin", weight, |index, number, part| {
        let Part { what, count, len } = part;
        let aliases = Part { what: "aliases", count: count + len / 8, len: 4 };
        // Each name of a shard needs the tensor to be there.
        let (shards, inner) = match what {
            "names" => {
                return index.map.extend(part.names().map(|name| (name, "w.bin".to_owned())));
            }
            "full shards" => (count.min(100), aliases),
            _ => (1, part),
        };
        let bytes = saved(&pickled(&[inner]), &[], shards > 1);
        let names: Vec<_> = match what {
            "kept name" => vec!["z0".to_owned()],
            _ => inner.names().take(shards).collect(),
        };
        for (shard, tensor) in names.iter().enumerate() {
            index.add(format!("0.{tensor}"), format!("{number}-{shard}.bin"), bytes.clone());
        }
    })
}
