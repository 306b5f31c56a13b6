//! Code that the commands share that change a file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::digest::Note;
use safetensors_core::edit::{Edit, Edited};
use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, SafeTensors, SaveOptions};

use crate::input;
use crate::input::{address, other};
use crate::model::modelspec::{self, Level, validate};
use crate::output::existing::identity;
use crate::output::file::{self, Argument, tell};
use crate::output::writing::{check_file, check_writable};
use crate::terminal::report::warn;
use crate::terminal::text;

/// The arguments of every command that changes the metadata of a file.
#[derive(Debug, clap::Args)]
pub(crate) struct EditArgs {
    /// The safetensors file on the disk to change; of a sharded checkpoint, one of its files
    #[arg(value_name = "PATH", value_parser = address::parser())]
    path: PathBuf,
    #[command(flatten)]
    pub(crate) way: Way,
}

/// The argument that names the file.
const PATH: Argument = Argument { name: "PATH", stream: "only regular files can be changed" };

/// How a file is changed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Way {
    /// Print what would be changed, and change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Write the new header over the old one if it fits, without a copy of the file
    ///
    /// This saves the time and the space of a copy, but there is a moment in which readers refuse
    /// the file. If the command is killed in it, they do until the next change restores the file. A
    /// file with several names (hard links) is copied
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Change the file even if it lies in a cache of the Hub, where other programs read it
    #[arg(long)]
    pub(crate) force: bool,
}

impl EditArgs {
    /// Applies `change` to the file at the path, and prints how the file was written. A dry run
    /// opens the file for reading only, and prints the keys, which `change` returns as a text.
    pub(crate) fn apply<'a>(
        &self,
        out: &mut impl Write,
        change: impl FnOnce(Edit<'a>, &Path) -> anyhow::Result<(Edit<'a>, String)>,
    ) -> anyhow::Result<()> {
        let file = file_of(&self.path)?;
        let open = if self.way.dry_run { Edit::open_read_only } else { Edit::open };
        let edit = self.way.advised(open(&file), &file)?;
        if edit.was_restored() {
            warn_of_restored(&file);
        }
        let Way { in_place, force, .. } = self.way;
        let (edit, keys) = change(edit.in_place(in_place).change_cached(force), &file)?;
        let notes = self.way.advised(edit.notes(), &file)?;
        let path = text::path(&file);
        if self.way.dry_run {
            let would = self.way.would(&edit, &file)?;
            warn_of_notes(&file, &notes);
            writeln!(out, "{would}{keys}")?;
            return Ok(());
        }
        let edited = self.way.advised(edit.apply(), &file)?;
        warn_of_notes(&file, &notes);
        let done = match edited {
            Edited::Unchanged => "unchanged",
            Edited::InPlace => "changed in place",
            Edited::Rewritten => "rewritten",
        };
        tell(out, &path, done, done)?;
        warn_of_modelspec(&file)
            .with_context(|| format!("{path} is {done}, but cannot be read again"))
    }
}

impl Way {
    /// The message of a dry run. Fails where the edit would.
    pub(crate) fn would(self, edit: &Edit<'_>, path: &Path) -> anyhow::Result<String> {
        let outcome = || {
            check_file(path, &SaveOptions::new().replace_cached(self.force))?;
            File::options().append(true).open(path).map_err(|it| Error::from(it).in_path(path))?;
            let outcome = edit.dry_run()?;
            if outcome != Edited::Unchanged {
                check_writable(identity(path).parent().unwrap_or(path), path)?;
            }
            Ok(outcome)
        };
        let outcome = self.advised(outcome(), path)?;
        let (shown, header) = (text::path(path), edit.header());
        let tensors = text::counted(header.len() as u64, "tensor");
        let held = format!("({tensors}, {})", text::size(header.data_len()));
        Ok(match outcome {
            Edited::Unchanged => format!("would leave {shown} unchanged {held}"),
            Edited::InPlace => format!("would change {shown} in place {held}"),
            Edited::Rewritten => format!("would replace {shown} {held}"),
        })
    }

    /// The outcome of a change. If the file cannot be written, a remedy is added to the error.
    pub(crate) fn advised<T>(
        self,
        outcome: safetensors_core::Result<T>,
        path: &Path,
    ) -> anyhow::Result<T> {
        outcome.map_err(|error| match error.kind() {
            ErrorKind::TornHeader => input::explain(error),
            ErrorKind::InHubCache => anyhow::anyhow!(
                "{error}; change a copy, made by `cp -L` or `convert`, or give --force"
            ),
            ErrorKind::InManifest { .. } => error.into(),
            _ if other::detect(path).is_some() => other::advise_change(error, path),
            ErrorKind::ReadOnlyFile => {
                anyhow::anyhow!("{error}; make it writable first, as `chmod u+w` does")
            }
            ErrorKind::Io(system) if file::is_full(system.kind()) => {
                let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
                let needed = file::needed(bytes);
                let without = if self.in_place {
                    ""
                } else {
                    ", or give --in-place, which needs hardly any if the new header fits into the \
                     space of the old one"
                };
                anyhow::anyhow!("{error}; {needed}{without}")
            }
            _ => file::advise(error.into(), path, 0, PATH),
        })
    }
}

/// Warns of the side effects of a change.
pub(crate) fn warn_of_notes(file: &Path, notes: &[Note]) {
    for note in notes {
        warn(format!("{}: {note}", input::shown(file)));
    }
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
    // A file with parts of tensors has metadata, too, and is no checkpoint.
    let source = FileSource::open(file)?;
    let opened = SafeTensors::from_source(source).map_err(|error| error.in_path(file))?;
    if modelspec::is_in(opened.metadata()) {
        for problem in validate(opened.metadata()).iter().filter(|it| it.level == Level::Error) {
            warn(format!("{}: {problem}", text::path(file)));
        }
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
