//! [`Source`]: an input that is open.

use std::path::{Path, PathBuf};

use safetensors_core::{Checkpoint, Rewrite};

use super::kind::Kind;
use crate::numpy::Arrays;
use crate::report::wrong_usage;
use crate::{input, text};

/// What tensors are taken from.
pub(super) struct Source {
    path: PathBuf,
    content: Content,
}

enum Content {
    /// A safetensors file, or a checkpoint of several.
    Checkpoint(Checkpoint),
    /// A file of NumPy.
    Arrays(Arrays),
}

impl Source {
    /// Opens an input of the kind that its name says. Of other formats only the names are read.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let content = match Kind::of(path) {
            Kind::Safetensors | Kind::Index | Kind::Checkpoint => {
                Content::Checkpoint(input::open(path)?)
            }
            Kind::Npy => Content::Arrays(Arrays::of_npy(path)?),
            Kind::Npz => Content::Arrays(Arrays::of_npz(path)?),
            Kind::Foreign(format) => {
                return Err(wrong_usage(format!(
                    "{}: {format} files cannot be read; convert it to .safetensors or .npz first, with a tool that knows {format}",
                    text::path(path)
                )));
            }
        };
        Ok(Self { path: path.into(), content })
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> String {
        input::name(&self.path)
    }

    /// All names of tensors, aliases among them.
    pub(super) fn names(&self) -> Vec<&str> {
        match &self.content {
            Content::Checkpoint(checkpoint) => {
                let names = checkpoint.tensors().map(|tensor| tensor.name());
                names.chain(checkpoint.aliases().map(|(alias, _)| alias)).collect()
            }
            Content::Arrays(arrays) => arrays.names().iter().map(String::as_str).collect(),
        }
    }

    /// Adds its tensors to what will be written. Those of other formats have to be understood for
    /// that, so those that are not taken are passed over.
    pub(super) fn add_to<'a>(
        &'a self,
        rewrite: Rewrite<'a>,
        takes: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Rewrite<'a>> {
        match &self.content {
            Content::Checkpoint(checkpoint) => Ok(rewrite.merge(checkpoint)),
            Content::Arrays(arrays) => {
                let mut taken = arrays.names().iter().enumerate().filter(|(_, name)| takes(name));
                taken.try_fold(rewrite, |rewrite, (i, name)| {
                    Ok(rewrite.add(name.as_str(), arrays.open(i)?)?)
                })
            }
        }
    }
}
