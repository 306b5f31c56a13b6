//! The part of a Llama-like model that one rank holds.

use std::collections::HashMap;

use anyhow::{Context, Result};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Linear, RmsNorm, ops, rotary_emb};
use safetensors_candle::{TensorParallelBackend, TensorParallelVarBuilder};
use safetensors_core::ranks::RankPlan;
use safetensors_core::slice::TensorPart;

use crate::group::Reduce;
use crate::weights::{HEAD, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS, VOCABULARY};

/// Gives a model the parts of a rank.
pub(crate) struct Parts<'p> {
    builder: TensorParallelVarBuilder<'p, TensorPart>,
    /// The part of each tensor.
    parts: HashMap<&'p str, TensorPart>,
    /// Tensors that are not read, because other ranks have sent them.
    received: HashMap<String, Tensor>,
}

impl<'p> Parts<'p> {
    /// Reads all parts of a rank in one go, except the ones that it has received.
    pub(crate) fn read(
        backend: TensorParallelBackend<'p, TensorPart>,
        plan: &'p RankPlan,
        rank: usize,
        received: HashMap<String, Tensor>,
    ) -> Result<Self> {
        let parts = plan.tensors().map(|tensor| Ok((tensor.name(), tensor.part(rank)?)));
        let parts = parts.collect::<Result<HashMap<_, _>>>()?;
        let wanted = parts.iter().filter(|(name, _)| !received.contains_key(**name));
        backend.prefetch(wanted.map(|(name, part)| (name, *part)), DType::F32, &Device::Cpu)?;
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        Ok(Self { builder, parts, received })
    }

    /// Returns the rank's part of a tensor with this whole shape.
    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        if let Some(tensor) = self.received.get(name) {
            return Ok(tensor.clone());
        }
        let part = *self.parts.get(name).with_context(|| format!("the plan has no {name:?}"))?;
        Ok(self.builder.get_with_hints(shape, name, part)?)
    }

    fn linear(&self, name: &str, rows: usize, columns: usize) -> Result<Linear> {
        Ok(Linear::new(self.get(&format!("{name}.weight"), &[rows, columns])?, None))
    }

    fn norm(&self, name: &str) -> Result<RmsNorm> {
        Ok(RmsNorm::new(self.get(&format!("{name}.weight"), &[HIDDEN])?, 1e-5))
    }
}

/// The part of the model that one rank holds.
pub(crate) struct Model {
    /// The rows of some tokens.
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    before_attention: RmsNorm,
    queries: Linear,
    keys: Linear,
    values: Linear,
    output: Linear,
    before_mlp: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Model {
    pub(crate) fn load(parts: &Parts<'_>) -> Result<Self> {
        let layers = (0..LAYERS).map(|i| Layer::load(parts, &format!("model.layers.{i}")));
        Ok(Self {
            embedding: parts.get("model.embed_tokens.weight", &[VOCABULARY, HIDDEN])?,
            layers: layers.collect::<Result<_>>()?,
            norm: parts.norm("model.norm")?,
            head: parts.linear("lm_head", VOCABULARY, HIDDEN)?,
        })
    }

    /// Returns the logits of each token, of shape [tokens, vocabulary].
    pub(crate) fn forward(&self, tokens: &[u32], ranks: &impl Reduce) -> Result<Tensor> {
        let mut hidden = self.embed(tokens, ranks)?;
        for layer in &self.layers {
            hidden = (&hidden + layer.attention(&hidden, ranks)?)?;
            hidden = (&hidden + layer.mlp(&hidden, ranks)?)?;
        }
        // Each rank has the logits of its part of the vocabulary.
        ranks.columns(self.head.forward(&self.norm.forward(&hidden)?)?)
    }

    /// Each rank has the rows of some tokens, and zeros for the others. So the sum has all rows.
    fn embed(&self, tokens: &[u32], ranks: &impl Reduce) -> Result<Tensor> {
        let rows = self.embedding.dim(0)? as u32;
        let first = rows * ranks.rank() as u32;
        let is_here = |&token: &u32| (first..first + rows).contains(&token);
        let here: Vec<_> = tokens.iter().map(|token| f32::from(is_here(token))).collect();
        let row = |token: &u32| if is_here(token) { token - first } else { 0 };
        let row: Vec<_> = tokens.iter().map(row).collect();
        let device = self.embedding.device();
        let here = Tensor::from_vec(here, (tokens.len(), 1), device)?;
        let mine = self.embedding.index_select(&Tensor::new(row, device)?, 0)?;
        ranks.sum(mine.broadcast_mul(&here)?)
    }
}

impl Layer {
    fn load(parts: &Parts<'_>, name: &str) -> Result<Self> {
        let linear =
            |part: &str, rows, columns| parts.linear(&format!("{name}.{part}"), rows, columns);
        let norm = |part: &str| parts.norm(&format!("{name}.{part}"));
        Ok(Self {
            before_attention: norm("input_layernorm")?,
            queries: linear("self_attn.q_proj", HEADS * HEAD, HIDDEN)?,
            keys: linear("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN)?,
            values: linear("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN)?,
            output: linear("self_attn.o_proj", HIDDEN, HEADS * HEAD)?,
            before_mlp: norm("post_attention_layernorm")?,
            gate: linear("mlp.gate_proj", INTERMEDIATE, HIDDEN)?,
            up: linear("mlp.up_proj", INTERMEDIATE, HIDDEN)?,
            down: linear("mlp.down_proj", HIDDEN, INTERMEDIATE)?,
        })
    }

    /// Attention over the heads of this rank. The output layer is cut along its inputs, so the
    /// result is the sum over all ranks.
    fn attention(&self, hidden: &Tensor, ranks: &impl Reduce) -> Result<Tensor> {
        let hidden = self.before_attention.forward(hidden)?;
        let (tokens, device) = (hidden.dim(0)?, hidden.device());
        // Of shape [1, heads, tokens, HEAD].
        let by_head = |linear: &Linear| -> Result<Tensor> {
            let projected = linear.forward(&hidden)?.reshape((1, tokens, (), HEAD))?;
            Ok(projected.transpose(1, 2)?.contiguous()?)
        };
        let positions = Tensor::arange(0_u32, tokens as u32, device)?.to_dtype(DType::F32)?;
        let frequency = |i: usize| 10_000_f32.powf(-2.0 * i as f32 / HEAD as f32);
        let frequencies: Vec<_> = (0..HEAD / 2).map(frequency).collect();
        let frequencies = Tensor::from_vec(frequencies, (1, HEAD / 2), device)?;
        let angles = positions.unsqueeze(1)?.broadcast_mul(&frequencies)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let queries = rotary_emb::rope(&by_head(&self.queries)?, &cos, &sin)?;
        let keys = rotary_emb::rope(&by_head(&self.keys)?, &cos, &sin)?;
        // Several heads of queries share a head of keys and values.
        let shared = |tensor: Tensor| -> Result<Tensor> {
            let heads = tensor.dim(1)?;
            let sharing = queries.dim(1)? / heads;
            let tensor = tensor.unsqueeze(2)?.expand((1, heads, sharing, tokens, HEAD))?;
            Ok(tensor.reshape(queries.shape())?)
        };
        let (keys, values) = (shared(keys)?, shared(by_head(&self.values)?)?);
        let scores = (queries.matmul(&keys.t()?)? / (HEAD as f64).sqrt())?;
        let future: Vec<_> = (0..tokens * tokens)
            .map(|i| if i % tokens > i / tokens { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let future = Tensor::from_vec(future, (tokens, tokens), device)?;
        let weights = ops::softmax(&scores.broadcast_add(&future)?, D::Minus1)?;
        let attended = weights.matmul(&values)?.transpose(1, 2)?.reshape((tokens, ()))?;
        ranks.sum(self.output.forward(&attended)?)
    }

    fn mlp(&self, hidden: &Tensor, ranks: &impl Reduce) -> Result<Tensor> {
        let hidden = self.before_mlp.forward(hidden)?;
        let gated = (self.gate.forward(&hidden)?.silu()? * self.up.forward(&hidden)?)?;
        ranks.sum(self.down.forward(&gated)?)
    }
}
