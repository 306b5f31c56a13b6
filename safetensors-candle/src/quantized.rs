//! Quantised weights, for loads that ask for tensors by their names.

use std::collections::HashMap;

use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result};

/// The source of a checkpoint that models are built from.
pub(crate) type Source<'a> = Box<dyn ReadAt + 'a>;

/// The checkpoint as these options read it: with quantised weights as numbers, or as it is stored.
pub(crate) fn prepare<'a>(
    checkpoint: Checkpoint<impl ReadAt + 'a>,
    options: &LoadOptions,
) -> Result<Checkpoint<Source<'a>>> {
    Ok(match options.reads_numbers() {
        true => checkpoint.dequantized()?.into_boxed(),
        false => checkpoint.into_boxed(),
    })
}

/// Fails for codes, unless the options read them. The shape of codes is not the shape of the
/// weight, so this comes before any comparison of shapes.
pub(crate) fn check(tensor: &LazyTensor<'_, impl ReadAt>, options: &LoadOptions) -> Result<()> {
    if options.reads_codes() { Ok(()) } else { tensor.refuse_codes() }
}

/// The quantised weight with the first of these names that is stored as tensors of other names.
/// `None` if the options read these as they are.
pub(crate) fn stored_otherwise<'n>(
    checkpoint: &Checkpoint<impl ReadAt>,
    names: impl IntoIterator<Item = &'n str>,
    options: &LoadOptions,
) -> Option<QuantizedWeight> {
    if options.reads_codes() {
        return None;
    }
    // A checkpoint that cannot be understood has errors for the tensors that it does have.
    let weights = checkpoint.quantized_weights().unwrap_or_default();
    let mut names = names.into_iter().filter(|name| checkpoint.get(name).is_none());
    let weights: HashMap<_, _> = weights.into_iter().map(|it| (it.name.clone(), it)).collect();
    names.find_map(|name| weights.get(name).cloned())
}
