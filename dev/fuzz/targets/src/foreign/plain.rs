//! Safetensors files, and the JSON next to them.

use super::{FOREIGN, Files, Format, Part, open};

/// The header of a file.
pub(super) const HEADER: Format = Format {
    name: "safetensors header",
    repeated: "tensors, metadata, attributes, aliases, dims, spaces, escapes, claims, kept name",
    shared: "one text, dimensions",
    write: |parts| Files::one("a.safetensors", header(parts)),
    open: open::safetensors,
    ..FOREIGN
};

/// The index of a sharded checkpoint.
pub(super) const INDEX: Format = Format {
    name: "sharded index",
    repeated: "names, shards, metadata, nested, values, fields, full shards, one shard",
    shared: "itself",
    write: index,
    open: open::safetensors,
    ..FOREIGN
};

/// `config.json` next to quantised weights.
pub(super) const SETTINGS: Format = Format {
    name: "config.json",
    repeated: "modules, ignored, patterns, rules, groups, own settings, nested, values, scaled, \
        large patterns",
    shared: "one pattern",
    write: settings,
    open: open::quantised,
    ..FOREIGN
};

/// A LoRA adapter and its settings.
pub(super) const ADAPTER: Format = Format {
    name: "LoRA adapter",
    repeated: "modules, ranks, alphas, whole, nested, values, settings, metadata, large patterns",
    shared: "one pattern",
    write: adapter,
    open: open::adapter,
    ..FOREIGN
};

/// A file for which a manifest is written.
pub(super) const MANIFEST: Format = Format {
    name: "kerchunk manifest",
    repeated: "tensors, groups, attributes, dims, metadata, aliases, kept name",
    shared: "parts, dimensions, wide",
    write: |parts| Files::one("a.safetensors", header(parts)),
    open: open::manifest,
    ..FOREIGN
};

/// Makes a file with this JSON and `len` bytes of data.
fn file(json: &str, len: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + len, 0);
    bytes
}

/// Returns the entry of a tensor without elements.
fn empty(name: &str) -> String {
    format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}")
}

fn header(parts: &[Part]) -> Vec<u8> {
    let (mut entries, mut metadata) = (Vec::new(), Vec::new());
    let mut spaces = String::new();
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, len } = *part;
        match what {
            "tensors" => entries.extend(part.names().map(|name| empty(&name))),
            "groups" => {
                entries.extend(part.names().map(|name| empty(&name.replace("xx", "/x"))));
            }
            "metadata" => metadata.extend(part.names().map(|name| format!("\"{name}\":\"\""))),
            "attributes" => {
                metadata.extend(part.names().map(|name| format!("\"attribute:u:{name}\":\"m\"")))
            }
            "aliases" => {
                let name = format!("kept{number}");
                entries.push(empty(&name));
                metadata.extend(part.names().map(|alias| format!("\"{alias}\":\"{name}\"")));
            }
            "dims" => {
                let dims = "0,".repeat(len.min(1000));
                entries.extend((0..count).map(|i| {
                    empty(&format!("d{number}-{i}")).replace("[0]", &format!("[{dims}0]"))
                }));
            }
            "spaces" => spaces.push_str(&" ".repeat(count * len.max(1))),
            "escapes" => entries.push(empty(&format!("e{number}{}", "\\u0001".repeat(count)))),
            "claims" => {
                entries
                    .push(empty(&format!("c{number}")).replace("0,0]", "0,18446744073709551615]"));
            }
            "kept name" => {
                entries.push(empty(&part.text()));
                let text = part.text();
                metadata.extend((0..count).map(|i| format!("\"z{number}-{i}\":\"{text}\"")));
            }
            "one text" => metadata.push(format!("\"t{number}\":\"{}\"", "\\n".repeat(len))),
            "parts" => entries.push(empty(&format!("p{number}/{}a", "a/".repeat(len)))),
            "wide" => entries.push(
                empty(&format!("{}w{number}", part.text()))
                    .replace("[0]", &format!("[{}0]", "0,".repeat(count.min(1000)))),
            ),
            _ => {
                let name = format!("u{number}");
                entries
                    .push(empty(&name).replace("[0]", &format!("[{}0]", "1,".repeat(len.min(60)))));
                let dims = "x ".repeat(len.min(60));
                metadata.push(format!("\"attribute:{name}:dimensions\":\"{dims}x\""));
            }
        }
    }
    if !metadata.is_empty() {
        entries.push(format!("\"__metadata__\":{{{}}}", metadata.join(",")));
    }
    file(&format!("{{{}}}{spaces}", entries.join(",")), 0)
}

/// An index that grows.
pub(super) struct Index {
    files: Files,
    /// Each tensor with its shard.
    pub(super) map: Vec<(String, String)>,
}

impl Index {
    /// Adds a shard that has this tensor, or others as well.
    pub(super) fn add(&mut self, tensor: impl Into<String>, shard: String, bytes: Vec<u8>) {
        self.map.push((tensor.into(), shard.clone()));
        self.files.files.push((shard, bytes));
    }
}

/// Makes an index of shards with this ending; one of them has one weight. `add` adds parts that are
/// different in each format.
pub(super) fn indexed(
    parts: &[Part],
    path: &'static str,
    ending: &str,
    (weight, shard): (&str, Vec<u8>),
    add: impl Fn(&mut Index, usize, Part),
) -> Files {
    let mut index = Index { files: Files { path, ..Files::default() }, map: Vec::new() };
    index.add(weight, format!("w{ending}"), shard);
    let (mut metadata, mut fields) = (String::new(), String::new());
    for (number, part) in parts.iter().enumerate() {
        let (count, map) = (part.count, &mut index.map);
        match part.what {
            "shards" => {
                map.extend(part.names().map(|name| (name.clone(), format!("{name}{ending}"))));
            }
            "metadata" => metadata.push_str(&quoted(part.names(), ":\"\"")),
            "nested" => metadata.push_str(&format!("\"d{number}\":{},", nested(count))),
            "values" => metadata.push_str(&format!("\"v{number}\":{},", values(count))),
            "fields" => fields.push_str(&quoted(part.names(), ":1")),
            "one shard" => {
                let shard = format!("{}{ending}", part.text());
                map.extend((0..count).map(|number| (format!("z{number:x}"), shard.clone())));
            }
            "itself" => {
                map.extend((0..count).map(|number| (format!("i{number:x}"), path.to_owned())));
            }
            _ => add(&mut index, number, *part),
        }
    }
    let entries = index.map.iter().map(|(name, shard)| format!("\"{name}\":\"{shard}\""));
    let json = format!(
        "{{{fields}\"metadata\":{{{}}},\"weight_map\":{{{}}}}}",
        list(&metadata),
        entries.collect::<Vec<_>>().join(",")
    );
    index.files.with(path, json)
}

fn index(parts: &[Part]) -> Files {
    let weight = ("w", file(&format!("{{{}}}", empty("w")), 0));
    let path = "model.safetensors.index.json";
    indexed(parts, path, ".safetensors", weight, |index, number, part| {
        let Part { what, count, len } = part;
        if what == "names" {
            let shard = format!("n{number}.safetensors");
            let entries: Vec<_> = part.names().map(|name| empty(&name)).collect();
            index.map.extend(part.names().map(|tensor| (tensor, shard.clone())));
            index.files.files.push((shard, file(&format!("{{{}}}", entries.join(",")), 0)));
            return;
        }
        let of = Part { what: "tensors", count: len / 64 + count, len: 1 };
        for shard in 0..count.min(100) {
            index.add(
                format!("t{shard:x}"),
                format!("f{number}-{shard}.safetensors"),
                header(&[of]),
            );
        }
    })
}

/// A weight of FP8 and its scale.
fn scaled(name: &str) -> String {
    let weight = format!(
        "\"{name}.weight\":{{\"dtype\":\"F8_E4M3\",\"shape\":[0,1],\"data_offsets\":[0,0]}}"
    );
    format!("{weight},{}", empty(&format!("{name}.weight_scale")).replace("[0]", "[0,1]"))
}

fn quoted<T: AsRef<str>>(texts: impl Iterator<Item = T>, after: &str) -> String {
    texts.map(|text| format!("\"{}\"{after},", text.as_ref())).collect()
}

/// Entries without the last comma.
fn list(text: &str) -> &str {
    text.trim_end_matches(',')
}

fn nested(count: usize) -> String {
    format!("{}{}", "[".repeat(count), "]".repeat(count))
}

fn values(count: usize) -> String {
    format!("[{}1]", "1,".repeat(count))
}

/// A pattern that compiles to far more than its text.
fn large(number: usize) -> String {
    format!("x{number:x}[ab]{{90000}}")
}

fn settings(parts: &[Part]) -> Files {
    let (mut entries, mut fields) = (Vec::new(), String::new());
    let (mut ignored, mut patterns, mut rules, mut groups) =
        (String::new(), String::new(), String::new(), String::new());
    let mut method = "fp8";
    for (number, part) in parts.iter().enumerate() {
        let Part { what, count, .. } = *part;
        match what {
            "modules" => entries.extend(part.names().map(|name| empty(&format!("{name}.weight")))),
            "scaled" => entries.extend(part.names().map(|name| scaled(&name))),
            "ignored" => ignored.push_str(&quoted(part.names(), "")),
            "patterns" | "large patterns" | "one pattern" => {
                method = "gemma";
                let all: Vec<_> = match what {
                    "patterns" => part.names().collect(),
                    "one pattern" => vec![part.text()],
                    _ => (0..count).map(large).collect(),
                };
                patterns.push_str(&quoted(all.iter(), ":{\"num_bits\":4}"));
            }
            "rules" => rules.push_str(&quoted(part.names(), ":{\"bits\":4}")),
            "groups" => groups.push_str(&quoted(part.names(), ":{\"weights\":{\"num_bits\":4}}")),
            "own settings" => fields.push_str(&quoted(part.names(), ":{\"bits\":4}")),
            "nested" => fields.push_str(&format!("\"d{number}\":{},", nested(count))),
            _ => fields.push_str(&format!("\"v{number}\":{},", values(count))),
        }
    }
    if !groups.is_empty() {
        fields.push_str(&format!("\"config_groups\":{{{}}},", list(&groups)));
    }
    if !rules.is_empty() {
        fields.push_str(&format!("\"dynamic\":{{{}}},", list(&rules)));
    }
    let json = format!(
        "{{\"quantization_config\":{{{fields}\"module_quant_configs\":{{{}}},\
         \"modules_to_not_convert\":[{}],\"quant_method\":\"{method}\"}}}}",
        list(&patterns),
        list(&ignored)
    );
    entries.push(scaled("model.layers.0.q_proj"));
    if method == "gemma" {
        entries.iter_mut().for_each(|entry| *entry = entry.replace("F8_E4M3", "U8"));
    }
    Files { path: "d", ..Files::default() }
        .with("d/model.safetensors", file(&format!("{{{}}}", entries.join(",")), 0))
        .with("d/config.json", json)
}

/// The entries of a header, and the length of the data.
#[derive(Default)]
struct Matrices(Vec<String>, usize);

impl Matrices {
    /// Adds a tensor of F32 of this shape.
    fn add(&mut self, name: &str, rows: usize, columns: usize) {
        let (start, end) = (self.1, self.1 + rows * columns * 4);
        self.1 = end;
        self.0.push(format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{rows},{columns}],\
             \"data_offsets\":[{start},{end}]}}"
        ));
    }

    fn file(self) -> Vec<u8> {
        file(&format!("{{{}}}", self.0.join(",")), self.1)
    }
}

fn adapter(parts: &[Part]) -> Files {
    let (mut entries, mut base) = (Matrices::default(), Matrices::default());
    let mut metadata = String::new();
    let module = |name: &str, entries: &mut Matrices, base: &mut Matrices| {
        entries.add(&format!("base_model.model.{name}.lora_A.weight"), 2, 1);
        entries.add(&format!("base_model.model.{name}.lora_B.weight"), 1, 2);
        base.add(&format!("{name}.weight"), 1, 1);
    };
    module("q", &mut entries, &mut base);
    let (mut ranks, mut alphas, mut whole, mut fields) =
        (String::new(), String::new(), String::new(), String::new());
    for part in parts {
        let Part { what, count, .. } = *part;
        match what {
            "modules" => {
                part.names().for_each(|name| module(&name, &mut entries, &mut base));
            }
            "ranks" => ranks.push_str(&quoted(part.names(), ":2")),
            "alphas" => alphas.push_str(&quoted(part.names(), ":2")),
            "whole" => whole.push_str(&quoted(part.names(), "")),
            "large patterns" => ranks.push_str(&quoted((0..count).map(large), ":2")),
            "one pattern" => alphas.push_str(&quoted([part.text()].iter(), ":2")),
            "settings" => fields.push_str(&quoted(part.names(), ":null")),
            "metadata" => metadata.push_str(&quoted(part.names(), ":\"\"")),
            "nested" => fields.push_str(&format!("\"target_modules\":{},", nested(count))),
            _ => fields.push_str(&format!("\"layers_pattern\":{},", values(count))),
        }
    }
    let json = format!(
        "{{{fields}\"rank_pattern\":{{{}}},\"alpha_pattern\":{{{}}},\"modules_to_save\":[{}],\
         \"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4}}",
        list(&ranks),
        list(&alphas),
        list(&whole)
    );
    if !metadata.is_empty() {
        entries.0.push(format!("\"__metadata__\":{{{}}}", list(&metadata)));
    }
    Files { path: "adapter", ..Files::default() }
        .with("base.safetensors", base.file())
        .with("adapter/adapter_model.safetensors", entries.file())
        .with("adapter/adapter_config.json", json)
}
