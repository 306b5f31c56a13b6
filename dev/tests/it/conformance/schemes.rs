//! The table of the schemes of quantised weights, from the checkpoints that the suite has read. It is
//! in the documentation of the core's module: which tensors store a weight, and the reference that
//! its numbers equal. docs/reading.md has the ways by which all were read.
//!
//! After a change of the fixtures, `UPDATE_SCHEMES=1 cargo test --features full conformance` writes
//! both.

use std::path::Path;
use std::{env, fs};

use safetensors_bridge::quantized::QuantizedWeight;
use safetensors_testing::quantized::Quantized;

/// A fixture, its weights, and the ways that have read these.
pub(super) type Read = (Quantized, Vec<QuantizedWeight>, Vec<&'static str>);

/// The start of fixtures' names, and their description. The longest one that fits counts.
const SCHEMES: &[(&str, &str)] = &[
    ("deepseek-fp8", "DeepSeek FP8, `fp8`"),
    ("deepseek-v4-fp8", "DeepSeek-V4 FP8"),
    ("deepseek-v4-experts", "DeepSeek-V4, experts of FP4"),
    ("fp8", "FP8 with one scale, `fp8`"),
    ("mxfp8", "MXFP8 of transformers, `mxfp8`"),
    ("fbgemm", "FBGEMM FP8, `fbgemm_fp8`"),
    ("ct-float", "compressed-tensors float-quantized"),
    ("ct-int", "compressed-tensors int-quantized"),
    ("ct-naive", "compressed-tensors naive-quantized"),
    ("ct-mxfp8", "compressed-tensors mxfp8-quantized"),
    ("ct-nvfp4", "compressed-tensors nvfp4-pack-quantized"),
    ("ct-mxfp4", "compressed-tensors mxfp4-pack-quantized"),
    ("ct-mxfp6", "compressed-tensors mxfp6-pack-quantized"),
    ("ct-pack", "compressed-tensors pack-quantized, 2 to 8 bits"),
    ("modelopt-fp8", "ModelOpt FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO"),
    ("modelopt-mx", "ModelOpt MXFP8, MXFP4"),
    ("modelopt-nvfp4", "ModelOpt NVFP4"),
    ("modelopt-w4a16", "ModelOpt W4A16_AWQ"),
    ("quark-fp8", "Quark FP8, `quark`"),
    ("quark-mxfp4", "Quark MXFP4"),
    ("gpt-oss", "gpt-oss MXFP4, `mxfp4`; also by OpenAI's names"),
    ("gptq", "GPTQ, versions 1 and 2; 2, 3, 4 and 8 bits"),
    ("autoround", "AutoRound in its packing and GPTQ's"),
    ("awq", "AWQ, gemm"),
    ("bnb-nf4", "bitsandbytes NF4, also nested"),
    ("bnb-fp4", "bitsandbytes FP4"),
    ("bnb-int8", "bitsandbytes INT8"),
    ("torchao", "torchao Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor"),
    ("hqq", "HQQ, 1, 2, 3, 4 and 8 bits"),
    ("quanto-qint8", "Quanto, 8 bits"),
    ("quanto-qfloat8", "Quanto, 8 bits"),
    ("quanto-qint4", "Quanto, 2 and 4 bits"),
    ("quanto-qint2", "Quanto, 2 and 4 bits"),
    ("mlx", "MLX affine, 1 to 6 and 8 bits"),
    ("mlx-mx", "MLX mxfp4, mxfp8, nvfp4"),
    ("mlx-nv", "MLX mxfp4, mxfp8, nvfp4"),
    ("metal", "MLX affine of transformers, `metal`"),
    ("gemma", "Gemma, 2, 4 and 8 bits, `gemma`"),
    ("comfy", "ComfyUI FP8, INT8, NVFP4, MXFP8, by marks"),
    ("comfy-old", "ComfyUI FP8, by `scaled_fp8`"),
];

/// The libraries of the ways, by the start of their names. The last has all others.
const LIBRARIES: [(&str, &str); 4] =
    [("ndarray's", "ndarray"), ("candle's", "candle"), ("burn's", "burn"), ("", "core")];

/// The facts of all fixtures of a row.
#[derive(Default)]
struct Row<'a> {
    scheme: &'static str,
    /// The tensors of each weight.
    tensors: Vec<Vec<String>>,
    references: Vec<String>,
    read: Vec<&'a Read>,
}

impl<'a> Row<'a> {
    fn add(&mut self, read: &'a Read) {
        let (fixture, weights, _) = read;
        let reference = format!("`{}`", fixture.expected().metadata()["reference"]);
        if !self.references.contains(&reference) {
            self.references.push(reference);
        }
        self.tensors.extend(weights.iter().map(tensors));
        self.read.push(read);
    }

    /// Returns the tensors that every weight has, and the ones that some have.
    fn stored(&self) -> String {
        let first = &self.tensors[0];
        let is_needed = |name: &&String| self.tensors.iter().all(|names| names.contains(name));
        let needed: Vec<_> = first.iter().filter(is_needed).cloned().collect();
        let mut others = Vec::new();
        for name in self.tensors.iter().flatten() {
            if !needed.contains(name) && !others.contains(name) {
                others.push(name.clone());
            }
        }
        let between = if needed.is_empty() || others.is_empty() { "" } else { ", also " };
        format!("{}{between}{}", needed.join(", "), others.join(", "))
    }
}

/// Returns the tensors that store a weight, with `X` or `W` for its module or name.
fn tensors(weight: &QuantizedWeight) -> Vec<String> {
    let (name, letter) = match weight.name.strip_suffix(".weight") {
        Some(module) => (module, "X"),
        None => (&*weight.name, "W"),
    };
    let name_of = |tensor: &String| match tensor.strip_prefix(name) {
        Some(end) => format!("`{letter}{end}`"),
        None => format!("`{tensor}`"),
    };
    weight.tensors.iter().map(name_of).collect()
}

/// Checks that the documents have the table and the list, or writes them.
pub(super) fn check_documents(read: &[Read], ways: &[&'static str]) {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (_, scheme) in SCHEMES {
        if rows.iter().all(|row| row.scheme != *scheme) {
            rows.push(Row { scheme, ..Row::default() });
        }
    }
    for read in read {
        let name = &read.0.name;
        let fits = SCHEMES.iter().filter(|(start, _)| name.starts_with(start));
        let (_, scheme) = fits.max_by_key(|(start, _)| start.len()).unwrap_or_else(|| {
            panic!("{name} is of no scheme in dev/tests/it/conformance/schemes.rs");
        });
        rows.iter_mut().find(|row| row.scheme == *scheme).unwrap().add(read);
    }
    let mut table = String::from(
        "| scheme | stored tensors of module `X` or weight `W` | equal to |\n|---|---|---|\n",
    );
    for row in &rows {
        assert!(!row.read.is_empty(), "{} has no fixture", row.scheme);
        for (fixture, _, passed) in &row.read {
            let missing: Vec<_> = ways.iter().filter(|way| !passed.contains(way)).collect();
            assert!(missing.is_empty(), "{} was not read by {missing:?}", fixture.name);
        }
        let references = row.references.join(", ");
        table += &format!("| {} | {} | {references} |\n", row.scheme, row.stored());
    }
    let mut list = String::new();
    for library in LIBRARIES {
        let of = ways.iter().filter(|way| library_of(way) == library);
        let of: Vec<_> = of.map(|way| way.trim_start_matches(library.0).trim()).collect();
        list += &format!("- {}: {}\n", library.1, of.join(", "));
    }
    check("safetensors-core/src/weights/schemes.md", "", &table);
    check("docs/reading.md", "<!-- ways -->\n", &list);
}

/// Returns the library of a way.
fn library_of(way: &str) -> (&'static str, &'static str) {
    *LIBRARIES.iter().find(|(start, _)| way.starts_with(start)).unwrap()
}

/// Checks the text of a file of the repository between two of these marks, or writes it.
fn check(file: &str, mark: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let (before, after) = match mark {
        "" => ("", ""),
        _ => {
            let (before, rest) = text.split_once(mark).unwrap();
            (before, rest.split_once(mark).unwrap().1)
        }
    };
    let wanted = format!("{before}{mark}{expected}{mark}{after}");
    if env::var_os("UPDATE_SCHEMES").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{file} has other tables: set UPDATE_SCHEMES=1");
}
