//! A BERT model in a browser: its weights are fetched by ranges from a static server, read by
//! candle's layers through a `VarBuilder`, and run in the page. `src/main.rs` does the same with
//! files, so that both can be compared.

mod bert;
#[cfg(target_family = "wasm")]
mod http;
#[cfg(target_family = "wasm")]
pub mod page;

use bert::{Bert, Config};
use candle_core::{Device, Result, Tensor};
use candle_nn::VarBuilder;

/// Returns the mean of the last layer's output over some tokens: `hidden_size` numbers.
///
/// # Errors
///
/// An error of reading the weights, or of candle; a `config.json` that lacks a number.
pub fn embed(weights: VarBuilder<'_>, config: &[u8], tokens: &[u32]) -> Result<Vec<f32>> {
    let config = Config::parse(config).map_err(candle_core::Error::wrap)?;
    let model = Bert::load(weights.pp("bert"), &config)?;
    let hidden = model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?)?;
    hidden.mean(1)?.squeeze(0)?.to_vec1()
}
