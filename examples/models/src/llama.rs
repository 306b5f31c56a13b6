//! The common part of the examples with a Llama: a small random model, its logits, and the tokens
//! that are most likely to follow a prompt.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use tokenizers::Tokenizer;

/// The prompt for a real model.
pub const PROMPT: &str = "The capital of France is";

/// The `config.json` of the small model.
pub const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "rope_theta": 10000.0
}"#;

/// The prompt for the small model.
pub const TOKENS: [u32; 6] = [3, 14, 15, 92, 65, 35];

/// Returns the tensors of the small model.
///
/// # Errors
///
/// An error of candle.
pub fn small_model() -> Result<Vec<(String, Tensor)>> {
    let mut tensors = Vec::new();
    add(&mut tensors, "model.embed_tokens.weight", &[96, 64])?;
    add(&mut tensors, "model.norm.weight", &[64])?;
    add(&mut tensors, "lm_head.weight", &[96, 64])?;
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
            add(&mut tensors, &format!("model.layers.{layer}.{name}.weight"), shape)?;
        }
    }
    Ok(tensors)
}

/// Adds a tensor of numbers that are different for each tensor: about 1 for a norm.
///
/// # Errors
///
/// An error of candle.
pub fn add(tensors: &mut Vec<(String, Tensor)>, name: &str, shape: &[usize]) -> Result<()> {
    let seed = tensors.len() as f32;
    let wave = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.7 + seed).sin());
    let values = match shape.len() {
        1 => wave.map(|value| 1.0 + 0.1 * value).collect(),
        _ => wave.map(|value| 0.2 * value).collect::<Vec<_>>(),
    };
    tensors.push((name.into(), Tensor::from_vec(values, shape, &Device::Cpu)?));
    Ok(())
}

/// Returns the logits of the token that follows.
///
/// # Errors
///
/// An error of candle: a tensor is missing, or has another shape.
pub fn logits(weights: VarBuilder<'_>, config: LlamaConfig, tokens: &[u32]) -> Result<Vec<f32>> {
    let config = config.into_config(false);
    let mut cache = Cache::new(false, DType::F32, &config, &Device::Cpu)?;
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let model = Llama::load(weights, &config)?;
    Ok(model.forward(&tokens, 0, &mut cache)?.squeeze(0)?.to_vec1()?)
}

/// Returns the largest logit.
///
/// # Errors
///
/// All of them vanish, so that a comparison would show nothing.
pub fn largest(logits: &[f32]) -> Result<f32> {
    let largest = logits.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    Ok(largest)
}

/// Returns `true` if two models have computed the same bits.
pub fn are_same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Prints the tokens that are most likely to follow a prompt.
///
/// # Errors
///
/// The tokenizer does not know a token.
pub fn print_likeliest(prompt: &str, logits: Vec<f32>, tokenizer: &Tokenizer) -> Result<()> {
    let mut ranked: Vec<_> = (0_u32..).zip(logits).collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for (token, logit) in ranked.iter().take(5) {
        let word = tokenizer.decode(&[*token], false).map_err(anyhow::Error::from_boxed);
        println!("{logit:8.3}  {prompt}{}", word.context("a token without a word")?);
    }
    Ok(())
}
