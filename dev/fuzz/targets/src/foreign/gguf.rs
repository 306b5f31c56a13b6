//! GGUF files.

use super::{FOREIGN, Files, Format, Part};

/// Keys, and tensors without elements.
pub(super) const GGUF: Format = Format {
    name: "GGUF",
    repeated: "tensors, texts, numbers, booleans, short arrays, long array, array of texts, \
        nested, arrays, empty arrays, shapes, unknown types, scales, claims",
    shared: "one key, one text",
    write: |parts| Files::one("a.gguf", gguf(parts)),
    ..FOREIGN
};

/// A file with the counts of keys and tensors that its parts have.
#[derive(Default)]
struct File {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl File {
    fn key(&mut self, name: &str, kind: u32, value: &[u8]) {
        text(&mut self.keys, name);
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
    }

    fn array(&mut self, name: &str, kind: u32, count: usize, items: &[u8]) {
        let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        self.key(name, 9, &[&head, items].concat());
    }

    fn tensor(&mut self, name: &str, kind: u32) {
        text(&mut self.tensors, name);
        self.tensors.extend(1_u32.to_le_bytes());
        self.tensors
            .extend([0_u64.to_le_bytes().as_slice(), &kind.to_le_bytes(), &[0; 8]].concat());
        self.tensor_count += 1;
    }

    fn add(&mut self, number: usize, part: Part) {
        let Part { what, count, len } = part;
        let name = format!("{number}");
        match what {
            "tensors" => part.names().for_each(|name| self.tensor(&name, 0)),
            "unknown types" => part.names().for_each(|name| self.tensor(&name, 999)),
            "scales" => part.names().for_each(|name| {
                self.tensor(&format!("{name}.weight"), 2);
                self.tensor(&format!("{name}.other"), 0);
            }),
            "shapes" => part.names().for_each(|name| {
                self.array(&format!("comfy.gguf.orig_shape.{name}"), 4, 1, &[0; 4]);
                self.tensor(&name, 0);
            }),
            "texts" => part.names().for_each(|name| {
                self.key(&name, 8, &0_u64.to_le_bytes());
            }),
            "numbers" => part.names().for_each(|name| self.key(&name, 12, &0.1_f64.to_le_bytes())),
            "booleans" => part.names().for_each(|name| self.key(&name, 7, &[1])),
            "empty arrays" => part.names().for_each(|name| self.array(&name, 0, 0, &[])),
            "short arrays" => part.names().for_each(|name| self.array(&name, 0, 64, &[0; 64])),
            "long array" => self.array(&name, 0, count, &vec![0; count]),
            "array of texts" => {
                let mut items = Vec::new();
                part.names().for_each(|item| text(&mut items, &item));
                self.array(&name, 8, count, &items);
            }
            "nested" => {
                let inner = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
                self.array(&name, 9, 1, &[inner.repeat(count), vec![0; 12]].concat());
            }
            "arrays" => self.array(&name, 9, count, &[0; 12].repeat(count)),
            "claims" => self.array(&name, 8, usize::MAX, &[0xff; 8]),
            "one key" => {
                let key = part.text();
                (0..count.min(60)).for_each(|number| self.key(&format!("{key}{number}"), 7, &[0]));
            }
            _ => {
                let mut value = Vec::new();
                text(&mut value, &"\u{1}".repeat(len));
                self.key(&name, 8, &value);
            }
        }
    }
}

fn gguf(parts: &[Part]) -> Vec<u8> {
    let mut file = File::default();
    parts.iter().enumerate().for_each(|(number, part)| file.add(number, *part));
    let File { keys, key_count, tensors, tensor_count } = file;
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([tensor_count.to_le_bytes(), key_count.to_le_bytes()].concat());
    bytes.extend([keys, tensors].concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 32, 0);
    bytes
}
