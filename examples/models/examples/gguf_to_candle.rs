//! From a checkpoint of a Llama to GGUF, and from there to the logits of candle's quantised Llama.
//!
//! ```text
//! cargo run --release -p model-examples --example gguf_to_candle
//! ```
//!
//! It needs no input: it makes a small random model. The example ends with an error unless the
//! logits of the GGUF files are close to those of candle's Llama with the original weights.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use candle_transformers::models::quantized_llama::ModelWeights;
use safetensors_bridge::candle::{save, var_builder};
use safetensors_bridge::save::AtomicFile;
use safetensors_bridge::{Checkpoint, SaveOptions};
use safetensors_formats::gguf::{Model, Type};

const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "rope_theta": 10000.0
}"#;

const TOKENS: [u32; 6] = [3, 14, 15, 92, 65, 35];

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    write_model(dir.path())?;
    let expected = logits(dir.path())?;
    let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    for (kind, most) in [(Type::F32, 1e-5), (Type::Q8_0, 0.05), (Type::Q4_0, 0.2)] {
        let path = dir.path().join(format!("{kind}.gguf"));
        convert(dir.path(), &path, kind)?;
        let found = quantised_logits(&path)?;
        let pairs = found.iter().zip(&expected);
        let worst = pairs.map(|(found, logit)| (found - logit).abs()).fold(0.0, f32::max);
        println!("{kind}: {} logits differ by at most {worst:.2e} of {largest:.2}", found.len());
        ensure!(found.len() == expected.len() && worst <= most * largest, "{kind} is too far off");
    }
    Ok(())
}

/// Writes a model of transformers as a GGUF file.
fn convert(model: &Path, path: &Path, kind: Type) -> Result<()> {
    let checkpoint = Checkpoint::open(model)?;
    let tensors = checkpoint.tensors().map(|tensor| (tensor.name().to_owned(), tensor));
    let (writer, _) = Model::open(model)?.writer(tensors, kind)?;
    let mut file = AtomicFile::create(path, &SaveOptions::new())?;
    writer.write(&file, |_| ())?;
    Ok(file.commit()?)
}

/// The logits of the token that follows, by the original weights.
fn logits(model: &Path) -> Result<Vec<f32>> {
    let config: LlamaConfig = serde_json::from_str(CONFIG)?;
    let config = config.into_config(false);
    let mut cache = Cache::new(false, DType::F32, &config, &Device::Cpu)?;
    let weights = var_builder(model, DType::F32, &Device::Cpu)?;
    let tokens = Tensor::new(&TOKENS, &Device::Cpu)?.unsqueeze(0)?;
    let logits = Llama::load(weights, &config)?.forward(&tokens, 0, &mut cache)?;
    Ok(logits.squeeze(0)?.to_vec1()?)
}

/// The same by a GGUF file.
fn quantised_logits(path: &Path) -> Result<Vec<f32>> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file).context("candle reads the header")?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let tokens = Tensor::new(&TOKENS, &Device::Cpu)?.unsqueeze(0)?;
    Ok(model.forward(&tokens, 0)?.squeeze(0)?.to_vec1()?)
}

/// Writes a model, and its configuration.
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
    add("lm_head.weight".into(), &[96, 64])?;
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
    let named = tensors.iter().map(|(name, tensor)| (name, tensor));
    save(dir.join("model.safetensors"), named, &SaveOptions::new())?;
    Ok(std::fs::write(dir.join("config.json"), CONFIG)?)
}

#[test]
fn the_logits_are_close_to_those_of_the_original() {
    main().unwrap();
}
