//! [`Case`]: a small checkpoint, and its expected result.

use std::path::Path;

use Dtype::I32;
use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorBuf, TensorView, save};

use super::Quantized;

/// Tensors by their names.
pub type Tensors = Vec<(&'static str, TensorBuf)>;

/// A small checkpoint as a public tool may write it: it is read right, or refused by name.
#[derive(Clone, Debug)]
pub struct Case {
    /// The special point of it, for messages.
    pub about: &'static str,
    /// The `quantization_config` of `config.json`; without the file if empty.
    pub config: &'static str,
    /// The tensors of its only file.
    pub tensors: Tensors,
    /// The names of the file of numbers, sorted.
    pub names: &'static [&'static str],
    /// One of its weights, and the first numbers of it.
    pub weight: &'static str,
    /// See `weight`.
    pub values: &'static [f32],
    /// The parts of the error message; empty if the case is read.
    pub refused: &'static [&'static str],
}

impl Case {
    /// Writes the checkpoint into a directory.
    pub fn write(&self, directory: &Path) -> Quantized {
        if !self.config.is_empty() {
            let text = format!("{{\"quantization_config\": {}}}", self.config);
            std::fs::write(directory.join("config.json"), text).unwrap();
        }
        let path = directory.join("model.safetensors");
        let tensors = self.tensors.iter().map(|(name, buf)| (*name, buf));
        save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
        Checkpoint::open(&path).unwrap();
        Quantized { name: self.about.into(), directory: directory.to_owned() }
    }

    /// Checks numbers of the weight, or the error, that a way to read has given.
    pub fn check(&self, way: &str, found: Result<&[f32], &str>) {
        let about = self.about;
        match (found, self.refused) {
            (Ok(found), []) => {
                assert_eq!(found[..self.values.len()], *self.values, "{about}: {way}");
            }
            (Ok(found), _) => panic!("{about}: {way}: {found:?}"),
            (Err(error), []) => panic!("{about}: {way}: {error}"),
            (Err(error), parts) => {
                for part in parts {
                    assert!(error.contains(part), "{about}: {way}: {part} is not in {error}");
                }
            }
        }
    }
}

/// Makes a tensor of these bytes; the last one is repeated.
pub fn raw(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> TensorBuf {
    let len = (shape.iter().product::<usize>() * dtype.bits() as usize).div_ceil(8);
    let mut all = bytes.to_vec();
    all.resize(len, bytes.last().copied().unwrap_or(0));
    TensorBuf::from_view(&TensorView::new(dtype, shape, &all).unwrap()).unwrap()
}

/// A tensor of F32.
pub fn floats(shape: &[usize], values: &[f32]) -> TensorBuf {
    TensorBuf::from_vec(shape.to_vec(), values.to_vec()).unwrap()
}

/// A tensor of I32 with these words.
pub fn words(shape: &[usize], values: &[u32]) -> TensorBuf {
    let bytes: Vec<_> = values.iter().flat_map(|word| word.to_le_bytes()).collect();
    raw(I32, shape, &bytes)
}

/// 1 in F8_E4M3.
pub const ONE: u8 = 0x38;
/// 2 in F8_E4M3.
pub const TWO: u8 = 0x40;
