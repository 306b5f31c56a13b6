//! Code of commands that change a file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::digest::Note;
use safetensors_core::edit::{Edit, Edited, restore_header};
use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, Limits, SafeTensors, SaveOptions};

use crate::input;
use crate::input::targets::has_parts;
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
    /// The safetensors file to change, or a sharded checkpoint, on the disk
    ///
    /// All files of a checkpoint change, after all have been checked
    #[arg(value_name = "PATH", value_parser = address::parser())]
    path: PathBuf,
    #[command(flatten)]
    pub(crate) way: Way,
}

const PATH: Argument = Argument { name: "PATH", stream: "only regular files can be changed" };

/// How a file is changed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Way {
    /// Print what would be changed, and change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Write the new header over the old one if it fits, without a copy of the file
    ///
    /// It takes no time, but for a moment readers refuse the file. After a kill in that moment,
    /// they do until the next change restores the file from the backup next to it,
    /// .NAME.header-backup. A file with several names (hard links) is copied
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Change the file even if it is read-only, or in the Hub's cache, which other programs share
    ///
    /// A read-only file is replaced by a copy, which is read-only too
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Changing<'f> {
    pub(crate) file: &'f Path,
    /// The keys in the metadata of all files that are changed together.
    pub(crate) keys: &'f BTreeSet<String>,
    /// Whether nothing is written, and no data need be read.
    pub(crate) is_dry: bool,
}

impl Changing<'_> {
    /// Returns the text only in a dry run.
    pub(crate) fn would(&self, text: &str) -> String {
        if self.is_dry { text.to_owned() } else { String::new() }
    }
}

impl EditArgs {
    /// [`change_all`] at the path, as its options say.
    pub(crate) fn apply<'a>(
        &self,
        out: &mut impl Write,
        change: impl Fn(Edit<'a>, Changing<'_>) -> anyhow::Result<(Edit<'a>, String)>,
    ) -> anyhow::Result<()> {
        change_all(&self.path, self.way, out, change)
    }
}

/// Checks all files before the first is written, and prints how each was written. `change` also
/// returns the keys in a dry run, otherwise a replacement for `rewritten`, if any.
pub(crate) fn change_all<'a>(
    path: &Path,
    way: Way,
    out: &mut impl Write,
    change: impl Fn(Edit<'a>, Changing<'_>) -> anyhow::Result<(Edit<'a>, String)>,
) -> anyhow::Result<()> {
    let Way { dry_run, in_place, force } = way;
    let files = files_of(path)?;
    let mut keys = BTreeSet::new();
    if dry_run || files.len() > 1 {
        keys = check_all(&files, way, out, &change)?;
    }
    let mut printed = Ok(());
    for file in files.iter().filter(|_| !dry_run) {
        let opened = if force { Edit::open_to_replace(file) } else { Edit::open(file) };
        let edit = way.advised(opened, file)?;
        if edit.was_restored() {
            warn_of_restored(file);
        }
        keys.extend(edit.header().metadata().keys().cloned());
        let changing = Changing { file, keys: &keys, is_dry: false };
        let (edit, told) = change(edit.in_place(in_place).change_cached(force), changing)?;
        let notes = way.advised(edit.notes(), file)?;
        let edited = way.advised(edit.apply(), file)?;
        warn_of_notes(file, &notes);
        let done = match edited {
            Edited::Unchanged => "unchanged",
            Edited::InPlace => "changed in place",
            Edited::Rewritten => "rewritten",
        };
        let shown = text::path(file);
        // If a line cannot be printed, the remaining files are still changed.
        let content = if told.is_empty() { done } else { &told };
        printed = printed.and(tell(out, &shown, done, content));
        warn_of_modelspec(file)
            .with_context(|| format!("{shown} is {done}, but cannot be read again"))?;
    }
    printed
}

/// Checks files before any is changed, and in a dry run prints how each would be written. Returns
/// the keys in their metadata.
fn check_all<'a>(
    files: &[PathBuf],
    way: Way,
    out: &mut impl Write,
    change: &impl Fn(Edit<'a>, Changing<'_>) -> anyhow::Result<(Edit<'a>, String)>,
) -> anyhow::Result<BTreeSet<String>> {
    let Way { dry_run, in_place, force } = way;
    let mut keys = BTreeSet::new();
    for file in files {
        let is_kept = dry_run || force && is_read_only(file);
        if !is_kept && way.advised(restore_header(file), file)? {
            warn_of_restored(file);
        }
        let edit = way.advised(Edit::open_read_only(file), file)?;
        keys.extend(edit.header().metadata().keys().cloned());
    }
    for file in files {
        let edit = way.advised(Edit::open_read_only(file), file)?;
        let changing = Changing { file, keys: &keys, is_dry: true };
        let (edit, told) = change(edit.in_place(in_place).change_cached(force), changing)?;
        let would = way.would(&edit, file)?;
        if dry_run {
            warn_of_notes(file, &way.advised(edit.notes(), file)?);
            writeln!(out, "{would}: {told}")?;
        }
    }
    Ok(keys)
}

impl Way {
    /// Fails where the edit would.
    pub(crate) fn would(self, edit: &Edit<'_>, path: &Path) -> anyhow::Result<String> {
        let outcome = || {
            let options = SaveOptions::new().replace_cached(self.force);
            check_file(path, &options.replace_read_only(self.force))?;
            if !is_read_only(path) {
                let opened = File::options().append(true).open(path);
                opened.map_err(|error| Error::from(error).in_path(path))?;
            }
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
                anyhow::anyhow!("{error}; --force replaces it")
            }
            ErrorKind::Io(system) if file::is_full(system.kind()) => {
                let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
                let needed = file::needed(system.kind(), bytes);
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

fn is_read_only(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().readonly())
}

pub(crate) fn warn_of_notes(file: &Path, notes: &[Note]) {
    for note in notes {
        warn(format!("{}: {note}", input::shown(file)));
    }
}

pub(crate) fn warn_of_restored(file: &Path) {
    warn(format!(
        "{}: an earlier change of the header was interrupted; the old header is restored",
        text::path(file)
    ));
}

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

pub(crate) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Err("expected KEY=VALUE".into()),
    }
}

/// The content of a file replaces `@FILE`. `@@` is an `@`.
pub(crate) fn with_files(entries: &[(String, String)]) -> anyhow::Result<Vec<(String, String)>> {
    let value = |value: &str| match value.strip_prefix('@') {
        None => Ok(value.to_owned()),
        Some(rest) if rest.starts_with('@') => Ok(rest.to_owned()),
        Some(file) => {
            let text = input::read_named(file.as_ref(), Limits::default().header_bytes)?;
            let text = String::from_utf8(text);
            text.with_context(|| format!("{}: a value must be text", input::name(file.as_ref())))
        }
    };
    entries.iter().map(|(key, text)| Ok((key.clone(), value(text)?))).collect()
}

/// Returns all files at a path, also in a directory of parts.
// None is opened: an interrupted change may have left its header torn.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    check_on_disk(path)?;
    let is_file =
        |name: &String| matches!(CheckpointPath::from_name(name), Some(CheckpointPath::File(_)));
    match CheckpointPath::find(path).and_then(|found| found.files()) {
        Err(error) => match error.kind() {
            ErrorKind::NoCheckpoint { found, .. }
                if !found.is_empty() && found.iter().all(is_file) && has_parts(path) =>
            {
                Ok(found.iter().map(|name| path.join(name)).collect())
            }
            _ => Err(error.into()),
        },
        files => Ok(files?),
    }
}

/// Refuses standard input and addresses.
pub(crate) fn check_on_disk(path: &Path) -> anyhow::Result<()> {
    input::refuse_stdin(path)?;
    address::refuse(path)
}
