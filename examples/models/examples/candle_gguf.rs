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
use safetensors_bridge::candle::gguf::GgufFile;
use safetensors_bridge::checkpoint::store::Store;
use safetensors_bridge::remote::{RemoteFile, RemoteOptions, RemoteStore};
use server::Server;
use server::repo::Repo;
use tokenizers::Tokenizer;

const PROMPT: &str = "The capital of France is";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(model) => of_a_model(&model, &arguments.next().unwrap_or_else(|| PROMPT.into())),
        None => of_a_small_model(),
    }
}

/// Opens the file of an address; a path is an address, too.
fn open(address: &str, options: &RemoteOptions) -> Result<GgufFile<RemoteFile>> {
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
    let mut ranked: Vec<_> = (0_u32..).zip(logits(model, tokens.get_ids())?).collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (token, logit) in &ranked[..ranked.len().min(5)] {
        let word = tokenizer.decode(&[*token], false).map_err(anyhow::Error::from_boxed)?;
        println!("{logit:8.3}  {prompt}{word}");
    }
    Ok(())
}

/// The logits of the token that follows.
fn logits(mut model: ModelWeights, tokens: &[u32]) -> Result<Vec<f32>> {
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    Ok(model.forward(&tokens, 0)?.squeeze(0)?.to_vec1()?)
}

const TOKENS: [u32; 6] = [3, 14, 15, 92, 65, 35];

/// Compares the logits of three ways to load a small model.
fn of_a_small_model() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    write_model(&path)?;

    let mut reader = File::open(&path)?;
    let content = Content::read(&mut reader)?;
    let expected = logits(ModelWeights::from_gguf(content, &mut reader, &Device::Cpu)?, &TOKENS)?;
    let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    let same = |found: &[f32]| {
        let bits = |logits: &[f32]| logits.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        bits(found) == bits(&expected)
    };

    let file = GgufFile::open(&path)?;
    let model = ModelWeights::from_gguf(file.content()?, &mut file.reader(), &Device::Cpu)?;
    let found = logits(model, &TOKENS)?;
    println!("{} logits of {} tensors of a file", found.len(), file.names().count());
    ensure!(same(&found), "the model of a file has other logits");

    let repo = Repo::new([("model.gguf", std::fs::read(&path)?)]);
    let server = Server::start([("owner/small-llama", repo)]);
    let options = RemoteOptions::new().option("endpoint", &server.endpoint);
    let file = open("hf://owner/small-llama/model.gguf", &options)?;
    let model = ModelWeights::from_gguf(file.content()?, &mut file.reader(), &Device::Cpu)?;
    let found = logits(model, &TOKENS)?;
    println!("{} logits by {} requests for ranges", found.len(), server.log().len());
    ensure!(same(&found), "the model of an address has other logits");
    Ok(())
}

/// Writes a model whose tensors have types of all kinds.
fn write_model(path: &Path) -> Result<()> {
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    let mut add = |name: String, shape: &[usize], dtype: GgmlDType| -> Result<()> {
        let seed = tensors.len() as f32;
        let value = |i: usize| {
            let value = (i as f32 * 0.7 + seed).sin();
            if shape.len() == 1 { 1.0 + 0.1 * value } else { 0.2 * value }
        };
        let values = (0..shape.iter().product()).map(value).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
        tensors.push((name, QTensor::quantize(&tensor, dtype)?));
        Ok(())
    };
    add("token_embd.weight".into(), &[96, 256], GgmlDType::Q4_0)?;
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
            add(format!("blk.{layer}.{name}.weight"), shape, dtype)?;
        }
    }
    add("output_norm.weight".into(), &[256], GgmlDType::F32)?;
    add("output.weight".into(), &[96, 256], GgmlDType::Q2K)?;
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
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Ok(gguf_file::write(&mut File::create(path)?, &metadata, &named)?)
}

#[test]
fn the_logits_are_those_of_candles_own_reader() {
    of_a_small_model().unwrap();
}
