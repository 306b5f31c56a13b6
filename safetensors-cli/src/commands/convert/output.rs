//! [`Output`]: the file or directory to write.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::{Contention, MaxShardSize};
use safetensors_core::{Metadata, SaveOptions, ShardOptions};
use safetensors_formats::Format;

use super::divided::Divided;
use super::existing::OutputPlace;
use super::preview::Preview;
use super::source::CONFIG;
use crate::input;
use crate::input::Rewrite;
use crate::input::address;
use crate::input::kind::Kind;
use crate::output::file::Force;
use crate::output::{file, numpy};
use crate::terminal::progress::Progress;
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::text;

/// A path, and the form of what is written there.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    form: Form,
    /// How the directory is divided among ranks.
    ranks: Option<Divided>,
    force: Force,
    contention: Contention,
    /// The text of the `config.json` that is written beside the tensors.
    config: Option<String>,
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
    /// An output of the form that its name tells. A name of no known kind is a directory.
    pub(super) fn new(
        path: &Path,
        max_shard_size: Option<MaxShardSize>,
        is_divided: bool,
        force: Force,
        no_wait: bool,
    ) -> anyhow::Result<Self> {
        let wrong = |problem: &str| Err(wrong_usage(format!("{}: {problem}", input::name(path))));
        if path == Path::new("-") {
            return wrong("the output cannot be a pipe: its layout is decided beforehand");
        }
        let form = match Kind::of(path) {
            Kind::Safetensors => Form::File,
            Kind::Checkpoint => Form::Directory(max_shard_size.unwrap_or_default()),
            Kind::Other(Format::Npy) => Form::Npy,
            Kind::Other(Format::Npz) => Form::Npz,
            Kind::Index => {
                return wrong(
                    "an index is written with its files; name the directory for all of them",
                );
            }
            Kind::Other(format) => return wrong(&unwritable(&format)),
            Kind::Foreign(format) => return wrong(&unwritable(&format)),
        };
        if max_shard_size.is_some() && !matches!(form, Form::Directory(_)) {
            return wrong("--max-shard-size is for a directory as output");
        }
        if no_wait && !matches!(form, Form::Directory(_)) {
            return wrong("--no-wait is for a directory as output");
        }
        if is_divided && !matches!(form, Form::Directory(_)) {
            return wrong("--ranks and --plan are for a directory as output");
        }
        if no_wait && is_divided {
            return wrong("--no-wait does not go with --ranks and --plan");
        }
        if let Some(address) = address::of(path) {
            address::check_writable(address)?;
            if !matches!(form, Form::File | Form::Directory(_)) {
                return wrong("NumPy's files are written to the disk only");
            }
            if no_wait || is_divided {
                return wrong("--no-wait, --ranks and --plan are for a directory of the disk");
            }
        }
        let contention = if no_wait { Contention::Fail } else { Contention::Wait };
        Ok(Self { path: path.into(), form, ranks: None, force, contention, config: None })
    }

    /// Divides the output among ranks.
    pub(super) fn divide(&mut self, ranks: Option<Divided>) {
        self.ranks = ranks;
    }

    /// Refuses quantised weights if this output cannot hold them, or would divide their groups.
    pub(super) fn check_quantized(&self, is_divided: bool) -> anyhow::Result<()> {
        let problem = match self.form {
            Form::Npy | Form::Npz => "NumPy's files cannot say that weights are quantised",
            _ if is_divided => {
                "--quantize does not go with --ranks and --plan: quantise to a directory first, and \
                 divide that with rules for the codes and scales"
            }
            _ => return Ok(()),
        };
        Err(wrong_usage(format!("{}: {problem}", input::name(&self.path))))
    }

    /// Puts a `config.json` beside the tensors, if the output is a directory. Else a warning says
    /// that quantised weights lack one.
    pub(super) fn put_config(&mut self, config: Option<String>, is_quantised: bool) {
        if matches!(self.form, Form::Directory(_)) {
            self.config = config;
        } else if config.is_some() && is_quantised {
            let path = input::shown(&self.path);
            warn(format!(
                "{path}: transformers and vLLM need a config.json that describes quantised weights; \
                 a directory as OUT gets one"
            ));
        }
    }

    /// Adds a remedy to an error of writing.
    pub(super) fn advise(&self, error: anyhow::Error, bytes: u64) -> anyhow::Error {
        match address::of(&self.path) {
            // The advice is about the disk.
            Some(_) => error,
            None => file::advise(error, &self.path, bytes, "OUT", STREAM),
        }
    }

    /// Warns if settings beside the output still describe weights as they were stored before.
    pub(super) fn warn_of_settings(&self) {
        let directory = match self.form {
            Form::Directory(_) => Some(&*self.path),
            _ => self.path.parent(),
        };
        let on_disk = directory.filter(|_| address::of(&self.path).is_none());
        let Some(directory) = on_disk else { return };
        let stale = |name: &str| {
            let path = directory.join(name);
            let is_stale = match (name, &self.config) {
                (CONFIG, None) => std::fs::read_to_string(&path)
                    .is_ok_and(|text| text.contains("\"quantization_config\"")),
                (CONFIG, Some(_)) => false,
                _ => path.is_file(),
            };
            is_stale.then(|| text::path(&path))
        };
        if let Some(path) = stale(CONFIG) {
            warn(format!(
                "{path} still has quantization_config: remove it, because the weights are not \
                 stored like that now"
            ));
        }
        for path in ["hf_quant_config.json", "quantize_config.json"].into_iter().filter_map(stale) {
            warn(format!("{path} is there still: remove it, because it describes other weights"));
        }
    }

    /// The name to show in messages.
    fn name(&self) -> String {
        match address::of(&self.path) {
            Some(address) => address::shown(address),
            None => self.path.display().to_string(),
        }
    }

    /// What the output takes the place of.
    pub(super) fn place(&self) -> OutputPlace {
        match self.form {
            Form::File | Form::Npz => OutputPlace::File,
            Form::Npy => OutputPlace::Array,
            Form::Directory(_) => OutputPlace::Directory,
        }
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the metadata that this output cannot hold, and returns it. Left in place, it could
    /// make the plan fail.
    pub(super) fn take_metadata(&self, rewrite: &mut Rewrite<'_>) -> Metadata {
        match self.form {
            Form::File | Form::Directory(_) => Metadata::new(),
            Form::Npy | Form::Npz => std::mem::take(rewrite.metadata_mut()),
        }
    }

    /// Plans the output. Refuses tensors that this output cannot hold, before any data is read.
    pub(super) fn plan(&self, rewrite: &Rewrite<'_>) -> anyhow::Result<Preview> {
        let plan = match self.form {
            Form::File | Form::Npy | Form::Npz => rewrite.plan(&self.force.options()),
            Form::Directory(size) => {
                rewrite.plan_sharded(&self.shards(size).save_options(self.force.options()))
            }
        };
        let plan = plan.map_err(|error| error.in_file(self.name()))?;
        let preview = || Preview::of(&plan).configured(self.config.clone());
        if address::of(&self.path).is_some() {
            return Ok(preview());
        }
        if let Some(divided) = &self.ranks {
            let ranks = divided.plan(rewrite, &self.force.options())?;
            return Ok(preview().divided(ranks.world_size()));
        }
        let total = plan.total_size();
        plan.check_destination(&self.path).map_err(|error| self.advise(error.into(), total))?;
        if matches!(self.form, Form::File | Form::Directory(_)) {
            return Ok(preview().removing(plan.removed_files(&self.path)?));
        }
        let found = plan.tensors().len();
        if self.form == Form::Npy && found != 1 {
            let (path, found) = (text::path(&self.path), text::counted(found as u64, "tensor"));
            anyhow::bail!("{path}: a .npy file holds one tensor, not {found}; .npz holds several");
        }
        plan.tensors().try_for_each(|(name, tensor)| {
            numpy::header_of(name, tensor, numpy::CONVERT)
                .map(drop)
                .with_context(|| text::path(&self.path))
        })?;
        Ok(Preview::of(&plan).bare())
    }

    /// Warns of the metadata that this output cannot hold.
    pub(super) fn warn_of_loss(&self, lost: &BTreeSet<&str>) {
        // A few keys are enough to recognize what is lost.
        const SHOWN: usize = 5;
        if lost.is_empty() {
            return;
        }
        let mut keys: Vec<_> = lost.iter().take(SHOWN).map(|key| text::name(key)).collect();
        if lost.len() > SHOWN {
            keys.push("…".into());
        }
        let (path, keys) = (text::path(&self.path), keys.join(", "));
        warn(format!("{path}: NumPy's files hold no metadata; this is left out: {keys}"));
    }

    /// Writes all tensors. The output is then complete, or as it was before, or the error says
    /// that it is written.
    pub(super) fn write(&self, rewrite: &Rewrite<'_>, progress: &Progress) -> anyhow::Result<()> {
        let options = self.force.options().progress(progress.counted());
        if let Some(address) = address::of(&self.path) {
            return match self.form {
                Form::Directory(size) => address::save_sharded(
                    address,
                    rewrite,
                    &self.shards(size).save_options(options),
                ),
                Form::File | Form::Npy | Form::Npz => address::save(address, rewrite, &options),
            };
        }
        match self.form {
            Form::Directory(size) if let Some(divided) = &self.ranks => {
                divided.write(rewrite, &self.path, &self.shards(size).save_options(options))?;
            }
            Form::File => rewrite.save(&self.path, &options)?,
            Form::Directory(size) => {
                rewrite.save_sharded(&self.path, &self.shards(size).save_options(options))?;
            }
            Form::Npy | Form::Npz => {
                let plan = rewrite.plan(&SaveOptions::new())?;
                file::replace(&self.path, self.force, |out| {
                    match self.form {
                        Form::Npy => plan.tensors().try_for_each(|(name, tensor)| {
                            numpy::write_npy(out, name, tensor, progress)
                        })?,
                        _ => numpy::write_npz(out, plan.tensors(), progress)?,
                    }
                    Ok(rewrite.check_unchanged()?)
                })?;
            }
        }
        Ok(())
    }

    fn shards(&self, size: MaxShardSize) -> ShardOptions {
        let options = ShardOptions::new().max_shard_size(size).contention(self.contention);
        match &self.config {
            Some(config) => options.beside(CONFIG, config.as_str()),
            None => options,
        }
    }
}

/// What is wrong with an output of a format that cannot be written.
fn unwritable(format: &dyn Display) -> String {
    format!(
        "{format} files cannot be written; an output ends in .safetensors, .gguf, .npz or .npy, or \
         is a directory: write that, and convert it with a tool that knows {format}"
    )
}

/// The remedy if the output is a pipe.
pub(super) const STREAM: &str = "write a regular file, and send that: `cat FILE > PIPE`";
