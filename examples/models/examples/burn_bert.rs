//! Sentence embeddings with a BERT of burn's layers, its weights loaded through
//! `safetensors_bridge::burn::CheckpointStore`.
//!
//! ```text
//! cargo run --release -p model-examples --example burn_bert -- MODEL_DIRECTORY [SENTENCE...]
//! ```
//!
//! The directory holds `config.json`, `model.safetensors` and `tokenizer.json` of all-MiniLM-L6-v2,
//! or of another BERT model with the mean over its tokens as sentence embedding. The example prints
//! the cosines between all sentences, which equal `candle_bert`'s.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use model_examples::sentences::{Tokens, arguments, expect_file, print_matrix};
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::{Dtype, LoadOptions};
use serde::Deserialize;

fn main() -> Result<()> {
    let (directory, sentences) = arguments()?;
    let device = Device::default();
    let model = load(&directory, &device)?;
    let embeddings = embed(&model, &Tokens::new(&sentences, &directory)?, &device);
    let cosines = embeddings.clone().matmul(embeddings.transpose()).into_data();
    let cosines: Vec<f32> = cosines.iter().collect();
    print_matrix(
        &sentences,
        &cosines.chunks(sentences.len()).map(<[f32]>::to_vec).collect::<Vec<_>>(),
    );
    Ok(())
}

/// The fields of `config.json` that the example needs.
#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: String,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
}

#[derive(Module, Debug)]
struct Bert {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Layer {
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// Returns the model of a directory.
fn load(directory: &Path, device: &Device) -> Result<Bert> {
    let config = expect_file(directory, "config.json", "the model's configuration")?;
    let weights = expect_file(directory, "model.safetensors", "the model's weights")?;
    let config = read_config(&config).with_context(|| {
        format!("{} is not the configuration of a BERT model", config.display())
    })?;
    // The rules map the names of the file to the fields above. The layout of PyTorch does the rest:
    // weights are transposed, norms have other names.
    let mut store = CheckpointStore::from_file(weights)
        .pytorch(true)
        .load_options(LoadOptions::new().floats_as(Dtype::F32))
        .with_key_remapping(r"\.attention\.self\.", ".attention.")
        .with_key_remapping(r"\.attention\.output\.dense\.", ".attention.output.")
        .with_key_remapping(r"\.attention\.output\.LayerNorm\.", ".attention_norm.")
        .with_key_remapping(r"\.intermediate\.dense\.", ".intermediate.")
        .with_key_remapping(r"\.output\.dense\.", ".output.")
        .with_key_remapping(r"\.output\.LayerNorm\.", ".output_norm.")
        .with_key_remapping(r"\.LayerNorm\.", ".norm.")
        .with_key_remapping(r"^encoder\.layer\.", "layers.");
    let mut model = Bert::new(&config, device);
    model.load_from(&mut store)?;
    Ok(model)
}

fn read_config(path: &Path) -> Result<Config> {
    let config: Config = serde_json::from_slice(&std::fs::read(path)?)?;
    let (width, heads) = (config.hidden_size, config.num_attention_heads);
    ensure!(config.hidden_act == "gelu", "hidden_act is {}, expected gelu", config.hidden_act);
    ensure!(
        heads > 0 && width.is_multiple_of(heads),
        "hidden_size is {width}, which {heads} attention heads cannot share"
    );
    Ok(config)
}

impl Bert {
    fn new(config: &Config, device: &Device) -> Self {
        let width = config.hidden_size;
        let table = |rows| EmbeddingConfig::new(rows, width).init(device);
        let norm = || LayerNormConfig::new(width).with_epsilon(config.layer_norm_eps).init(device);
        let layer = |_| Layer {
            attention: MultiHeadAttentionConfig::new(width, config.num_attention_heads)
                .init(device),
            attention_norm: norm(),
            intermediate: LinearConfig::new(width, config.intermediate_size).init(device),
            output: LinearConfig::new(config.intermediate_size, width).init(device),
            output_norm: norm(),
        };
        Self {
            embeddings: Embeddings {
                word_embeddings: table(config.vocab_size),
                position_embeddings: table(config.max_position_embeddings),
                token_type_embeddings: table(config.type_vocab_size),
                norm: norm(),
            },
            layers: (0..config.num_hidden_layers).map(layer).collect(),
        }
    }

    /// A vector for each token of each sentence. `padding` is true where there is no token.
    fn forward(
        &self,
        ids: Tensor<2, Int>,
        types: Tensor<2, Int>,
        padding: &Tensor<2, Bool>,
    ) -> Tensor<3> {
        let Embeddings { word_embeddings, position_embeddings, token_type_embeddings, norm } =
            &self.embeddings;
        let [_, length] = ids.dims();
        let positions = Tensor::arange(0..length as i64, &ids.device()).unsqueeze();
        let embedded = word_embeddings.forward(ids)
            + token_type_embeddings.forward(types)
            + position_embeddings.forward(positions);
        let hidden = norm.forward(embedded);
        self.layers.iter().fold(hidden, |hidden, layer| layer.forward(hidden, padding))
    }
}

impl Layer {
    fn forward(&self, hidden: Tensor<3>, padding: &Tensor<2, Bool>) -> Tensor<3> {
        let input = MhaInput::self_attn(hidden.clone()).mask_pad(padding.clone());
        let attended = self.attention.forward(input).context;
        let hidden = self.attention_norm.forward(hidden + attended);
        let wide = Gelu::new().forward(self.intermediate.forward(hidden.clone()));
        self.output_norm.forward(hidden + self.output.forward(wide))
    }
}

/// One embedding of length 1 per sentence, as the rows of a matrix.
fn embed(model: &Bert, tokens: &Tokens, device: &Device) -> Tensor<2> {
    let mask = matrix(tokens.mask(), device);
    let hidden = model.forward(
        matrix(tokens.ids(), device),
        matrix(tokens.types(), device),
        &mask.clone().equal_elem(0),
    );

    // The model gives one vector per token. Their mean over the real tokens, without the padding,
    // is the embedding of the sentence. Only its direction counts, so the sum is as good.
    let sum: Tensor<2> = (hidden * mask.float().unsqueeze_dim(2)).sum_dim(1).squeeze_dim(1);
    let length = sum.clone().square().sum_dim(1).sqrt();
    sum / length
}

fn matrix<'a>(rows: impl Iterator<Item = &'a [u32]>, device: &Device) -> Tensor<2, Int> {
    let rows: Vec<_> = rows.collect();
    let shape = [rows.len(), rows.first().map_or(0, |row| row.len())];
    Tensor::from_data(TensorData::new(rows.concat(), shape), device)
}
