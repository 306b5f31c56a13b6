//! [`embed`]: the function that the page calls.

use std::error::Error;
use std::ops::ControlFlow;

use candle_core::{DType, Device};
use safetensors_candle::var_builder_from;
use safetensors_core::checkpoint::store::AsyncStore;
use safetensors_core::{Checkpoint, Limits, LoadOptions};
use wasm_bindgen::prelude::*;

use crate::http::HttpFile;

#[wasm_bindgen]
extern "C" {
    /// Shows how far the page is. The page defines it.
    fn show(text: &str);
}

/// Loads the model of a directory of the server, and returns the result of [`embed`](crate::embed)
/// for some tokens.
///
/// # Errors
///
/// A text with the reason, the file and the tensor.
#[wasm_bindgen]
pub async fn embed(directory: String, tokens: Vec<u32>) -> Result<Vec<f32>, JsError> {
    run(&directory, &tokens).await.map_err(|error| JsError::new(&error.to_string()))
}

async fn run(directory: &str, tokens: &[u32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let store = AsyncStore::new(HttpFile::open);
    let checkpoint = Checkpoint::open_async(&store, directory, &Limits::default()).await?;
    show(&format!("{} tensors in {} files", checkpoint.len(), checkpoint.files().len()));
    // The settings are next to the files.
    let config = store.run(|_| checkpoint.read_beside("config.json", 1 << 20)).await?;
    let (_, config) = config.ok_or("the model has no config.json")?;

    // Only the tensors that the model will ask for, and not the head of the language model.
    let wanted: Vec<_> =
        checkpoint.tensors().filter(|tensor| tensor.name().starts_with("bert.")).collect();
    let options = LoadOptions::new().progress(|progress| {
        show(&format!("{} of {} bytes", progress.bytes_done, progress.bytes_total));
        ControlFlow::Continue(())
    });
    // In memory until the model has been made.
    let _fetched = store.fetch(&wanted, &options).await?;
    drop(wanted);
    let weights = var_builder_from(checkpoint, DType::F32, &Device::Cpu);
    Ok(crate::embed(weights, &config, tokens)?)
}
