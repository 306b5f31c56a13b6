//! [`Output`]: the file or directory to write.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::{Contention, MaxShardSize};
use safetensors_core::{Metadata, SaveOptions, ShardOptions, TensorSource};
use safetensors_formats::{ErrorKind, Format, burn};

use super::Args;
use super::casts::Scheme;
use super::config;
use super::divided::Divided;
use super::preview::Preview;
use super::source::{CONFIG, Source};
use crate::input;
use crate::input::Rewrite;
use crate::input::address;
use crate::input::kind::Kind;
use crate::output::existing::{Existing, Writing};
use crate::output::file::Argument;
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
    writing: Writing,
    contention: Contention,
    keeps_codes: bool,
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
    /// A file of burn.
    Burnpack,
}

impl Output {
    /// An output of the form that its name tells, whose usage [is right](check_usage). A name of no
    /// known kind is a directory.
    pub(super) fn new(args: &Args, path: &Path) -> Self {
        let form = match Kind::of(path) {
            Kind::Checkpoint => Form::Directory(args.max_shard_size.unwrap_or_default()),
            Kind::Other(Format::Npy) => Form::Npy,
            Kind::Other(Format::Npz) => Form::Npz,
            Kind::Other(Format::Burnpack) => Form::Burnpack,
            _ => Form::File,
        };
        let contention = if args.no_wait { Contention::Fail } else { Contention::Wait };
        let (path, writing) = (path.into(), args.writing);
        let keeps_codes = args.changes.keep_quantized;
        Self { path, form, ranks: None, writing, contention, keeps_codes, config: None }
    }

    /// Divides the output among ranks.
    pub(super) fn divide(&mut self, ranks: Option<Divided>) {
        self.ranks = ranks;
    }

    /// Puts a `config.json` beside the tensors, if the output is a directory. Else a warning says
    /// that quantised weights lack one.
    pub(super) fn put_config(&mut self, config: Option<String>, is_quantised: bool) {
        if self.is_directory() {
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
            None => file::advise(error, &self.path, bytes, OUT),
        }
    }

    /// Returns warnings of settings next to the output that describe weights as they will not be
    /// stored there.
    pub(super) fn stale_settings(&self, sources: &[Source], is_changed: bool) -> Vec<String> {
        let directory = match self.form {
            Form::Directory(_) => Some(&*self.path),
            // Other files may lie there.
            _ => self.path.parent().filter(|_| is_changed),
        };
        match directory.filter(|_| address::of(&self.path).is_none()) {
            Some(directory) => config::stale_settings(directory, sources, self.config.is_some()),
            None => Vec::new(),
        }
    }

    /// The name to show in messages.
    fn name(&self) -> String {
        match address::of(&self.path) {
            Some(address) => address::shown(address),
            None => self.path.display().to_string(),
        }
    }

    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        matches!(self.form, Form::Directory(_))
    }

    /// What it replaces or hides.
    pub(super) fn existing(&self) -> anyhow::Result<Existing> {
        if let Some(address) = address::of(&self.path) {
            return Ok(Existing::at_address(&self.path, address));
        }
        if !self.is_directory() {
            return Ok(Existing::at_file(&self.path));
        }
        let config = self.config.as_ref().map(|_| CONFIG);
        Existing::of_checkpoint(&self.path, config.as_slice()).hiding()
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the metadata that this output cannot hold, and returns it. Left in place, it could
    /// make the plan fail.
    pub(super) fn take_metadata(&self, rewrite: &mut Rewrite<'_>) -> Metadata {
        match self.form {
            Form::File | Form::Directory(_) | Form::Burnpack => Metadata::new(),
            Form::Npy | Form::Npz => std::mem::take(rewrite.metadata_mut()),
        }
    }

    /// Plans the output. Refuses tensors that this output cannot hold, before any data is read.
    pub(super) fn plan(&self, rewrite: &Rewrite<'_>) -> anyhow::Result<Preview> {
        let plan = match self.form {
            Form::File | Form::Npy | Form::Npz | Form::Burnpack => {
                rewrite.plan(&self.writing.options())
            }
            Form::Directory(size) => {
                rewrite.plan_sharded(&self.shards(size).save_options(self.writing.options()))
            }
        };
        let plan = plan.map_err(|error| error.in_file(self.name()))?;
        let mut preview = Preview::of(&plan);
        preview.has_config = self.config.is_some();
        preview.notes = plan.notes(&self.path);
        if address::of(&self.path).is_some() {
            return Ok(preview);
        }
        let total = plan.total_size();
        plan.check_destination(&self.path).map_err(|error| self.advise(error.into(), total))?;
        if let Some(divided) = &self.ranks {
            let ranks = divided.plan(rewrite, &self.writing.options())?;
            preview.ranks = Some(ranks.world_size());
            return Ok(preview);
        }
        if !(self.keeps_codes || matches!(self.form, Form::File | Form::Directory(_))) {
            let refused = plan.tensors().try_for_each(|(_, tensor)| tensor.refuse_codes());
            refused.with_context(|| format!("{}: {NO_CODES}", self.name()))?;
        }
        if self.form == Form::Burnpack {
            self.burnpack(rewrite)?;
        }
        if matches!(self.form, Form::File | Form::Directory(_) | Form::Burnpack) {
            preview.removed = plan.removed_files(&self.path)?;
            return Ok(preview);
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
        preview.is_bare = true;
        Ok(preview)
    }

    /// Warns of the metadata that this output cannot hold.
    pub(super) fn warn_of_loss(&self, lost: &BTreeSet<&str>) {
        if lost.is_empty() {
            return;
        }
        let (path, keys) = (text::path(&self.path), text::some(lost));
        warn(format!("{path}: NumPy's files hold no metadata; this is left out: {keys}"));
    }

    /// Writes all tensors. The output is then complete, or as it was before, or the error says
    /// that it is written.
    pub(super) fn write(
        &self,
        rewrite: &Rewrite<'_>,
        options: &SaveOptions,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let counted = || options.clone().progress(progress.counted());
        if let Some(address) = address::of(&self.path) {
            return match self.form {
                Form::Directory(size) => address::save_sharded(
                    address,
                    rewrite,
                    &self.shards(size).save_options(counted()),
                ),
                _ => address::save(address, rewrite, &counted()),
            };
        }
        match self.form {
            Form::Directory(size) if let Some(divided) = &self.ranks => {
                divided.write(rewrite, &self.path, self.shards(size).save_options(counted()))?;
            }
            Form::File => rewrite.save(&self.path, &counted())?,
            Form::Directory(size) => {
                rewrite.save_sharded(&self.path, &self.shards(size).save_options(counted()))?;
            }
            Form::Burnpack => {
                let writer = self.burnpack(rewrite)?;
                file::replace(&self.path, options, |out| {
                    Ok(writer.write(out.get_ref(), |bytes| progress.add(bytes))?)
                })?;
            }
            Form::Npy | Form::Npz => {
                let plan = rewrite.plan(&SaveOptions::new())?;
                file::replace(&self.path, options, |out| {
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

    /// What a burnpack file will have, with a remedy in the error for what burn cannot read.
    fn burnpack<'r, 'a>(
        &self,
        rewrite: &'r Rewrite<'a>,
    ) -> anyhow::Result<burn::Writer<'r, 'a, input::Source>> {
        burn::Writer::of(rewrite).map_err(|error| {
            let error = error.in_file(self.name());
            match (error.other(), error.tensor()) {
                (Some(ErrorKind::NotForBurn { .. }), Some(_)) => {
                    anyhow::anyhow!("{error}; --cast gives it another dtype, --drop leaves it out")
                }
                _ => error.into(),
            }
        })
    }

    fn shards(&self, size: MaxShardSize) -> ShardOptions {
        let options = ShardOptions::new().max_shard_size(size).contention(self.contention);
        match &self.config {
            Some(config) => options.beside(CONFIG, config.as_str()),
            None => options,
        }
    }
}

/// Refuses a path that nothing can be written to, and options that do not suit what is written there.
pub(super) fn check_usage(args: &Args, path: &Path) -> anyhow::Result<()> {
    let wrong = |problem: &str| Err(wrong_usage(format!("{}: {problem}", input::name(path))));
    if path == Path::new("-") {
        return wrong("the output cannot be a pipe: its layout is decided beforehand");
    }
    let (kind, address) = (Kind::of(path), address::of(path));
    match kind {
        Kind::Index => {
            return wrong("an index is written with its files; name the directory for all of them");
        }
        Kind::Other(Format::Burnpack | Format::Gguf | Format::Npy | Format::Npz)
            if address.is_some() =>
        {
            return wrong("burnpack, GGUF and NumPy's files are written to the disk only");
        }
        Kind::Safetensors
        | Kind::Checkpoint
        | Kind::Other(Format::Burnpack | Format::Gguf | Format::Npy | Format::Npz) => {}
        Kind::Other(format) => return wrong(&unwritable(&format)),
        Kind::Foreign(format) => return wrong(&unwritable(&format)),
    }
    address.map_or(Ok(()), address::check_writable)?;
    let (is_directory, is_gguf) = (kind == Kind::Checkpoint, kind == Kind::Other(Format::Gguf));
    let (is_divided, no_wait) = (args.ranks.is_given()?, args.no_wait);
    let quantize = args.changes.quantize;
    let for_gguf = matches!(quantize, Some(Scheme::Gguf(_)));
    let for_tensors = quantize.is_some() && !for_gguf;
    let of_gguf =
        quantize.map(|scheme| format!("--quantize {scheme} is for a .gguf file as output"));
    let needs = format!("say how weights are stored: --quantize with {}", Scheme::for_gguf());
    let rules = [
        (
            !is_directory && (args.max_shard_size.is_some() || no_wait || is_divided),
            "--max-shard-size, --no-wait, --ranks and --plan are for a directory as output",
        ),
        (
            address.is_some() && (no_wait || is_divided),
            "--no-wait, --ranks and --plan are for a directory of the disk",
        ),
        (no_wait && is_divided, "--no-wait does not go with --ranks and --plan"),
        (!is_gguf && args.no_tokenizer, "--no-tokenizer is for a .gguf file as output"),
        (!is_gguf && for_gguf, of_gguf.as_deref().unwrap_or_default()),
        (
            is_gguf && args.changes.name_dtypes(),
            "--quantize says what a GGUF file holds; --dtype, --cast, --dequantize, \
             --keep-quantized and --overflow are for other outputs",
        ),
        (is_gguf && args.report, "--report is for other outputs"),
        (is_gguf && !for_gguf, &needs),
        (matches!(kind, Kind::Other(_)) && for_tensors, NO_CODES),
        (
            is_divided && for_tensors,
            "--quantize does not go with --ranks and --plan: quantise to a directory first, and \
             divide that with rules for the codes and scales",
        ),
    ];
    rules.iter().find(|(is_wrong, _)| *is_wrong).map_or(Ok(()), |(_, problem)| wrong(problem))
}

/// What is wrong with an output of these formats.
const NO_CODES: &str = "NumPy's files and burnpack cannot say that weights are quantised";

/// What is wrong with an output of a format that cannot be written.
fn unwritable(format: &dyn Display) -> String {
    format!(
        "{format} files cannot be written; an output ends in .safetensors, .gguf, .bpk, .npz or \
         .npy, or is a directory: write that, and convert it with a tool that knows {format}"
    )
}

/// The argument that names the output.
pub(super) const OUT: Argument =
    Argument { name: "OUT", stream: "write a regular file, and send that: `cat FILE > PIPE`" };
