//! [`Output`]: where tensors go.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use safetensors_core::{Error, ErrorKind, MaxShardSize, Rewrite, SaveOptions, ShardOptions};

use super::kind::Kind;
use super::plan::Plan;
use crate::output::warn;
use crate::progress::Progress;
use crate::usage::WrongUsage;
use crate::{file, numpy, text};

/// A path, and what is to be written there.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One safetensors file.
    File,
    /// A directory with a checkpoint of one file, or of several with an index.
    Directory(MaxShardSize),
    /// One array.
    Npy,
    /// An archive of arrays.
    Npz,
}

impl Output {
    /// The form that the name says, or a directory.
    pub(super) fn new(path: &Path, max_shard_size: Option<MaxShardSize>) -> anyhow::Result<Self> {
        let wrong = |problem: &str| Err(WrongUsage::error(format!("{}: {problem}", text::path(path))));
        if path == Path::new("-") {
            return wrong("the output cannot be a pipe: its layout is decided beforehand");
        }
        let form = match Kind::of(path) {
            Kind::Safetensors => Form::File,
            Kind::Checkpoint => Form::Directory(max_shard_size.unwrap_or_default()),
            Kind::Npy => Form::Npy,
            Kind::Npz => Form::Npz,
            Kind::Index => return wrong("an index is written with its files; name the directory for all of them"),
            Kind::Foreign(format) => {
                return wrong(&format!(
                    "{format} files cannot be written; an output ends in .safetensors, .npz or .npy, or is a directory: \
                     write that, and convert it with a tool that knows {format}"
                ));
            }
        };
        if max_shard_size.is_some() && !matches!(form, Form::Directory(_)) {
            return wrong("--max-shard-size is for a directory as output");
        }
        Ok(Self { path: path.into(), form })
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What will be written. Refuses tensors that this output cannot hold, before any is read.
    pub(super) fn plan(&self, rewrite: &Rewrite<'_>) -> anyhow::Result<Plan> {
        let locate = |error: Error| error.in_file(self.path.display());
        match self.form {
            Form::File => Ok(Plan::of(&rewrite.plan(&SaveOptions::new()).map_err(locate)?)),
            Form::Directory(size) => Ok(Plan::of(&rewrite.plan_sharded(&shards(size)).map_err(locate)?)),
            Form::Npy | Form::Npz => {
                let found = rewrite.tensors().len();
                if self.form == Form::Npy && found != 1 {
                    let (path, found) = (text::path(&self.path), text::counted(found as u64, "tensor"));
                    anyhow::bail!("{path}: a .npy file holds one tensor, not {found}; .npz holds several");
                }
                let mut names = HashSet::new();
                for (name, tensor) in rewrite.tensors() {
                    if !names.insert(name) {
                        return Err(locate(Error::from(ErrorKind::DuplicateTensor).in_tensor(name)).into());
                    }
                    numpy::header_of(name, tensor, numpy::CONVERT)?;
                }
                Ok(Plan::of_arrays(rewrite))
            }
        }
    }

    /// Warns of what this output cannot hold and will be lost.
    pub(super) fn warn_of_loss(&self, rewrite: &Rewrite<'_>) {
        // Enough to see what it is about.
        const SHOWN: usize = 5;
        let lost = rewrite.metadata();
        if lost.is_empty() || !matches!(self.form, Form::Npy | Form::Npz) {
            return;
        }
        let mut keys: Vec<_> = lost.keys().take(SHOWN).map(|key| text::name(key)).collect();
        if lost.len() > SHOWN {
            keys.push("…".into());
        }
        let (path, keys) = (text::path(&self.path), keys.join(", "));
        warn(format!("{path}: NumPy's files hold no metadata; this is left out: {keys}"));
    }

    /// Writes all tensors. The output is there complete, or as it was.
    pub(super) fn write(&self, rewrite: Rewrite<'_>, progress: &Progress) -> anyhow::Result<()> {
        let options = SaveOptions::new().progress(progress.counted());
        let done = |bytes| progress.add(bytes);
        match self.form {
            Form::File => rewrite.save(&self.path, &options)?,
            Form::Directory(size) => {
                rewrite.save_sharded(&self.path, &shards(size).save(options))?;
            }
            Form::Npy => file::replace(&self.path, |out| {
                rewrite.tensors().try_for_each(|(name, tensor)| numpy::write_npy(out, name, tensor, &done))
            })?,
            Form::Npz => file::replace(&self.path, |out| numpy::write_npz(out, rewrite.tensors(), &done))?,
        }
        Ok(())
    }
}

fn shards(size: MaxShardSize) -> ShardOptions {
    ShardOptions::new().max_shard_size(size)
}
