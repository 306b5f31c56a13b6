//! [`Source`]: the kinds of input.

use std::ffi::OsStr;
use std::path::Path;

use safetensors_core::Checkpoint;

use super::numpy::{self, Array};
use crate::{input, text};

/// What tensors are taken from.
///
/// A further kind of input is a variant here that has names and values of [`TensorSource`](safetensors_core::TensorSource), and an arm
/// in [`open`](Source::open).
#[derive(Debug)]
pub(crate) enum Source {
    /// A safetensors file, or a checkpoint of several.
    Checkpoint(Checkpoint),
    /// The arrays of a `.npy` or `.npz` file, by name.
    Arrays(Vec<(String, Array)>),
}

impl Source {
    /// Opens an input of the kind that its name says.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_lowercase);
        match extension.as_deref() {
            Some("npy") => Ok(Self::Arrays(numpy::open_npy(path)?)),
            Some("npz") => Ok(Self::Arrays(numpy::open_npz(path)?)),
            Some(kind @ ("bin" | "pt" | "pth" | "ckpt" | "gguf" | "onnx" | "h5" | "keras" | "msgpack")) => {
                anyhow::bail!("{}: .{kind} files cannot be read; safetensors, .npz and .npy can", text::path(path))
            }
            _ => Ok(Self::Checkpoint(input::open(path)?)),
        }
    }

    /// Whether there is no tensor.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.is_empty(),
            Self::Arrays(arrays) => arrays.is_empty(),
        }
    }
}
