//! Saves a burn model to a safetensors file, loads it into a fresh model and compares their
//! outputs.
//!
//! `cargo run --features burn --example burn_save`

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, Relu};
use burn::tensor::{Device, Distribution, Tensor};
use safetensors_bridge::Checkpoint;
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};

/// A perceptron of two layers.
#[derive(Module, Debug)]
struct Mlp {
    input: Linear,
    norm: LayerNorm,
    activation: Relu,
    output: Linear,
}

impl Mlp {
    /// A model with random weights.
    fn new(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(8, 32).init(device),
            norm: LayerNormConfig::new(32).init(device),
            activation: Relu::new(),
            output: LinearConfig::new(32, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.activation.forward(self.norm.forward(self.input.forward(x))))
    }
}

fn main() -> Result<()> {
    let device = Device::default();
    let x = Tensor::<2>::random([3, 8], Distribution::Default, &device);
    let trained = Mlp::new(&device);
    let expected = trained.forward(x.clone()).into_data();

    let dir = tempfile::tempdir()?;
    let path = dir.path().join("mlp.safetensors");
    trained.save_into(
        &mut CheckpointStore::from_file(&path).metadata("title", "A small perceptron"),
    )?;

    println!("Saved {} bytes:", std::fs::metadata(&path)?.len());
    for tensor in Checkpoint::open(&path)?.tensors() {
        println!("  {:<14} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
    }

    let mut fresh = Mlp::new(&device);
    ensure!(
        fresh.forward(x.clone()).into_data() != expected,
        "the fresh model should compute something else"
    );
    let result = fresh.load_from(&mut CheckpointStore::from_file(&path))?;
    println!(
        "Loaded {} tensors into a fresh model; {} unused.",
        result.applied.len(),
        result.unused.len()
    );

    let found = fresh.forward(x).into_data();
    ensure!(
        found.as_bytes() == expected.as_bytes(),
        "the outputs differ:\n  before {expected}\n  after  {found}"
    );
    println!("Both models give the same output for the same input, bit for bit.");
    Ok(())
}
