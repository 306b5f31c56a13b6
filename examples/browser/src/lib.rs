//! A BERT model in a browser: its weights are fetched by ranges from a static server, read by
//! candle's layers through a `VarBuilder`, and run in the page.

mod bert;
mod http;

use std::error::Error;
use std::ops::ControlFlow;

use bert::{Bert, Config};
use candle_core::{DType, Device, Tensor};
use http::HttpFile;
use safetensors_candle::var_builder_from;
use safetensors_core::checkpoint::store::AsyncStore;
use safetensors_core::{Checkpoint, Limits, LoadOptions};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// Shows how far the page is. The page defines it.
    fn show(text: &str);
}

/// Loads the model of a directory of the server, and returns the mean of what it makes of some
/// tokens.
///
/// # Errors
///
/// A text that says what went wrong, and with which file and tensor.
#[wasm_bindgen]
pub async fn embed(directory: String, tokens: Vec<u32>) -> Result<Vec<f32>, JsError> {
    run(&directory, tokens).await.map_err(|error| JsError::new(&error.to_string()))
}

async fn run(directory: &str, tokens: Vec<u32>) -> Result<Vec<f32>, Box<dyn Error>> {
    let store = AsyncStore::new(HttpFile::open);
    let checkpoint = Checkpoint::open_async(&store, directory, &Limits::default()).await?;
    show(&format!("{} tensors in {} files", checkpoint.len(), checkpoint.files().len()));
    // The settings lie beside the files.
    let config = store.run(|_| checkpoint.read_beside("config.json", 1 << 20)).await?;
    let (_, config) = config.ok_or("the model has no config.json")?;
    let config = Config::parse(&config)?;

    // Only what the model will ask for, and not the head of the language model.
    let wanted: Vec<_> =
        checkpoint.tensors().filter(|tensor| tensor.name().starts_with("bert.")).collect();
    let options = LoadOptions::new().progress(|progress| {
        show(&format!("{} of {} bytes", progress.bytes_done, progress.bytes_total));
        ControlFlow::Continue(())
    });
    let fetched = store.fetch(&wanted, &options).await?;
    let weights = var_builder_from(checkpoint, DType::F32, &Device::Cpu);
    let model = Bert::load(weights.pp("bert"), &config)?;
    drop(fetched);

    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let hidden = model.forward(&tokens)?;
    Ok(hidden.mean(1)?.squeeze(0)?.to_vec1()?)
}
