//! From the name of a repository on the Hugging Face Hub to the logits of a Llama in candle.
//!
//! ```text
//! cargo run --release -p model-examples --example hub_to_candle
//! cargo run --release -p model-examples --example hub_to_candle -- REPOSITORY [PROMPT]
//! ```
//!
//! `REPOSITORY` is a model of the Llama family, such as `HuggingFaceTB/SmolLM2-135M`. The example
//! downloads what it needs into the cache that Python shares, and prints the most likely next
//! tokens.
//!
//! Without arguments it needs no network. A small random model comes from the server that the tests
//! of `safetensors-hub` use. The example ends with an error unless the logits of the download, of
//! the same model read by ranges, and of the original files are the same bits.

#[path = "../../../extras/hub/tests/it/server/mod.rs"]
mod server;

use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use safetensors_bridge::ShardOptions;
use safetensors_bridge::candle::{save_sharded, var_builder, var_builder_from};
use safetensors_bridge::hub::client::ClientOptions;
use safetensors_bridge::hub::{DownloadOptions, download};
use safetensors_bridge::remote::RemoteOptions;
use server::Server;
use server::repo::Repo;
use tokenizers::Tokenizer;

const PROMPT: &str = "The capital of France is";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(repo) => of_the_hub(&repo, &arguments.next().unwrap_or_else(|| PROMPT.into())),
        None => of_a_server(),
    }
}

/// Downloads a model, and prints the most likely next tokens after a prompt.
fn of_the_hub(repo: &str, prompt: &str) -> Result<()> {
    let options = DownloadOptions::new().include("config.json").include("tokenizer.json");
    let model = download(repo, &options)?;
    println!("{}", model.dir().display());
    let tokenizer = Tokenizer::from_file(model.dir().join("tokenizer.json"));
    let tokenizer = tokenizer.map_err(Error::from_boxed)?;
    let tokens = tokenizer.encode(prompt, true).map_err(Error::from_boxed)?;

    let config = config(&model.dir().join("config.json"))?;
    let weights = var_builder(&model, DType::F32, &Device::Cpu)?;
    let logits = logits(weights, config, tokens.get_ids())?;
    let mut ranked: Vec<_> = (0_u32..).zip(logits).collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (token, logit) in &ranked[..ranked.len().min(5)] {
        let word = tokenizer.decode(&[*token], false).map_err(Error::from_boxed)?;
        println!("{logit:8.3}  {prompt}{word}");
    }
    Ok(())
}

/// The configuration of a model of the Llama family.
fn config(path: &Path) -> Result<LlamaConfig> {
    let json = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&json)
        .with_context(|| format!("{} is not the configuration of a Llama", path.display()))
}

/// The logits of the token that follows.
fn logits(weights: VarBuilder<'_>, config: LlamaConfig, tokens: &[u32]) -> Result<Vec<f32>> {
    let config = config.into_config(false);
    let mut cache = Cache::new(false, DType::F32, &config, &Device::Cpu)?;
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let model = Llama::load(weights, &config)?;
    Ok(model.forward(&tokens, 0, &mut cache)?.squeeze(0)?.to_vec1()?)
}

const CONFIG: &str = r#"{
    "hidden_size": 64, "intermediate_size": 160, "vocab_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32, "rope_theta": 10000.0, "tie_word_embeddings": true
}"#;

const TOKENS: [u32; 6] = [3, 14, 15, 92, 65, 35];

/// Serves a small model, and compares the logits of three ways to load it.
fn of_a_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let original = dir.path().join("original");
    write_model(&original)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&original)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a plain name")?;
        files.push((name, std::fs::read(entry.path())?));
    }
    let names = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone()));
    let server = Server::start([("owner/small-llama", Repo::new(names))]);

    let expected = logits(
        var_builder(&original, DType::F32, &Device::Cpu)?,
        config(&original.join("config.json"))?,
        &TOKENS,
    )?;
    let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    let same = |found: &[f32]| {
        let bits = |logits: &[f32]| logits.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        bits(found) == bits(&expected)
    };

    // Downloaded; the second time from the cache alone.
    let options = DownloadOptions::new()
        .client(ClientOptions::new().endpoint(&server.endpoint))
        .cache(dir.path().join("cache"))
        .include("config.json");
    for offline in [false, true] {
        server.clear_log();
        let model = download("owner/small-llama", &options.clone().offline(offline))?;
        let config = config(&model.dir().join("config.json"))?;
        let found = logits(var_builder(&model, DType::F32, &Device::Cpu)?, config, &TOKENS)?;
        let (requests, files) = (server.log().len(), model.files().len());
        println!("{} logits of {files} files by {requests} requests", found.len());
        ensure!(same(&found), "a downloaded model has other logits");
        ensure!((requests == 0) == offline, "expected requests only if it may make them");
    }

    // Without a download: only the bytes that the model asks for.
    server.clear_log();
    let options = RemoteOptions::new().option("endpoint", &server.endpoint);
    let checkpoint = options.open("hf://owner/small-llama")?;
    let weights = var_builder_from(checkpoint, DType::F32, &Device::Cpu);
    let found = logits(weights, config(&original.join("config.json"))?, &TOKENS)?;
    println!("{} logits by {} requests for ranges", found.len(), server.log().len());
    ensure!(same(&found), "a model that is read by ranges has other logits");
    Ok(())
}

/// Writes a model of several files, and its configuration.
fn write_model(dir: &Path) -> Result<()> {
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| -> Result<()> {
        let seed = tensors.len() as f32;
        let value = |i: usize| {
            let value = (i as f32 * 0.7 + seed).sin();
            if shape.len() == 1 { 1.0 + 0.1 * value } else { 0.2 * value }
        };
        let values = (0..shape.iter().product()).map(value).collect();
        tensors.push((name, Tensor::from_vec(values, shape, &Device::Cpu)?));
        Ok(())
    };
    add("model.embed_tokens.weight".into(), &[96, 64])?;
    add("model.norm.weight".into(), &[64])?;
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", &[64][..]),
            ("self_attn.q_proj", &[64, 64]),
            ("self_attn.k_proj", &[32, 64]),
            ("self_attn.v_proj", &[32, 64]),
            ("self_attn.o_proj", &[64, 64]),
            ("post_attention_layernorm", &[64]),
            ("mlp.gate_proj", &[160, 64]),
            ("mlp.up_proj", &[160, 64]),
            ("mlp.down_proj", &[64, 160]),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), shape)?;
        }
    }
    let options = ShardOptions::new().max_shard_size("150KB".parse()?);
    let named = tensors.iter().map(|(name, tensor)| (name, tensor));
    let saved = save_sharded(dir, named, &options)?;
    ensure!(saved.files.len() > 1, "expected several files");
    Ok(std::fs::write(dir.join("config.json"), CONFIG)?)
}

#[test]
fn the_logits_are_those_of_the_original() {
    of_a_server().unwrap();
}
