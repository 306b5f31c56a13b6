//! A Llama of burn's layers, with the names that the fields have in checkpoints.

use std::path::Path;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors_bridge::LoadOptions;
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use serde::Deserialize;

/// The fields of `config.json` that are needed.
#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    rms_norm_eps: f64,
    rope_parameters: RopeParameters,
}

#[derive(Debug, Deserialize)]
struct RopeParameters {
    rope_theta: f64,
}

#[derive(Module, Debug)]
pub(crate) struct Llama {
    model: Body,
    lm_head: Linear,
}

#[derive(Module, Debug)]
struct Body {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

#[derive(Module, Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Config {
    /// Returns the size of a head.
    fn head(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

impl Llama {
    /// A model with the weights of a file.
    pub(crate) fn load(file: &Path, config: &Config, options: LoadOptions) -> Self {
        let mut model = Self::new(config, &Device::default());
        let mut store = CheckpointStore::from_file(file).pytorch(true).load_options(options);
        model.load_from(&mut store).unwrap();
        model
    }

    fn new(config: &Config, device: &Device) -> Self {
        let width = config.hidden_size;
        let kept = config.num_key_value_heads * config.head();
        let norm = || RmsNormConfig::new(width).with_epsilon(config.rms_norm_eps).init(device);
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let layer = |_| Layer {
            input_layernorm: norm(),
            self_attn: Attention {
                q_proj: linear(width, width),
                k_proj: linear(width, kept),
                v_proj: linear(width, kept),
                o_proj: linear(width, width),
            },
            post_attention_layernorm: norm(),
            mlp: Mlp {
                gate_proj: linear(width, config.intermediate_size),
                up_proj: linear(width, config.intermediate_size),
                down_proj: linear(config.intermediate_size, width),
            },
        };
        let model = Body {
            embed_tokens: EmbeddingConfig::new(config.vocab_size, width).init(device),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            norm: norm(),
        };
        Self { model, lm_head: linear(width, config.vocab_size) }
    }

    /// Returns the logits for each of these tokens, one after the other.
    pub(crate) fn logits(&self, tokens: &[u32], config: &Config) -> Vec<f32> {
        let device = Device::default();
        let data = TensorData::new(tokens.to_vec(), [1, tokens.len()]);
        let mut hidden =
            self.model.embed_tokens.forward(Tensor::<2, Int>::from_data(data, &device));
        for layer in &self.model.layers {
            hidden = layer.forward(hidden, config);
        }
        let logits = self.lm_head.forward(self.model.norm.forward(hidden));
        logits.into_data().iter().collect()
    }
}

impl Layer {
    fn forward(&self, hidden: Tensor<3>, config: &Config) -> Tensor<3> {
        let normed = self.input_layernorm.forward(hidden.clone());
        let hidden = hidden + self.self_attn.forward(normed, config);
        let normed = self.post_attention_layernorm.forward(hidden.clone());
        let mlp = &self.mlp;
        let gate = silu(mlp.gate_proj.forward(normed.clone()));
        hidden + mlp.down_proj.forward(gate * mlp.up_proj.forward(normed))
    }
}

impl Attention {
    fn forward(&self, hidden: Tensor<3>, config: &Config) -> Tensor<3> {
        let [batch, len, width] = hidden.dims();
        let (heads, kept, size) =
            (config.num_attention_heads, config.num_key_value_heads, config.head());
        let split = |linear: &Linear, heads| {
            let states = linear.forward(hidden.clone());
            states.reshape([batch, len, heads, size]).swap_dims(1, 2)
        };
        // Each key and value serves the same number of neighbouring queries.
        let repeat = |states: Tensor<4>| {
            let states: Tensor<5> = states.unsqueeze_dim(2);
            states.repeat_dim(2, heads / kept).reshape([batch, heads, len, size])
        };
        let theta = config.rope_parameters.rope_theta;
        let queries = rotate(split(&self.q_proj, heads), theta);
        let keys = repeat(rotate(split(&self.k_proj, kept), theta));
        let values = repeat(split(&self.v_proj, kept));
        let scores = queries.matmul(keys.swap_dims(2, 3)) / (size as f64).sqrt();
        let is_later = |at: usize| if at % len > at / len { -1e30_f32 } else { 0.0 };
        let mask: Vec<_> = (0..len * len).map(is_later).collect();
        let mask =
            Tensor::<4>::from_data(TensorData::new(mask, [1, 1, len, len]), &scores.device());
        let mixed = softmax(scores + mask, 3).matmul(values);
        self.o_proj.forward(mixed.swap_dims(1, 2).reshape([batch, len, width]))
    }
}

/// Rotates the halves of each head by the positions of the tokens.
fn rotate(states: Tensor<4>, theta: f64) -> Tensor<4> {
    let [_, _, len, size] = states.dims();
    let half = size / 2;
    let angle = |at: usize| {
        let exponent = (at % half) as f64 * -2.0 / size as f64;
        (at / half) as f64 * theta.powf(exponent)
    };
    let table = |function: fn(f64) -> f64| {
        let numbers: Vec<_> = (0..len * half).map(|at| function(angle(at)) as f32).collect();
        Tensor::<4>::from_data(TensorData::new(numbers, [1, 1, len, half]), &states.device())
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));
    let first = states.clone().narrow(3, 0, half);
    let second = states.clone().narrow(3, half, half);
    let rotated = first.clone() * cos.clone() - second.clone() * sin.clone();
    Tensor::cat(vec![rotated, second * cos + first * sin], 3)
}
