//! Code that the commands share that change a file.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::edit::{Edit, Edited};
use safetensors_core::modelspec::{Level, ModelSpec, validate};
use safetensors_core::{Checkpoint, ErrorKind};

use crate::report::warn;
use crate::{address, file, input, other, text};

/// The arguments of every command that changes the metadata of a file.
#[derive(Debug, clap::Args)]
pub(crate) struct EditArgs {
    /// The safetensors file on the disk to change; of a sharded checkpoint, one of its files
    #[arg(value_name = "PATH", value_parser = address::parser())]
    path: PathBuf,
    /// Print what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Change the file even if it lies in a cache of the Hub, where other programs read it
    #[arg(long)]
    force: bool,
}

impl EditArgs {
    /// Applies `change` to the file at the path, and prints how the file was written. A dry run
    /// opens the file for reading only.
    pub(crate) fn apply<'a>(
        &self,
        out: &mut impl Write,
        change: impl FnOnce(Edit<'a>, &Path) -> anyhow::Result<Edit<'a>>,
    ) -> anyhow::Result<()> {
        let file = file_of(&self.path)?;
        let edit = if self.dry_run {
            Edit::open_read_only(&file).map_err(|error| explain(error, &file))?
        } else {
            advised(Edit::open(&file), &file)?
        };
        if edit.restored() {
            warn_of_restored(&file);
        }
        let edit = change(edit, &file)?.change_cached(self.force);
        let edited = if self.dry_run { edit.dry_run() } else { edit.apply() };
        let edited = advised(edited, &file)?;
        let would = if self.dry_run { "would be " } else { "" };
        let done = match edited {
            Edited::Unchanged => "unchanged",
            Edited::InPlace => "changed in place",
            Edited::Rewritten => "written anew",
        };
        let told = writeln!(out, "{}: {would}{done}", text::path(&file)).and_then(|()| out.flush());
        told.with_context(|| {
            format!("{} {would}{done}, but this could not be printed", text::path(&file))
        })?;
        if !self.dry_run {
            warn_of_modelspec(&file).with_context(|| {
                format!("{} is {done}, but cannot be read again", text::path(&file))
            })?;
        }
        Ok(())
    }
}

/// Adds a remedy to an error of opening a file to change it.
fn explain(error: safetensors_core::Error, path: &Path) -> anyhow::Error {
    match error.kind() {
        ErrorKind::TornHeader => input::explain(error),
        _ => other::advise_change(error, path),
    }
}

/// The outcome of a change. If the file cannot be written, a remedy is added to the error.
pub(crate) fn advised<T>(outcome: safetensors_core::Result<T>, path: &Path) -> anyhow::Result<T> {
    outcome.map_err(|error| {
        match error.kind() {
            ErrorKind::TornHeader => return input::explain(error),
            ErrorKind::InHubCache => {
                return anyhow::anyhow!(
                    "{error}; change a copy, made by `cp -L` or `convert`, or give --force"
                );
            }
            _ if other::detect(path).is_some() => return other::advise_change(error, path),
            ErrorKind::ReadOnlyFile => {
                return anyhow::anyhow!("{error}; make it writable first, as `chmod u+w` does");
            }
            _ => {}
        }
        // A change that does not fit in place writes the whole file anew.
        let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        file::advise(error.into(), path, bytes, "PATH", "only regular files can be changed")
    })
}

/// Warns that opening the file restored its header.
pub(crate) fn warn_of_restored(file: &Path) {
    warn(format!(
        "{}: an earlier change of the header was interrupted; the header from before it is restored",
        text::path(file)
    ));
}

/// Warns of errors in metadata that claims to follow the ModelSpec standard.
fn warn_of_modelspec(file: &Path) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(file)?;
    if ModelSpec::is_in(checkpoint.metadata()) {
        let findings = validate(checkpoint.metadata()).into_iter();
        let errors = findings.filter(|finding| finding.level == Level::Error);
        errors.for_each(|finding| warn(format!("{}: {finding}", text::path(file))));
    }
    Ok(())
}

/// Reads `KEY=VALUE`.
pub(crate) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Err("expected KEY=VALUE".into()),
    }
}

/// The single file at a path, not opened: an interrupted change may have left its header torn.
fn file_of(path: &Path) -> anyhow::Result<PathBuf> {
    match files_of(path)?.as_slice() {
        [only] => Ok(only.clone()),
        several => anyhow::bail!(
            "{}: has {} files; name the one to change",
            text::path(path),
            several.len()
        ),
    }
}

/// All files at a path, not opened either.
pub(crate) fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    check_on_disk(path)?;
    Ok(CheckpointPath::find(path)?.files()?)
}

/// Refuses what is no path of the disk: standard input, and an address.
pub(crate) fn check_on_disk(path: &Path) -> anyhow::Result<()> {
    input::refuse_stdin(path)?;
    address::refuse(path)
}
