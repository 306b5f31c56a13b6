//! candle's quantised models of a plain checkpoint, which is quantised while it is loaded.

use std::fs::File;
use std::io::Cursor;

use candle_core::quantized::gguf_file;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use candle_transformers::models::mistral::Config;
use candle_transformers::models::quantized_mistral::Model;
use candle_transformers::quantized_var_builder::VarBuilder;
use model_examples::llama::{CONFIG, TOKENS, are_same, largest, small_model};
use safetensors_bridge::candle::{quantize, save};
use safetensors_bridge::{Checkpoint, LoadOptions, SaveOptions};

fn logits(weights: VarBuilder) -> Vec<f32> {
    let mut config: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
    config["hidden_act"] = "silu".into();
    let config: Config = serde_json::from_value(config).unwrap();
    let tokens = Tensor::new(&TOKENS, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let logits = Model::new(&config, weights).unwrap().forward(&tokens, 0).unwrap();
    let logits = logits.flatten_all().unwrap().to_vec1().unwrap();
    largest(&logits).unwrap();
    logits
}

#[test]
fn a_quantised_model_takes_tensors_that_were_quantised_while_loading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = small_model().unwrap();
    let named = tensors.iter().map(|(name, tensor)| (name, tensor));
    save(&path, named, &SaveOptions::new()).unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    let loaded = quantize::load(&checkpoint, &Device::Cpu, &LoadOptions::new(), |tensor| {
        quantize::linear_layers(tensor, GgmlDType::Q8_0)
    });
    let loaded = loaded.unwrap();
    let named: Vec<_> = loaded.iter().map(|(name, tensor)| (name.as_str(), &**tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &[], &named).unwrap();
    let builder = VarBuilder::from_gguf_buffer(bytes.get_ref(), &Device::Cpu).unwrap();
    let found = logits(builder);

    // The model of candle's own file.
    let is_linear = |name: &str| name.contains("_proj.");
    let quantized: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| {
            let dtype = if is_linear(name) { GgmlDType::Q8_0 } else { GgmlDType::F32 };
            (name.as_str(), QTensor::quantize(tensor, dtype).unwrap())
        })
        .collect();
    let named: Vec<_> = quantized.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let path = dir.path().join("model.gguf");
    gguf_file::write(&mut File::create(&path).unwrap(), &[], &named).unwrap();
    let expected = logits(VarBuilder::from_gguf(path, &Device::Cpu).unwrap());
    assert!(are_same(&found, &expected));
}
