//! From a checkpoint of a Llama to GGUF, and from there to the logits of candle's quantised Llama.
//!
//! ```text
//! cargo run --release -p model-examples --example gguf_to_candle
//! ```
//!
//! It needs no input: it makes a small random model. The example ends with an error unless the
//! logits of the GGUF files are close to candle's Llama with the original weights.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use model_examples::llama::{CONFIG, TOKENS, largest, logits, small_model};
use safetensors_bridge::candle::{save, var_builder};
use safetensors_bridge::save::AtomicFile;
use safetensors_bridge::{Checkpoint, SaveOptions};
use safetensors_formats::gguf::{Model, Type};

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    write_model(dir.path())?;
    let weights = var_builder(dir.path(), DType::F32, &Device::Cpu)?;
    let expected = logits(weights, serde_json::from_str(CONFIG)?, &TOKENS)?;
    let largest = largest(&expected)?;
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

/// Returns the logits of the token that follows, by a GGUF file.
fn quantised_logits(path: &Path) -> Result<Vec<f32>> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file).context("candle reads the header")?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let tokens = Tensor::new(&TOKENS, &Device::Cpu)?.unsqueeze(0)?;
    Ok(model.forward(&tokens, 0)?.squeeze(0)?.to_vec1()?)
}

/// Writes a model, and its configuration.
fn write_model(dir: &Path) -> Result<()> {
    let tensors = small_model()?;
    let named = tensors.iter().map(|(name, tensor)| (name, tensor));
    save(dir.join("model.safetensors"), named, &SaveOptions::new())?;
    Ok(std::fs::write(dir.join("config.json"), CONFIG)?)
}

#[test]
fn logits_are_close_to_the_original() {
    main().unwrap();
}
