//! From the name of a repository on the Hugging Face Hub to the logits of a Llama in candle.
//!
//! ```text
//! cargo run --release -p model-examples --example hub_to_candle
//! cargo run --release -p model-examples --example hub_to_candle -- REPOSITORY [PROMPT]
//! ```
//!
//! `REPOSITORY` is a model of the Llama family, such as `HuggingFaceTB/SmolLM2-135M`. The example
//! downloads the necessary files into the cache that Python shares, and prints the most likely next
//! tokens.
//!
//! Without arguments it needs no network. A small random model comes from the server that the tests
//! of `safetensors-hub` use. The example ends with an error unless the logits of the download, of
//! the same model read by ranges, and of the original files are the same bits.

#[path = "../../../extras/hub/tests/it/server/mod.rs"]
mod server;

use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use candle_core::{DType, Device};
use candle_transformers::models::llama::LlamaConfig;
use model_examples::llama::{
    CONFIG, PROMPT, TOKENS, are_same, largest, logits, print_likeliest, small_model,
};
use safetensors_bridge::ShardOptions;
use safetensors_bridge::candle::{save_sharded, var_builder, var_builder_from};
use safetensors_bridge::hub::client::ClientOptions;
use safetensors_bridge::hub::{DownloadOptions, download};
use safetensors_bridge::remote::RemoteOptions;
use server::Server;
use server::repo::Repo;
use tokenizers::Tokenizer;

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
    print_likeliest(prompt, logits, &tokenizer)
}

/// Returns the configuration of a model of the Llama family.
fn config(path: &Path) -> Result<LlamaConfig> {
    let json = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&json)
        .with_context(|| format!("{} is not the configuration of a Llama", path.display()))
}

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
    largest(&expected)?;

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
        ensure!(are_same(&found, &expected), "a downloaded model has other logits");
        ensure!((requests == 0) == offline, "expected requests only if it may make them");
    }

    // Without a download: only the bytes that the model asks for.
    server.clear_log();
    let options = RemoteOptions::new().option("endpoint", &server.endpoint);
    let checkpoint = options.open("hf://owner/small-llama")?;
    let weights = var_builder_from(checkpoint, DType::F32, &Device::Cpu);
    let found = logits(weights, config(&original.join("config.json"))?, &TOKENS)?;
    println!("{} logits by {} requests for ranges", found.len(), server.log().len());
    ensure!(are_same(&found, &expected), "a model that is read by ranges has other logits");
    Ok(())
}

/// Writes a model of several files, and its configuration.
fn write_model(dir: &Path) -> Result<()> {
    let tensors = small_model()?;
    let options = ShardOptions::new().max_shard_size("150KB".parse()?);
    let named = tensors.iter().map(|(name, tensor)| (name, tensor));
    let saved = save_sharded(dir, named, &options)?;
    ensure!(saved.files.len() > 1, "expected several files");
    Ok(std::fs::write(dir.join("config.json"), CONFIG)?)
}

#[test]
fn logits_equal_the_original() {
    of_a_server().unwrap();
}
