//! Writing GGUF files, read back by the reader of this package. `dev/scripts/gguf_interop.py` compares
//! them with the Python package `gguf` and with llama.cpp's converter.

mod configs;
mod models;
mod tokenizers;
mod writer;

use std::fs;
use std::path::Path;

use safetensors_core::save::AtomicFile;
use safetensors_core::{Checkpoint, SaveOptions, TensorBuf};
use safetensors_formats::gguf::{Model, Notes, Type, Writer};
use safetensors_formats::{Options, Result, TensorFile};
use serde_json::{Value, json};

/// Writes the file, and opens it with numbers instead of quantised tensors.
fn written(writer: &Writer<'_>, path: &Path) -> Checkpoint<TensorFile> {
    write(writer, path).unwrap();
    safetensors_formats::open(path, &Options::new().dequantize(true)).unwrap()
}

fn write(writer: &Writer<'_>, path: &Path) -> Result<()> {
    let mut file = AtomicFile::create(path, &SaveOptions::new().durable(false)).unwrap();
    writer.write(&file, |_| ())?;
    file.commit()
}

/// Numbers between -1 and 1 that differ from tensor to tensor.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let mut state =
        name.bytes().fold(7_u32, |state, byte| state.wrapping_mul(31) + u32::from(byte));
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// The name and the shape of a tensor.
type Listed = (String, Vec<usize>);

/// Tensors of these names and shapes.
fn tensors(listed: &[Listed]) -> Vec<(String, TensorBuf)> {
    let tensor = |(name, shape): &Listed| {
        let values = numbers(name, shape.iter().product());
        (name.clone(), TensorBuf::from_vec(shape.clone(), values).unwrap())
    };
    listed.iter().map(tensor).collect()
}

/// A model of an architecture: `config.json`, and the names and shapes of its tensors.
struct Tiny {
    config: Value,
    tensors: Vec<Listed>,
}

const HIDDEN: usize = 64;
const HEAD: usize = 16;
const FEED: usize = 96;
const VOCABULARY: usize = 40;

impl Tiny {
    /// A model of two layers with these modules: their names, and rows and columns or only rows.
    fn new(class: &str, fields: Value, layer: &[(&str, &[usize])]) -> Self {
        let mut config = json!({
            "architectures": [class], "hidden_size": HIDDEN, "intermediate_size": FEED,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
            "max_position_embeddings": 128, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
            "torch_dtype": "float32",
        });
        for (key, value) in fields.as_object().unwrap() {
            config[key] = value.clone();
        }
        let mut tensors = vec![
            ("model.embed_tokens.weight".into(), vec![VOCABULARY, HIDDEN]),
            ("model.norm.weight".into(), vec![HIDDEN]),
        ];
        if config["tie_word_embeddings"] != true {
            tensors.push(("lm_head.weight".into(), vec![VOCABULARY, HIDDEN]));
        }
        for i in 0..2 {
            for (module, shape) in layer {
                tensors.push((format!("model.layers.{i}.{module}"), shape.to_vec()));
            }
        }
        Self { config, tensors }
    }

    fn llama() -> Self {
        Self::new("LlamaForCausalLM", json!({}), &attention_and_mlp())
    }

    /// Writes `config.json`, and opens it.
    fn open(&self, directory: &Path) -> Result<Model> {
        fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        Model::open(directory)
    }

    fn plan(&self, directory: &Path, kind: Type) -> Result<(Writer<'static>, Notes)> {
        self.open(directory)?.writer(tensors(&self.tensors), kind)
    }

    /// Returns the text of the error of opening or planning it.
    fn refused(&self) -> String {
        let dir = tempfile::tempdir().unwrap();
        let error = self.plan(dir.path(), Type::Q8_0).map(|_| ()).unwrap_err().to_string();
        error.replace(&dir.path().join("config.json").display().to_string(), "config.json")
    }
}

/// Returns the modules of a layer of Llama.
fn attention_and_mlp() -> [(&'static str, &'static [usize]); 9] {
    [
        ("input_layernorm.weight", &[HIDDEN]),
        ("self_attn.q_proj.weight", &[4 * HEAD, HIDDEN]),
        ("self_attn.k_proj.weight", &[2 * HEAD, HIDDEN]),
        ("self_attn.v_proj.weight", &[2 * HEAD, HIDDEN]),
        ("self_attn.o_proj.weight", &[HIDDEN, 4 * HEAD]),
        ("post_attention_layernorm.weight", &[HIDDEN]),
        ("mlp.gate_proj.weight", &[FEED, HIDDEN]),
        ("mlp.up_proj.weight", &[FEED, HIDDEN]),
        ("mlp.down_proj.weight", &[HIDDEN, FEED]),
    ]
}
