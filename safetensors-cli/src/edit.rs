//! What the commands that change a file have in common.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::edit::{Edit, Edited};
use safetensors_core::modelspec::{Severity, validate};
use safetensors_core::{Checkpoint, ErrorKind, Located, ModelSpec};

use crate::report::warn;
use crate::{file, input, text};

/// The file to change, and how, for every command that changes the metadata of one.
#[derive(Debug, clap::Args)]
pub(crate) struct EditArgs {
    /// The file to change; of a sharded checkpoint, one of its files
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Say what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl EditArgs {
    /// Changes the file that the path leads to, which `change` is told, and says how. A dry run
    /// opens it for reading only.
    pub(crate) fn apply<'a>(
        &self,
        out: &mut impl Write,
        change: impl FnOnce(Edit<'a>, &Path) -> anyhow::Result<Edit<'a>>,
    ) -> anyhow::Result<()> {
        let file = file_of(&self.path)?;
        let edit = if self.dry_run {
            Edit::open_read_only(&file).map_err(input::explain)?
        } else {
            advised(Edit::open(&file), &file)?
        };
        if edit.restored() {
            warn_of_restored(&file);
        }
        let edit = change(edit, &file)?;
        let edited = if self.dry_run { edit.dry_run()? } else { advised(edit.apply(), &file)? };
        let would = if self.dry_run { "would be " } else { "" };
        let done = match edited {
            Edited::Unchanged => "unchanged",
            Edited::InPlace => "changed in place",
            Edited::Rewritten => "written anew",
        };
        let told = writeln!(out, "{}: {would}{done}", text::path(&file)).and_then(|()| out.flush());
        told.with_context(|| {
            format!("{} {would}{done}, but this could not be told", text::path(&file))
        })?;
        if !self.dry_run {
            warn_of_modelspec(&file).with_context(|| {
                format!("{} is {done}, but cannot be read again", text::path(&file))
            })?;
        }
        Ok(())
    }
}

/// What core says of a change, and if the file cannot be written what can be done about it.
pub(crate) fn advised<T>(outcome: safetensors_core::Result<T>, path: &Path) -> anyhow::Result<T> {
    outcome.map_err(|error| {
        match error.kind() {
            ErrorKind::TornHeader => return input::explain(error),
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

/// Says that a header was restored before anything else is done with the file.
pub(crate) fn warn_of_restored(file: &Path) {
    warn(format!(
        "{}: an earlier change of the header was interrupted; the header from before it is restored",
        text::path(file)
    ));
}

/// Warns of what is wrong with metadata that follows the ModelSpec standard.
fn warn_of_modelspec(file: &Path) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(file)?;
    if ModelSpec::is_in(checkpoint.metadata()) {
        let findings = validate(checkpoint.metadata()).into_iter();
        let errors = findings.filter(|finding| finding.severity == Severity::Error);
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

/// The one file that a path leads to. It is not opened: if an earlier change was interrupted, its
/// header is for the next one to restore.
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

/// All files that a path leads to, not opened either.
pub(crate) fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    input::refuse_stdin(path)?;
    match Checkpoint::locate(path)? {
        Located::File(file) => Ok(vec![file]),
        Located::Index(index) => Ok(Checkpoint::files_of_index(index)?),
    }
}
