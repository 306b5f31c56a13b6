//! A quantised Llama of a GGUF file, from the disk or from an address, in candle.
//!
//! ```text
//! cargo run --release -p model-examples --example candle_gguf
//! cargo run --release -p model-examples --example candle_gguf -- MODEL [PROMPT]
//! ```
//!
//! `MODEL` is a path, or an address such as `hf://owner/name/model.gguf`, of a model of the Llama
//! family. The example prints the most likely next tokens. It reads the tensors by ranges, and
//! writes nothing.
//!
//! Without arguments it needs no network. A small random model is written, and served by the server
//! that the tests of `safetensors-hub` use. The example ends with an error unless the logits of the
//! file, of the address and of candle's own reader are the same bits.

#[path = "../../../extras/hub/tests/it/server/mod.rs"]
mod server;

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use model_examples::llama::{PROMPT, TOKENS, add, are_same, largest, print_likeliest};
use safetensors_bridge::candle::gguf::GgufFile;
use safetensors_bridge::checkpoint::store::Store;
use safetensors_bridge::remote::{RemoteOptions, RemoteStore};
use server::Server;
use server::repo::Repo;
use tokenizers::Tokenizer;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(model) => of_a_model(&model, &arguments.next().unwrap_or_else(|| PROMPT.into())),
        None => of_a_small_model(),
    }
}

/// Opens the file of an address; a path is an address, too.
fn open(address: &str, options: &RemoteOptions) -> Result<GgufFile> {
    let store = RemoteStore::new(address, options)?;
    Ok(GgufFile::from_source(store.open(&store.path())?, store.path())?)
}

/// Prints the most likely next tokens after a prompt.
fn of_a_model(address: &str, prompt: &str) -> Result<()> {
    let begun = Instant::now();
    let file = open(address, &RemoteOptions::new())?;
    let content = file.content()?;
    let tokenizer = Tokenizer::from_gguf(&content)?;
    let model = ModelWeights::from_gguf(content, &mut file.reader(), &Device::Cpu)?;
    println!("{} tensors in {:.1?}", file.names().count(), begun.elapsed());

    let tokens = tokenizer.encode(prompt, true).map_err(anyhow::Error::from_boxed)?;
    print_likeliest(prompt, logits(model, tokens.get_ids())?, &tokenizer)
}

/// Returns the logits of the token that follows.
fn logits(mut model: ModelWeights, tokens: &[u32]) -> Result<Vec<f32>> {
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    Ok(model.forward(&tokens, 0)?.squeeze(0)?.to_vec1()?)
}

/// Compares the logits of three ways to load a small model.
fn of_a_small_model() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    write_model(&path)?;

    let mut reader = File::open(&path)?;
    let content = Content::read(&mut reader)?;
    let expected = logits(ModelWeights::from_gguf(content, &mut reader, &Device::Cpu)?, &TOKENS)?;
    largest(&expected)?;

    let file = GgufFile::open(&path)?;
    let model = ModelWeights::from_gguf(file.content()?, &mut file.reader(), &Device::Cpu)?;
    let found = logits(model, &TOKENS)?;
    println!("{} logits of {} tensors of a file", found.len(), file.names().count());
    ensure!(are_same(&found, &expected), "the model of a file has other logits");

    let repo = Repo::new([("model.gguf", std::fs::read(&path)?)]);
    let server = Server::start([("owner/small-llama", repo)]);
    let options = RemoteOptions::new().option("endpoint", &server.endpoint);
    let file = open("hf://owner/small-llama/model.gguf", &options)?;
    let model = ModelWeights::from_gguf(file.content()?, &mut file.reader(), &Device::Cpu)?;
    let found = logits(model, &TOKENS)?;
    println!("{} logits by {} requests for ranges", found.len(), server.log().len());
    ensure!(are_same(&found, &expected), "the model of an address has other logits");
    Ok(())
}

/// Writes a model with tensors of all kinds of types.
fn write_model(path: &Path) -> Result<()> {
    let mut tensors = Vec::new();
    let mut types = Vec::new();
    add(&mut tensors, "token_embd.weight", &[96, 256])?;
    types.push(GgmlDType::Q4_0);
    for layer in 0..2 {
        for (name, shape, dtype) in [
            ("attn_norm", &[256][..], GgmlDType::F32),
            ("ffn_down", &[256, 512], GgmlDType::Q6K),
            ("ffn_gate", &[512, 256], GgmlDType::Q4K),
            ("ffn_up", &[512, 256], GgmlDType::Q5_1),
            ("ffn_norm", &[256], GgmlDType::F32),
            ("attn_k", &[128, 256], GgmlDType::Q8_0),
            ("attn_output", &[256, 256], GgmlDType::Q5K),
            ("attn_q", &[256, 256], GgmlDType::Q3K),
            ("attn_v", &[128, 256], GgmlDType::F16),
        ] {
            add(&mut tensors, &format!("blk.{layer}.{name}.weight"), shape)?;
            types.push(dtype);
        }
    }
    add(&mut tensors, "output_norm.weight", &[256])?;
    types.push(GgmlDType::F32);
    add(&mut tensors, "output.weight", &[96, 256])?;
    types.push(GgmlDType::Q2K);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.block_count", Value::U32(2)),
        ("llama.embedding_length", Value::U32(256)),
        ("llama.rope.dimension_count", Value::U32(64)),
    ];
    let metadata = metadata.each_ref().map(|(key, value)| (*key, value));
    let quantised = tensors.iter().zip(types).map(|((_, it), dtype)| QTensor::quantize(it, dtype));
    let quantised = quantised.collect::<candle_core::Result<Vec<_>>>()?;
    let named = tensors.iter().zip(&quantised).map(|((name, _), tensor)| (name.as_str(), tensor));
    let named: Vec<_> = named.collect();
    Ok(gguf_file::write(&mut File::create(path)?, &metadata, &named)?)
}

#[test]
fn logits_equal_candles_reader() {
    of_a_small_model().unwrap();
}
