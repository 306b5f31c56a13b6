//! A mixture of experts that is larger than the memory for its experts, in candle.
//!
//! `cargo run --release -p model-examples --example candle_experts`
//!
//! The experts of a small random model are four times the budget of a [`TensorCache`]. The router of
//! a layer decides which experts its tokens need, and these are read ahead. The example ends with an
//! error unless the logits equal the ones of the model in memory, bit for bit.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use candle_core::{D, Device, Tensor};
use candle_nn::ops;
use model_examples::llama::{TOKENS, add, are_same, largest};
use safetensors_bridge::candle::{Candle, load, save};
use safetensors_bridge::framework::TensorCache;
use safetensors_bridge::{Checkpoint, LoadOptions, SaveOptions};

const LAYERS: usize = 4;
const EXPERTS: usize = 16;
/// The experts that a token needs.
const NEEDED: usize = 2;
const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 96;
const VOCABULARY: usize = 96;

/// The bytes of all experts.
const EXPERT_BYTES: usize = LAYERS * EXPERTS * 3 * INTERMEDIATE * HIDDEN * size_of::<f32>();

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.safetensors");
    let tensors = small_mixture()?;
    save(&path, tensors.iter().map(|(name, tensor)| (name, tensor)), &SaveOptions::new())?;

    let mut model = Model { tensors: load(&path, &Device::Cpu)?, cache: None };
    let expected = model.logits(&TOKENS)?;
    largest(&expected)?;

    let budget = EXPERT_BYTES as u64 / 4;
    let checkpoint = Checkpoint::open(&path)?;
    let cache = TensorCache::new(checkpoint, Device::Cpu, budget, &LoadOptions::new())?;
    model.tensors.retain(|name, _| !name.contains(".experts."));
    model.cache = Some(&cache);
    for run in 1..=2 {
        let found = model.logits(&TOKENS)?;
        ensure!(are_same(&found, &expected), "the cached experts give other logits");
        let stats = cache.stats();
        println!(
            "run {run}: {} experts' tensors in memory, {} read or awaited; {} of {EXPERT_BYTES} \
             bytes kept",
            stats.hits, stats.misses, stats.bytes_kept
        );
        ensure!(stats.bytes_kept <= budget, "more than the budget of {budget} bytes");
    }
    Ok(())
}

/// A model without attention. Its experts come from memory, or from a cache.
struct Model<'a> {
    tensors: BTreeMap<String, Tensor>,
    cache: Option<&'a TensorCache<Candle>>,
}

impl Model<'_> {
    /// Returns the logits of the token that follows.
    fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        let mut hidden = self.tensors["embed_tokens.weight"].embedding(&tokens)?;
        for layer in 0..LAYERS {
            hidden = (&hidden + self.mixture(layer, &hidden)?)?;
        }
        let last = hidden.narrow(0, tokens.dim(0)? - 1, 1)?;
        Ok(last.matmul(&self.tensors["lm_head.weight"].t()?)?.squeeze(0)?.to_vec1()?)
    }

    fn mixture(&self, layer: usize, hidden: &Tensor) -> Result<Tensor> {
        let router = &self.tensors[&format!("layers.{layer}.router.weight")];
        let weights = ops::softmax(&hidden.matmul(&router.t()?)?, D::Minus1)?;
        let order = weights.arg_sort_last_dim(false)?.narrow(1, 0, NEEDED)?.to_vec2::<u32>()?;
        let [gate_up, down] =
            ["gate_up_proj", "down_proj"].map(|part| format!("layers.{layer}.experts.{part}"));
        if let Some(cache) = self.cache {
            let needed = order.iter().flatten().map(|&expert| (expert as usize,));
            cache.read_ahead(needed.flat_map(|it| [(&gate_up, it), (&down, it)]))?;
        }
        let mut rows = Vec::new();
        for (token, experts) in order.iter().enumerate() {
            let token_hidden = hidden.narrow(0, token, 1)?;
            let mut sum = token_hidden.zeros_like()?;
            for &expert in experts {
                let gate_up = token_hidden.matmul(&self.expert(&gate_up, expert)?.t()?)?;
                let [gate, up] = [0, INTERMEDIATE].map(|at| gate_up.narrow(1, at, INTERMEDIATE));
                let gated = (gate?.silu()? * up?)?;
                let weight = weights.narrow(0, token, 1)?.narrow(1, expert as usize, 1)?;
                let output = gated.matmul(&self.expert(&down, expert)?.t()?)?;
                sum = (sum + output.broadcast_mul(&weight)?)?;
            }
            rows.push(sum);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// Returns an expert's part of a stack.
    fn expert(&self, stack: &str, expert: u32) -> Result<Tensor> {
        match self.cache {
            Some(cache) => Ok((*cache.get(stack, (expert as usize,))?).clone()),
            None => Ok(self.tensors[stack].get(expert as usize)?),
        }
    }
}

fn small_mixture() -> Result<Vec<(String, Tensor)>> {
    let mut tensors = Vec::new();
    add(&mut tensors, "embed_tokens.weight", &[VOCABULARY, HIDDEN])?;
    add(&mut tensors, "lm_head.weight", &[VOCABULARY, HIDDEN])?;
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("router.weight", &[EXPERTS, HIDDEN][..]),
            ("experts.gate_up_proj", &[EXPERTS, 2 * INTERMEDIATE, HIDDEN]),
            ("experts.down_proj", &[EXPERTS, HIDDEN, INTERMEDIATE]),
        ] {
            add(&mut tensors, &format!("layers.{layer}.{name}"), shape)?;
        }
    }
    Ok(tensors)
}

#[test]
fn logits_equal_the_model_in_memory() {
    main().unwrap();
}
