//! Sentence embeddings with candle's BERT, its weights loaded through
//! `safetensors_bridge::candle::var_builder`.
//!
//! ```text
//! cargo run --release -p model-examples --example candle_bert -- MODEL_DIRECTORY [SENTENCE...]
//! ```
//!
//! The directory holds `config.json`, `model.safetensors` and `tokenizer.json` of all-MiniLM-L6-v2,
//! or of another BERT model with the mean over its tokens as sentence embedding. The example prints
//! the cosines between all sentences.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{D, Device, Tensor};
use candle_transformers::models::bert::{BertModel, Config, DTYPE};
use model_examples::sentences::{Tokens, arguments, expect_file, print_matrix};
use safetensors_bridge::candle::var_builder;

fn main() -> Result<()> {
    let (directory, sentences) = arguments()?;
    let device = Device::Cpu;
    let model = load(&directory, &device)?;
    let embeddings = embed(&model, &Tokens::new(&sentences, &directory)?, &device)?;
    print_matrix(&sentences, &embeddings.matmul(&embeddings.t()?)?.to_vec2()?);
    Ok(())
}

/// Returns the model of a directory.
fn load(directory: &Path, device: &Device) -> Result<BertModel> {
    let config = expect_file(directory, "config.json", "the model's configuration")?;
    let weights = expect_file(directory, "model.safetensors", "the model's weights")?;
    let config = std::fs::read(&config)
        .map_err(anyhow::Error::from)
        .and_then(|json| Ok(serde_json::from_slice::<Config>(&json)?))
        .with_context(|| {
            format!("{} is not the configuration of a BERT model", config.display())
        })?;
    Ok(BertModel::load(var_builder(&weights, DTYPE, device)?, &config)?)
}

/// One embedding of length 1 per sentence, as the rows of a matrix.
fn embed(model: &BertModel, tokens: &Tokens, device: &Device) -> Result<Tensor> {
    let mask = matrix(tokens.mask(), device)?;
    let hidden = model.forward(
        &matrix(tokens.ids(), device)?,
        &matrix(tokens.types(), device)?,
        Some(&mask),
    )?;

    // The model gives one vector per token. Their mean over the real tokens, without the padding,
    // is the embedding of the sentence.
    let mask = mask.to_dtype(DTYPE)?.unsqueeze(D::Minus1)?;
    let sum = hidden.broadcast_mul(&mask)?.sum(1)?;
    let mean = sum.broadcast_div(&mask.sum(1)?)?;
    let length = mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    Ok(mean.broadcast_div(&length)?)
}

fn matrix<'a>(rows: impl Iterator<Item = &'a [u32]>, device: &Device) -> Result<Tensor> {
    Ok(Tensor::new(rows.collect::<Vec<_>>(), device)?)
}
