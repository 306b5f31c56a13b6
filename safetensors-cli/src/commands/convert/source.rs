//! [`Source`]: an input that is open.

use std::path::Path;

use safetensors_core::{Checkpoint, Result, Rewrite, TensorSource};

use super::kind::Kind;
use crate::usage::WrongUsage;
use crate::{input, numpy, text};

/// What tensors are taken from.
pub(super) enum Source {
    /// A safetensors file, or a checkpoint of several.
    Checkpoint(Checkpoint),
    /// Tensors by name, in whatever format they are; they are read when they are written.
    Tensors(Vec<(String, Box<dyn TensorSource + Send>)>),
}

impl Source {
    /// Opens an input of the kind that its name says.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        match Kind::of(path) {
            Kind::Safetensors | Kind::Index | Kind::Checkpoint => Ok(Self::Checkpoint(input::open(path)?)),
            Kind::Npy => Ok(Self::of(numpy::open_npy(path)?)),
            Kind::Npz => Ok(Self::of(numpy::open_npz(path)?)),
            Kind::Foreign(format) => Err(WrongUsage::error(format!(
                "{}: {format} files cannot be read; convert it to .safetensors or .npz first, with a tool that knows {format}",
                text::path(path)
            ))),
        }
    }

    /// Tensors of any one kind.
    fn of<S: TensorSource + Send + 'static>(tensors: Vec<(String, S)>) -> Self {
        let boxed = |(name, tensor)| (name, Box::new(tensor) as Box<dyn TensorSource + Send>);
        Self::Tensors(tensors.into_iter().map(boxed).collect())
    }

    /// Adds all tensors to what will be written.
    pub(super) fn add_to<'a>(&'a self, rewrite: Rewrite<'a>) -> Result<Rewrite<'a>> {
        match self {
            Self::Checkpoint(checkpoint) => Ok(rewrite.merge(checkpoint)),
            Self::Tensors(tensors) => {
                tensors.iter().try_fold(rewrite, |rewrite, (name, tensor)| rewrite.add(name.as_str(), tensor))
            }
        }
    }
}
