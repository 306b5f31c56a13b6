//! A data set of satellite images, in the style of ML-STAC: each sample is one file, with its
//! tensors and its description.
//!
//! ```text
//! cargo run --release -p safetensors-ndarray --example ndarray_samples [DIRECTORY]
//! ```
//!
//! Without a directory it writes 64 small samples to a temporary one. Then it reads two epochs, in
//! batches of 8, and computes the mean of each band. Files are read ahead by other threads, at most
//! 16 of them, so memory does not depend on the number of samples.

use std::path::{Path, PathBuf};

use ndarray::{Array3, ArrayView4, Axis, Ix4, arr0};
use safetensors_core::framework::Samples;
use safetensors_core::{Metadata, SaveOptions};
use safetensors_ndarray::{DynArray, Ndarray, Writer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BATCH: usize = 8;

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = match std::env::args_os().nth(1) {
        Some(directory) => PathBuf::from(directory),
        None => {
            (0..64).try_for_each(|number| write(temporary.path(), number))?;
            temporary.path().to_owned()
        }
    };
    let samples = Samples::<Ndarray>::open(&directory, ())?;
    println!("{} samples in {}", samples.len(), directory.display());
    for epoch in 0..2 {
        let (mut sum, mut count, mut cloudy) = (vec![0.0; 4], 0, 0);
        samples.for_each_batch(samples.shuffled(epoch), BATCH, |batch| {
            let DynArray::F32(images) = &batch.tensors["input"] else {
                return Err(format!("input has dtype {}", batch.tensors["input"].dtype()).into());
            };
            let images: ArrayView4<f32> = images.view().into_dimensionality::<Ix4>()?;
            // Batch, band, row, column.
            for (band, mean) in sum.iter_mut().enumerate().take(images.len_of(Axis(1))) {
                *mean += f64::from(images.index_axis(Axis(1), band).sum());
            }
            count += images.len() / images.len_of(Axis(1)).max(1);
            let is_cloudy = |metadata: &&Metadata| {
                let cover = metadata.get("eo:cloud_cover").and_then(|cover| cover.parse().ok());
                cover.is_some_and(|cover: f64| cover > 50.0)
            };
            cloudy += batch.metadata.iter().filter(is_cloudy).count();
            Ok::<(), Box<dyn std::error::Error>>(())
        })?;
        let means: Vec<_> = sum.iter().map(|sum| sum / count as f64).collect();
        println!("epoch {epoch}: mean of each band {means:.3?}, {cloudy} cloudy samples");
    }
    Ok(())
}

/// Writes one sample: an image of four bands, its label, and its metadata. It does not wait for the
/// disk, because the sample can be written again.
fn write(directory: &Path, number: u32) -> Result<()> {
    let image = Array3::from_shape_fn((4, 32, 32), |(band, row, column)| {
        (band as f32 + 1.0) * ((number + row as u32 * 31 + column as u32) % 17) as f32
    });
    let options = SaveOptions::new().durable(false).metadata([
        ("datetime", format!("2026-11-{:02}T10:30:00Z", number % 30 + 1)),
        ("eo:cloud_cover", (number * 37 % 100).to_string()),
        ("proj:epsg", "32633".to_owned()),
    ]);
    let w = Writer::create_with(directory.join(format!("{number:05}.safetensors")), &options)?;
    w.add("input", &image)?;
    w.dimensions("input", &["band", "y", "x"])?;
    w.add("target", &arr0(i64::from(number % 3)))?;
    w.finish()?;
    Ok(())
}
