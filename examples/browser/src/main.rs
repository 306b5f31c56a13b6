//! Computes the page's result from a model in a directory: `browser-bert DIRECTORY TOKEN,TOKEN...`

use std::error::Error;
use std::path::PathBuf;

use candle_core::{DType, Device};
use safetensors_candle::var_builder;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, directory, tokens] = arguments.as_slice() else {
        return Err("expected a directory and tokens, such as 2,17,3".into());
    };
    let directory = PathBuf::from(directory);
    let tokens = tokens.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let config = std::fs::read(directory.join("config.json"))?;
    let weights = var_builder(&directory, DType::F32, &Device::Cpu)?;
    for number in browser_bert::embed(weights, &config, &tokens)? {
        println!("{number}");
    }
    Ok(())
}
