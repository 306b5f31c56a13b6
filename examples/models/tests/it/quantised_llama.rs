//! Whole models that reference packages quantised, from end to end: their weights are read as
//! numbers into candle's Llama and into one of burn's layers, and the logits are compared with the
//! package's. `dev/scripts/quantised_llamas.py` makes the models.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use safetensors_bridge::candle::CheckpointBackend;
use safetensors_bridge::load::QuantizedWeights;
use safetensors_bridge::{Checkpoint, Dtype, LoadOptions};

use super::burn_llama;

/// The models, and how many quantised weights each has. bitsandbytes computes with less precision
/// on a CPU than the others: its logits are off by a hundredth of the change by quantising.
const MODELS: [(&str, usize); 4] = [
    ("compressed-tensors-w4a16", 14),
    ("hqq-4bits", 14),
    ("torchao-int8", 14),
    ("bitsandbytes-nf4", 14),
];

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/testing/fixtures/llamas").join(name)
}

/// Logits for each token of the text, one after the other.
#[derive(Debug)]
struct Logits {
    tokens: Vec<u32>,
    /// Computed by the package that quantised the model, in F32.
    package: Vec<f64>,
    /// Computed in F64 from the weights as the package dequantises them.
    exact: Vec<f64>,
    /// The logits of the weights before they were quantised.
    plain: Vec<f64>,
}

impl Logits {
    fn read(directory: &Path) -> Self {
        let file = Checkpoint::open(directory.join("logits.safetensors")).unwrap();
        let numbers = |name| {
            let numbers =
                file.tensor(name).unwrap().read_with(&LoadOptions::new().all_as(Dtype::F64));
            numbers.unwrap().into_vec().unwrap()
        };
        let tokens = file.tensor("tokens").unwrap().read().unwrap();
        let tokens = tokens.as_slice::<i64>().unwrap().iter().map(|&token| token as u32);
        Self {
            tokens: tokens.collect(),
            package: numbers("package"),
            exact: numbers("exact"),
            plain: numbers("plain"),
        }
    }

    /// Checks logits that were computed in F32 from the weights as this project reads them.
    ///
    /// They may differ from the exact ones by the rounding of F32 alone: 32 units of it at the
    /// largest logit; the packages that compute in F32 need up to 20. So they differ from the
    /// package's by no more than its own error and that. Both are far less than the change by
    /// quantising, so weights that are read wrongly would not pass.
    fn check(&self, found: &[f32], of: &str) {
        let found: Vec<_> = found.iter().map(|&logit| f64::from(logit)).collect();
        let largest = self.exact.iter().fold(0.0, |most: f64, logit| most.max(logit.abs()));
        let rounding = 32.0 * f64::from(f32::EPSILON) / 2.0 * largest;
        let package = distance(&self.package, &self.exact);
        let (error, other) = (distance(&found, &self.exact), distance(&found, &self.package));
        assert!(error <= rounding, "{of}: off by {error:e}, more than {rounding:e}");
        assert!(other <= package + rounding, "{of}: {other:e} from the package's");
        let quantised = distance(&self.plain, &self.exact);
        assert!(100.0 * rounding < quantised, "{of}: quantising changed only {quantised:e}");
    }
}

/// Returns the largest difference.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |most, (a, b)| (a - b).abs().max(most))
}

#[test]
fn candle_computes_the_logits_of_the_packages() {
    for (name, weights) in MODELS {
        let directory = directory(name);
        let expected = Logits::read(&directory);
        let checkpoint = Checkpoint::open(directory.join("model.safetensors")).unwrap();
        assert_eq!(checkpoint.quantized_weights().unwrap().len(), weights, "{name}");
        let config = fs::read(directory.join("config.json")).unwrap();
        let config: LlamaConfig = serde_json::from_slice(&config).unwrap();
        let config = config.into_config(false);
        let options = LoadOptions::new().quantized(QuantizedWeights::Numbers);
        let backend = CheckpointBackend::new_with(checkpoint, &options).unwrap();
        let weights = backend.var_builder(DType::F32, &Device::Cpu);
        let model = Llama::load(weights, &config).unwrap();
        let mut found = Vec::new();
        // The model returns the logits of the last token.
        for end in 1..=expected.tokens.len() {
            let mut cache = Cache::new(false, DType::F32, &config, &Device::Cpu).unwrap();
            let tokens = Tensor::new(&expected.tokens[..end], &Device::Cpu).unwrap();
            let logits = model.forward(&tokens.unsqueeze(0).unwrap(), 0, &mut cache).unwrap();
            found.extend(logits.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
        expected.check(&found, name);
    }
}

#[test]
fn burn_computes_the_logits_of_the_packages() {
    for (name, _) in MODELS {
        let directory = directory(name);
        let expected = Logits::read(&directory);
        let config = fs::read(directory.join("config.json")).unwrap();
        let config = serde_json::from_slice(&config).unwrap();
        let options = LoadOptions::new().floats_as(Dtype::F32);
        let options = options.quantized(QuantizedWeights::Numbers);
        let path = directory.join("model.safetensors");
        let model = burn_llama::Llama::load(&path, &config, options);
        expected.check(&model.logits(&expected.tokens, &config), name);
    }
}
