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

/// The mean over some tokens of what the last layer makes of them: `hidden_size` numbers.
///
/// # Errors
///
/// Those of reading the weights, and of candle; a `config.json` that lacks a number.
pub fn embed(weights: VarBuilder<'_>, config: &[u8], tokens: &[u32]) -> Result<Vec<f32>> {
    let config = Config::parse(config).map_err(candle_core::Error::wrap)?;
    let model = Bert::load(weights.pp("bert"), &config)?;
    let hidden = model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?)?;
    hidden.mean(1)?.squeeze(0)?.to_vec1()
}
