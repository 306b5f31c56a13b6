//! Tensors that an input describes.

use safetensors_core::{Dtype, TensorView, shape};

use crate::input::Input;

/// A tensor in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name, which may belong to another tensor.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// As many bytes as dtype and shape ask for.
    pub data: Vec<u8>,
}

impl Tensor {
    /// A small tensor, of at most 4 KiB.
    pub fn from_input(input: &mut Input<'_>) -> Self {
        const NAMES: [&str; 8] = ["a", "b", "c", "d", "wte.weight", "", "\u{e9}\"\\\n", "__meta__"];
        let name = match input.below(9) {
            8 => input.text(24),
            known => NAMES[known].to_owned(),
        };
        let dtype = input.one_of(Dtype::ALL);
        let mut dims = dims(input, 5);
        let len = loop {
            match shape::byte_len(dtype, &dims) {
                Ok(len) if len <= 4096 => break len as usize,
                // Too large, or no whole bytes: with a dimension of 4 packed elements fill bytes.
                Ok(_) => dims.truncate(dims.len() / 2),
                Err(_) => dims.push(4),
            }
        };
        Self { name, dtype, shape: dims, data: input.filled(len) }
    }

    /// Returns the tensor, borrowed.
    pub fn view(&self) -> TensorView<'_> {
        TensorView::new(self.dtype, &self.shape, &self.data).unwrap()
    }
}

/// Up to `max_ndim` dimensions of 0 to 7.
pub fn dims(input: &mut Input<'_>, max_ndim: usize) -> Vec<usize> {
    let ndim = input.below(max_ndim + 1);
    (0..ndim).map(|_| input.below(8)).collect()
}

/// Up to `most` tensors.
pub fn some(input: &mut Input<'_>, most: usize) -> Vec<Tensor> {
    let count = input.below(most + 1);
    (0..count).map(|_| Tensor::from_input(input)).collect()
}

/// Up to `most` entries of metadata.
pub fn metadata(input: &mut Input<'_>, most: usize) -> Vec<(String, String)> {
    const KEYS: [&str; 4] = ["format", "k", "a", "modelspec.title"];
    let count = input.below(most + 1);
    let entry = |_| {
        let key = match input.below(5) {
            4 => input.text(16),
            known => KEYS[known].to_owned(),
        };
        (key, input.text(48))
    };
    (0..count).map(entry).collect()
}
