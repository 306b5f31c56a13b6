//! A directory of samples, each a file: an epoch in shuffled batches, beside the loop that a program
//! has otherwise.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use ndarray::{Array4, Ix4};
use safetensors::SafeTensors as Reference;
use safetensors_bridge::framework::Samples;
use safetensors_bridge::ndarray::Ndarray;

use super::Spec;
use harness::data::Data;
use harness::files::{Sums, Tensor, write};
use harness::sample::{Contender, Goal, Row};

/// The samples, the samples of a batch, and the shape of an image: 192 KiB of F32.
const COUNT: usize = 1000;
const BATCH: usize = 32;
const IMAGE: [usize; 3] = [3, 128, 128];
const NAME: &str = "image";
const SEED: u64 = 7;
const BY_HAND: &str = "std::fs::read, safetensors, stacked";

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("1,000 samples of 192 KiB in shuffled batches of 32", |data| {
        let directory = samples(data)?;
        let (here, there) = (directory.clone(), directory.clone());
        ensure!(sum(|take| ours(&here, take))? == sum(|take| by_hand(&there, take))?, "unlike");
        let ours = Contender::ours("Samples::for_each_batch", move |watch| {
            watch.time(|| ours(&here, |_| ()))
        });
        let peer = Contender::peer(BY_HAND, move |watch| watch.time(|| by_hand(&there, |_| ())));
        let bytes = (COUNT * IMAGE.iter().product::<usize>() * size_of::<f32>()) as u64;
        let row = Row::new(vec![ours, peer]).goals([Goal::Faster(BY_HAND, 1.0)]).bytes(bytes);
        Ok((0..COUNT).fold(row, |row, i| row.reads(path(&directory, i))))
    })]
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("{number:05}.safetensors"))
}

/// The directory of the samples. What says that they are complete is beside it.
fn samples(data: &Data) -> Result<PathBuf> {
    let directory = data.path().join("samples");
    data.file_by("samples.complete", |complete| {
        std::fs::create_dir_all(&directory)?;
        for i in 0..COUNT {
            write(&path(&directory, i), &[Tensor::f32(NAME.into(), &IMAGE)])?;
        }
        std::fs::write(complete, "")?;
        Ok(Sums { plain: 0, widened: 0 })
    })?;
    Ok(directory)
}

/// A number that depends on the elements and on the order of the batches.
fn sum(epoch: impl FnOnce(&mut dyn FnMut(Array4<f32>)) -> Result<()>) -> Result<Vec<f64>> {
    let mut sums = Vec::new();
    epoch(&mut |batch| sums.push(batch.iter().map(|&x| f64::from(x)).sum()))?;
    Ok(sums)
}

fn ours(directory: &Path, mut take: impl FnMut(Array4<f32>)) -> Result<()> {
    let samples = Samples::<Ndarray>::open(directory, ())?;
    samples.for_each_batch(samples.shuffled(SEED), BATCH, |mut batch| {
        let images = batch.tensors.remove(NAME).ok_or_else(|| anyhow::anyhow!("no image"))?;
        take(images.into_array::<f32, Ix4>()?);
        Ok::<(), anyhow::Error>(())
    })
}

/// The same order, one sample after the other.
fn by_hand(directory: &Path, mut take: impl FnMut(Array4<f32>)) -> Result<()> {
    let order = Samples::<Ndarray>::open(directory, ())?.shuffled(SEED);
    let [bands, rows, columns] = IMAGE;
    for batch in order.chunks(BATCH) {
        let mut elements = Vec::with_capacity(batch.len() * bands * rows * columns);
        for &number in batch {
            let bytes = std::fs::read(path(directory, number))?;
            let image = Reference::deserialize(&bytes)?.tensor(NAME)?;
            let floats = image.data().as_chunks::<4>().0.iter();
            elements.extend(floats.map(|&bytes| f32::from_le_bytes(bytes)));
        }
        take(Array4::from_shape_vec((batch.len(), bands, rows, columns), elements)?);
    }
    Ok(())
}
