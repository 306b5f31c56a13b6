//! Reading many tensors at once: the same bytes with any number of threads, and errors that name
//! the tensor and file.

mod failures;
mod reading;
mod sources;
mod waiting;

use crate::support::*;

/// `len` bytes that differ by position and seed.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    repeated(len, 251 << 8, |i| ((i * 31 + (i >> 8) + seed) % 251) as u8)
}

/// Saves U8 tensors of these lengths, in this order, and returns their bytes.
pub(crate) fn save_tensors(path: &Path, lengths: &[usize]) -> Vec<Vec<u8>> {
    let data: Vec<_> = lengths.iter().enumerate().map(|(seed, len)| pattern(*len, seed)).collect();
    let shapes: Vec<_> = lengths.iter().map(|len| [*len]).collect();
    let views = data.iter().zip(&shapes).enumerate();
    let views = views.map(|(i, (data, shape))| {
        (format!("t{i:05}"), TensorView::new(Dtype::U8, shape, data).unwrap())
    });
    save(path, views, &SaveOptions::new().durable(false)).unwrap();
    data
}
