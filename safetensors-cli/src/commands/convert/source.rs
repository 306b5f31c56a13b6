//! [`Source`]: an open input.

use std::path::{Path, PathBuf};

use safetensors_core::ranks::{gather, is_divided};
use safetensors_formats::{npy, npz};

use super::kind::Kind;
use crate::input::{Checkpoint, Rewrite};
use crate::report::wrong_usage;
use crate::{address, input, numpy, text};

/// An open input, from which tensors are taken.
pub(super) struct Source {
    path: PathBuf,
    content: Content,
    /// The names of the whole tensors of a checkpoint that ranks have saved.
    whole: Vec<String>,
}

enum Content {
    /// A safetensors file, or a checkpoint of several.
    Checkpoint(Box<Checkpoint>),
    /// One array of NumPy.
    Npy(npy::Array),
    /// An archive of such arrays.
    Npz(npz::Archive),
}

impl Source {
    /// Opens an input. Its name tells its kind. Of an archive only the names are read.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let content = match Kind::of(path) {
            Kind::Safetensors | Kind::Index | Kind::Checkpoint => {
                Content::Checkpoint(Box::new(input::open(path)?))
            }
            Kind::Npy | Kind::Npz if address::of(path).is_some() => anyhow::bail!(
                "{}: NumPy's files are read from the disk only; download it first",
                input::name(path)
            ),
            Kind::Npy => Content::Npy(npy::Array::open(path).map_err(numpy::unread)?),
            Kind::Npz => Content::Npz(npz::Archive::open(path).map_err(numpy::unread)?),
            Kind::Foreign(format) => {
                return Err(wrong_usage(format!(
                    "{}: {format} files cannot be read; convert it to .safetensors or .npz first, \
                     with a tool that knows {format}",
                    text::path(path)
                )));
            }
        };
        let whole = match &content {
            Content::Checkpoint(checkpoint) if is_divided(checkpoint) => {
                gather(checkpoint)?.iter().map(|tensor| tensor.name().to_owned()).collect()
            }
            _ => Vec::new(),
        };
        Ok(Self { path: path.into(), content, whole })
    }

    /// The name to show in messages.
    pub(super) fn name(&self) -> String {
        input::name(&self.path)
    }

    /// The names of all tensors, including aliases.
    pub(super) fn names(&self) -> Vec<&str> {
        match &self.content {
            Content::Checkpoint(_) if !self.whole.is_empty() => {
                self.whole.iter().map(String::as_str).collect()
            }
            Content::Checkpoint(checkpoint) => {
                let names = checkpoint.tensors().map(|tensor| tensor.name());
                names.chain(checkpoint.aliases().map(|(alias, _)| alias)).collect()
            }
            Content::Npy(array) => vec![array.name()],
            Content::Npz(archive) => archive.names().collect(),
        }
    }

    /// Adds the tensors to the rewrite, those that ranks have saved in parts as whole ones.
    ///
    /// Skips arrays that are not taken: an array that cannot be
    /// read would be an error.
    pub(super) fn add_to<'a>(
        &'a self,
        rewrite: Rewrite<'a>,
        takes: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Rewrite<'a>> {
        match &self.content {
            Content::Checkpoint(checkpoint) => Ok(rewrite.gather(checkpoint)?),
            Content::Npy(array) if !takes(array.name()) => Ok(rewrite),
            Content::Npy(array) => Ok(rewrite.add(array.name(), array)?),
            Content::Npz(archive) => {
                let mut taken = archive.names().enumerate().filter(|(_, name)| takes(name));
                taken.try_fold(rewrite, |rewrite, (i, name)| {
                    Ok(rewrite.add(name, archive.array_at(i).map_err(numpy::unread)?)?)
                })
            }
        }
    }

    /// Checks the size that an archive claims to unpack to, before disk space is reserved for it.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.content {
            Content::Npz(archive) => archive.check().map_err(numpy::unread),
            Content::Checkpoint(_) | Content::Npy(_) => Ok(()),
        }
    }
}
