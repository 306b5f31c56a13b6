//! Reads one rank's part of a model in a bucket, on a web server or on the Hub. Only the bytes of
//! the part are fetched.
//!
//! ```text
//! cargo run -p safetensors-hub --features remote --example remote_slice
//! cargo run ... --example remote_slice -- s3://bucket/model 1 4      # rank 1 of 4
//! ```
//!
//! Without arguments it saves a small model to memory first, and reads that.

use std::error::Error;
use std::ops::ControlFlow;

use safetensors_core::load::read_slices;
use safetensors_core::slice::RankPart;
use safetensors_core::{LoadOptions, Result, ShardOptions, TensorBuf};
use safetensors_hub::remote::{self, RemoteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = match args.next() {
        Some(address) => address,
        None => small_model()?,
    };
    let mut number = |default| args.next().map_or(Ok(default), |text| text.parse());
    let (rank, world_size) = (number(0)?, number(2)?);

    let checkpoint = remote::open(&address)?;
    // Weights are cut by their rows, if these divide evenly among the ranks. The rest is read in
    // full.
    let mut parts = Vec::new();
    for tensor in checkpoint.tensors() {
        let rows = tensor.shape().first().copied().unwrap_or(0);
        parts.push(if tensor.shape().len() > 1 && rows % world_size == 0 {
            tensor.slice(RankPart::new(0, rank, world_size))?
        } else {
            tensor.slice(Vec::new())?
        });
    }
    let options = LoadOptions::new().progress(|progress| {
        eprint!("\r{} of {} bytes", progress.bytes_done, progress.bytes_total);
        ControlFlow::Continue(())
    });
    let read = read_slices(&parts, &options)?;
    eprintln!();
    for (part, buf) in parts.iter().zip(&read) {
        let (name, whole) = (part.tensor().name(), part.tensor().shape());
        println!("{name:?}: {} {:?} of {whole:?}", buf.dtype(), buf.shape());
    }
    Ok(())
}

/// Saves a model of two shards to memory, and returns its address.
fn small_model() -> Result<String> {
    let address = "memory:///small-model";
    let values: Vec<f32> = (0..32).map(|value| value as f32).collect();
    let tensors = [
        ("up.weight", TensorBuf::from_vec(vec![8, 4], values.clone())?),
        ("down.weight", TensorBuf::from_vec(vec![4, 8], values)?),
        ("norm", TensorBuf::from_vec(vec![4], vec![1.0_f32; 4])?),
    ];
    let options = ShardOptions::new().max_shard_size(140.into());
    RemoteOptions::new().save_sharded(address, tensors, &options)?;
    Ok(address.to_owned())
}
