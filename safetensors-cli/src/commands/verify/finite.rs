//! Finds NaN and infinity in the values of a checkpoint.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use safetensors_core::framework::{Quoted, in_order};
use safetensors_core::load::Piece;
use safetensors_core::{Dtype, Result};

use super::fault::Fault;
use crate::input::other::DisplayedTensor;
use crate::input::{Checkpoint, Source, Tensor, quantized_weights};
use crate::model::values::{self, Numbers, block_bytes};
use crate::terminal::progress::Progress;
use crate::terminal::text;

#[derive(Default)]
struct NotFinite {
    count: u64,
    /// The position of the first one in the tensor, and its value.
    first: Option<(u64, f64)>,
}

/// Lists the tensors with NaN or infinity, and unreadable ones. Checks quantised weights as
/// numbers, and other tensors as stored: scales of activations are not part of the numbers.
pub(super) fn faults(stored: Checkpoint, threads: usize, progress: &Progress) -> Vec<Fault> {
    let weights = quantized_weights(&stored);
    let codes = weights.iter().filter_map(|weight| weight.tensors.first());
    let codes: HashSet<_> = codes.map(String::as_str).collect();
    let tensors = stored.tensors().filter(|tensor| !codes.contains(tensor.name()));
    let mut faults = not_finite(tensors, threads, progress);
    if weights.is_empty() {
        return faults;
    }
    match stored.dequantized() {
        Ok(numbers) => {
            let numbers = numbers.into_boxed();
            let tensors = weights.iter().filter_map(|weight| numbers.get(&weight.name));
            faults.extend(not_finite(tensors, threads, progress));
        }
        Err(error) => faults.push(anyhow::Error::from(error).into()),
    }
    faults
}

fn not_finite<'a>(
    tensors: impl Iterator<Item = Tensor<'a>>,
    threads: usize,
    progress: &Progress,
) -> Vec<Fault> {
    let tensors: Vec<_> = tensors.filter(has_floats).collect();
    progress.add_total(tensors.iter().map(Tensor::byte_len).sum());
    let pieces = tensors.iter().enumerate();
    let pieces = pieces.flat_map(|(i, tensor)| tensor.pieces().map(move |piece| (i, piece)));
    let mut found = BTreeMap::new();
    let work = |(_, piece): &(usize, Piece<'_, Source>), buffers: &mut (Vec<u8>, Numbers)| {
        progress.add(piece.byte_len());
        NotFinite::count(piece, buffers)
    };
    let merge = |(i, _): (usize, _), of_piece| -> Result<()> {
        match (found.entry(i).or_insert_with(|| Ok(NotFinite::default())), of_piece) {
            (Ok(all), Ok(NotFinite { count, first })) => {
                all.count += count;
                all.first = all.first.or(first);
            }
            (all @ Ok(_), Err(error)) => *all = Err(error),
            (Err(_), _) => {}
        }
        Ok(())
    };
    // No error ends it.
    let _ = in_order(pieces, threads, work, merge);
    let fault = |(i, found): (usize, Result<NotFinite>)| match found {
        Ok(found) => found.fault(&tensors[i]),
        Err(error) => Some(anyhow::Error::from(error).into()),
    };
    found.into_iter().filter_map(fault).collect()
}

fn has_floats(tensor: &Tensor<'_>) -> bool {
    (tensor.dtype().is_float() || tensor.dtype() == Dtype::C64)
        && !DisplayedTensor::new(tensor).is_unread()
}

impl NotFinite {
    fn count(piece: &Piece<'_, Source>, (bytes, numbers): &mut (Vec<u8>, Numbers)) -> Result<Self> {
        let dtype = piece.tensor().dtype();
        let parts = if dtype == Dtype::C64 { 2 } else { 1 };
        let mut found = Self::default();
        let mut position = piece.start();
        for block in values::read(piece, bytes)?.chunks(block_bytes(dtype)) {
            let numbers = numbers.of_part(piece, block)?;
            for (i, &number) in numbers.iter().enumerate().filter(|(_, it)| !it.is_finite()) {
                found.count += 1;
                found.first.get_or_insert((position + i as u64 / parts, number));
            }
            position += numbers.len() as u64 / parts;
        }
        Ok(found)
    }

    fn fault(&self, tensor: &Tensor<'_>) -> Option<Fault> {
        let (mut position, number) = self.first?;
        let mut index = vec![0; tensor.shape().len()];
        for (at, &len) in index.iter_mut().zip(tensor.shape()).rev() {
            *at = (position % len as u64) as usize;
            position /= len as u64;
        }
        let file = tensor.file().map(Path::display).map(|file| file.to_string());
        let error = format!(
            "{}tensor {}: {} of {} are NaN or infinite; the first, {}, is {}",
            file.as_ref().map(|file| format!("{}: ", text::printable(file))).unwrap_or_default(),
            Quoted(tensor.name()),
            text::count(self.count),
            text::counted(tensor.element_count(), "value"),
            text::shape(&index),
            text::number(number),
        );
        Some(Fault::new("not_finite", error).of_tensor(file, tensor.name()))
    }
}
