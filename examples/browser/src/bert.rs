//! [`Bert`]: the encoder of BERT, of candle's layers.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{Embedding, LayerNorm, Linear, Module, VarBuilder, embedding, layer_norm, linear};
use serde_json::Value;

/// The numbers of a `config.json`.
pub(crate) struct Config(BTreeMap<String, Value>);

impl Config {
    pub(crate) fn parse(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json).map(Self)
    }

    fn number(&self, key: &str) -> Result<f64> {
        let number = self.0.get(key).and_then(Value::as_f64);
        number.ok_or_else(|| candle_core::Error::Msg(format!("config.json has no number {key}")))
    }

    fn size(&self, key: &str) -> Result<usize> {
        Ok(self.number(key)? as usize)
    }
}

/// The encoder of BERT.
pub(crate) struct Bert {
    words: Embedding,
    positions: Embedding,
    kinds: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    heads: usize,
    /// The projections to queries, keys and values.
    projections: [Linear; 3],
    output: Linear,
    output_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl Bert {
    /// Reads the weights. They have the names that transformers gives them.
    pub(crate) fn load(weights: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let (width, epsilon) = (config.size("hidden_size")?, config.number("layer_norm_eps")?);
        let of = weights.pp("embeddings");
        let table = |size, name| embedding(config.size(size)?, width, of.pp(name));
        let layers = 0..config.size("num_hidden_layers")?;
        Ok(Self {
            words: table("vocab_size", "word_embeddings")?,
            positions: table("max_position_embeddings", "position_embeddings")?,
            kinds: table("type_vocab_size", "token_type_embeddings")?,
            norm: layer_norm(width, epsilon, of.pp("LayerNorm"))?,
            layers: layers
                .map(|number| Layer::load(weights.pp(format!("encoder.layer.{number}")), config))
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the output of the last layer for tokens `[1, n]`: `[1, n, hidden_size]`.
    pub(crate) fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0, tokens.dim(1)? as u32, tokens.device())?.unsqueeze(0)?;
        let sum = (self.words.forward(tokens)? + self.positions.forward(&positions)?)?;
        let sum = (sum + self.kinds.forward(&tokens.zeros_like()?)?)?;
        let hidden = self.norm.forward(&sum)?;
        self.layers.iter().try_fold(hidden, |hidden, layer| layer.forward(&hidden))
    }
}

impl Layer {
    fn load(weights: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let (width, inner) = (config.size("hidden_size")?, config.size("intermediate_size")?);
        let norm = |name| layer_norm(width, config.number("layer_norm_eps")?, weights.pp(name));
        let square = |name: &str| linear(width, width, weights.pp(name));
        Ok(Self {
            heads: config.size("num_attention_heads")?,
            projections: [
                square("attention.self.query")?,
                square("attention.self.key")?,
                square("attention.self.value")?,
            ],
            output: square("attention.output.dense")?,
            output_norm: norm("attention.output.LayerNorm")?,
            up: linear(width, inner, weights.pp("intermediate.dense"))?,
            down: linear(inner, width, weights.pp("output.dense"))?,
            norm: norm("output.LayerNorm")?,
        })
    }

    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let (batch, len, width) = hidden.dims3()?;
        let of_heads = |projection: &Linear| {
            let projected = projection.forward(hidden)?;
            let divided = projected.reshape((batch, len, self.heads, width / self.heads))?;
            divided.transpose(1, 2)?.contiguous()
        };
        let [queries, keys, values] = &self.projections;
        let scores = of_heads(queries)?.matmul(&of_heads(keys)?.t()?)?;
        let scores = (scores / ((width / self.heads) as f64).sqrt())?;
        let attended = softmax_last_dim(&scores)?.matmul(&of_heads(values)?)?;
        let attended = attended.transpose(1, 2)?.reshape((batch, len, width))?;
        let hidden = self.output_norm.forward(&(hidden + self.output.forward(&attended)?)?)?;
        let inner = self.down.forward(&self.up.forward(&hidden)?.gelu_erf()?)?;
        self.norm.forward(&(hidden + inner)?)
    }
}
