//! [`Output`]: the file or directory to write, unless it is GGUF.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::{Contention, FilePattern, MaxShardSize};
use safetensors_core::lora::AdapterFormat;
use safetensors_core::rewrite::Plan;
use safetensors_core::{Error, ErrorKind as CoreKind};
use safetensors_core::{Metadata, SaveOptions, ShardOptions, TensorSource};
use safetensors_formats::{ErrorKind, burn};

use super::Args;
use super::casts::Scheme;
use super::config;
use super::divided::Divided;
use super::form::{Form, form};
use super::others::{self, Others};
use super::preview::Preview;
use super::source::{CONFIG, Source};
use crate::input;
use crate::input::Rewrite;
use crate::input::address;
use crate::output::existing::{Existing, identity};
use crate::output::file::Argument;
use crate::output::writing::Writing;
use crate::output::{file, numpy};
use crate::terminal::progress::Progress;
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::text;

#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    form: Form,
    /// The largest size of a file in a directory.
    size: Option<MaxShardSize>,
    pattern: FilePattern,
    pub(super) ranks: Option<Divided>,
    writing: Writing,
    contention: Contention,
    keeps_codes: bool,
    pub(super) others: Others,
}

pub(super) const OUT: Argument =
    Argument { name: "OUT", stream: "name a file, and send that: `cat FILE > PIPE`" };

const NO_CODES: &str = "NumPy's files and burnpack cannot say that weights are quantised";

pub(super) const FOR_DIRECTORY: &str =
    "--max-shard-size, --no-wait, --ranks and --plan need a directory as OUT";

fn check_options(args: &Args, form: Form, is_remote: bool) -> Result<(), String> {
    if form != Form::Directory && args.is_for_directory() {
        return Err(FOR_DIRECTORY.into());
    }
    if is_remote && (args.no_wait || args.ranks.is_given()) {
        return Err("--no-wait, --ranks and --plan need a directory on the disk".into());
    }
    if args.no_tokenizer {
        return Err("--no-tokenizer needs a .gguf file as OUT".into());
    }
    match (args.changes.quantize, form) {
        (None, _) => Ok(()),
        (Some(scheme @ Scheme::Gguf(_)), _) => {
            Err(format!("--quantize {scheme} needs a .gguf file as OUT"))
        }
        (Some(_), Form::Npy | Form::Npz | Form::Burnpack) => Err(NO_CODES.into()),
        (Some(_), Form::Directory) if args.ranks.is_given() => {
            Err("--quantize does not go with --ranks and --plan: quantise to a directory first, \
                 and divide that with rules for the codes and scales"
                .into())
        }
        (Some(_), Form::File | Form::Directory) => Ok(()),
    }
}

impl Output {
    /// Returns `None` for GGUF. Refuses paths that cannot be written, and unsuitable options.
    pub(super) fn new(args: &Args, path: &Path) -> anyhow::Result<Option<Self>> {
        if input::is_stdin(path) {
            return Err(wrong_usage(
                "OUT cannot be standard output: the layout of a file is decided beforehand; name a \
                 file or a directory",
            ));
        }
        let wrong = |problem: String| wrong_usage(format!("{}: {problem}", input::name(path)));
        args.ranks.check()?;
        let form = form(path).map_err(wrong)?;
        let is_remote = address::in_path(path).is_some();
        if let Some(address) = address::in_path(path) {
            address::check_writable(address)?;
        } else if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
            let (path, remedy) = (input::name(path), OUT.stream);
            anyhow::bail!("{path}: convert cannot write to a pipe or a device; {remedy}");
        }
        let Some(form) = form else { return Ok(None) };
        check_options(args, form, is_remote).map_err(wrong)?;
        Ok(Some(Self {
            path: path.into(),
            form,
            size: args.max_shard_size,
            pattern: FilePattern::default(),
            ranks: None,
            writing: args.writing,
            contention: if args.no_wait { Contention::Fail } else { Contention::Wait },
            keeps_codes: args.changes.keep_quantized,
            others: Others::default(),
        }))
    }

    /// Uses the names that the input's library expects.
    pub(super) fn name_files(&mut self, sources: &[Source]) -> anyhow::Result<()> {
        let Some((name, start)) = others::library_name(sources, &self.path) else { return Ok(()) };
        let start = start.with_context(|| {
            format!(
                "{}: the shards of a variant are not replaced, because libraries find them by an \
                 index of another name; choose another OUT",
                self.name()
            )
        })?;
        self.pattern = format!("{start}{{suffix}}.safetensors").parse()?;
        // PEFT and diffusers read an adapter from one file.
        if name != others::DIFFUSERS {
            self.size.get_or_insert(MaxShardSize(u64::MAX));
        }
        Ok(())
    }

    /// Names the file of an adapter.
    pub(super) fn name_adapter(&mut self, format: AdapterFormat) -> anyhow::Result<()> {
        if !self.is_directory() && (self.form != Form::File || format.has_settings()) {
            let name = self.name();
            return Err(wrong_usage(format!("{name}: an adapter of {format} is a directory")));
        }
        let start = format.file_name().trim_end_matches(".safetensors");
        self.pattern = format!("{start}{{suffix}}.safetensors").parse()?;
        self.size = Some(MaxShardSize(u64::MAX));
        Ok(())
    }

    pub(super) fn advise(&self, error: anyhow::Error, bytes: u64) -> anyhow::Error {
        if address::in_path(&self.path).is_none() {
            return file::advise(error, &self.path, bytes, OUT);
        }
        match error.downcast_ref().map(Error::kind) {
            Some(CoreKind::FileExists) => {
                anyhow::anyhow!("{} exists; --force replaces it", self.name())
            }
            _ => error,
        }
    }

    pub(super) fn stale_settings(&self, sources: &[Source], rewrite: &Rewrite<'_>) -> Vec<String> {
        let directory = match self.form {
            Form::Directory => Some(&*self.path),
            Form::File if self.is_model(sources) => self.path.parent(),
            // Other files may be there.
            _ => self.path.parent().filter(|_| config::changes(sources, rewrite)),
        };
        match directory.filter(|_| address::in_path(&self.path).is_none()) {
            Some(directory) => {
                let copied: Vec<_> = self.others.names().collect();
                config::stale_settings(directory, sources, rewrite, &copied)
            }
            None => Vec::new(),
        }
    }

    /// Whether the file's directory opens as it, so that the settings there describe it.
    fn is_model(&self, sources: &[Source]) -> bool {
        let path = identity(&self.path);
        self.path.ends_with(FilePattern::default().file_name(0, 1))
            || sources.iter().any(|source| source.files().contains(&path))
    }

    fn name(&self) -> String {
        match address::in_path(&self.path) {
            Some(address) => address::shown(address),
            None => self.path.display().to_string(),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.form == Form::Directory
    }

    /// Returns the files that it replaces or hides.
    pub(super) fn existing(&self) -> anyhow::Result<Existing> {
        let others: Vec<_> = self.others.names().collect();
        if let Some(address) = address::in_path(&self.path) {
            return Ok(Existing::at_address(&self.path, address, &others));
        }
        if !self.is_directory() {
            return Ok(Existing::at_file(&self.path));
        }
        Existing::of_checkpoint(&self.path, &self.pattern, &others).hiding()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes out the metadata that this output cannot hold: it could make the plan fail.
    pub(super) fn take_metadata(&self, rewrite: &mut Rewrite<'_>) -> Metadata {
        let is_bare = matches!(self.form, Form::Npy | Form::Npz);
        if is_bare { std::mem::take(rewrite.metadata_mut()) } else { Metadata::new() }
    }

    /// Refuses tensors that it cannot hold, before any data is read.
    pub(super) fn plan(&self, rewrite: &Rewrite<'_>, is_divided: bool) -> anyhow::Result<Preview> {
        let options = self.writing.options();
        let plan = match self.form {
            Form::Directory => rewrite.plan_sharded(&self.shards(options)),
            _ => rewrite.plan(&options),
        };
        let plan = plan.map_err(|error| error.in_file(self.name()))?;
        let mut preview = Preview::new(&plan);
        self.others.preview(&mut preview);
        preview.notes = plan.notes(&self.path);
        if address::in_path(&self.path).is_some() {
            return Ok(preview);
        }
        let total = plan.total_size();
        plan.check_destination(&self.path).map_err(|error| self.advise(error.into(), total))?;
        if is_divided {
            return Ok(preview);
        }
        match self.form {
            Form::File | Form::Directory => {}
            Form::Burnpack => {
                self.refuse_codes(&plan)?;
                self.burnpack(rewrite)?;
            }
            Form::Npy | Form::Npz => {
                self.refuse_codes(&plan)?;
                self.check_arrays(&plan)?;
                preview.is_bare = true;
                return Ok(preview);
            }
        }
        preview.removed = plan.removed_files(&self.path)?;
        Ok(preview)
    }

    fn refuse_codes(&self, plan: &Plan<'_, '_, input::Source>) -> anyhow::Result<()> {
        if self.keeps_codes {
            return Ok(());
        }
        let refused = plan.tensors().try_for_each(|(_, tensor)| tensor.refuse_codes());
        refused.with_context(|| format!("{}: {NO_CODES}", self.name()))
    }

    fn check_arrays(&self, plan: &Plan<'_, '_, input::Source>) -> anyhow::Result<()> {
        let found = plan.tensors().len();
        if self.form == Form::Npy && found != 1 {
            let path = text::path(&self.path);
            let found = text::counted(found as u64, "tensor");
            anyhow::bail!("{path}: a .npy file holds one tensor, not {found}; .npz holds several");
        }
        for (name, tensor) in plan.tensors() {
            numpy::header_of(name, tensor, numpy::CONVERT)
                .with_context(|| text::path(&self.path))?;
        }
        Ok(())
    }

    /// Warns of lost metadata: these keys, and the other names of tied weights.
    pub(super) fn warn_of_loss(&self, metadata: &Metadata, plan: &Preview) {
        let lost: BTreeSet<_> = metadata.keys().chain(plan.aliases.keys()).collect();
        if plan.is_bare && !lost.is_empty() {
            let (path, keys) = (text::path(&self.path), text::some(lost));
            warn(format!("{path}: NumPy's files hold no metadata; omitted: {keys}"));
        }
    }

    /// An error leaves the output unchanged, or says that it is written.
    pub(super) fn write(
        &self,
        rewrite: &Rewrite<'_>,
        options: &SaveOptions,
        bytes: u64,
    ) -> anyhow::Result<()> {
        let progress = &Progress::bytes(bytes);
        let counted = options.clone().progress(progress.counted());
        match (self.form, address::in_path(&self.path)) {
            (Form::Directory, Some(address)) => {
                address::save_sharded(address, rewrite, &self.shards(counted))?;
            }
            (_, Some(address)) => address::save(address, rewrite, &counted)?,
            (Form::Directory, None) => match &self.ranks {
                Some(divided) => divided.write(rewrite, &self.path, self.shards(counted))?,
                None => {
                    rewrite.save_sharded(&self.path, &self.shards(counted))?;
                }
            },
            (Form::File, None) => rewrite.save(&self.path, &counted)?,
            (Form::Burnpack, None) => {
                let writer = self.burnpack(rewrite)?;
                file::replace(&self.path, options, |out| {
                    Ok(writer.write(out.get_ref(), |bytes| progress.add(bytes))?)
                })?;
            }
            (form @ (Form::Npy | Form::Npz), None) => {
                let plan = rewrite.plan(&SaveOptions::new())?;
                file::replace(&self.path, options, |out| {
                    if form == Form::Npz {
                        numpy::write_npz(out, plan.tensors(), progress)?;
                    } else if let Some((name, tensor)) = plan.tensors().next() {
                        out.write_all(&numpy::header_of(name, tensor, numpy::CONVERT)?)?;
                        numpy::write_data(out, name, tensor, progress)?;
                    }
                    Ok(rewrite.check_unchanged()?)
                })?;
            }
        }
        Ok(())
    }

    /// Adds a remedy for tensors that burn cannot read.
    fn burnpack<'r, 'a>(
        &self,
        rewrite: &'r Rewrite<'a>,
    ) -> anyhow::Result<burn::Writer<'r, 'a, input::Source>> {
        burn::Writer::new(rewrite).map_err(|error| {
            let error = error.in_file(self.name());
            match (error.other(), error.tensor()) {
                (Some(ErrorKind::NotForBurn { .. }), Some(_)) => {
                    anyhow::anyhow!("{error}; --cast gives it another dtype, --drop skips it")
                }
                _ => error.into(),
            }
        })
    }

    fn shards(&self, options: SaveOptions) -> ShardOptions {
        let shards = ShardOptions::new()
            .max_shard_size(self.size.unwrap_or_default())
            .file_pattern(self.pattern.clone())
            .other_files(self.others.files.clone())
            .contention(self.contention)
            .save_options(options);
        let config = self.others.config.iter().map(|(_, text)| (CONFIG, text));
        let settings = self.others.settings.iter().map(|(name, text)| (*name, text));
        let files = config.chain(settings);
        files.fold(shards, |shards, (name, text)| shards.beside(name, text.as_str()))
    }
}
