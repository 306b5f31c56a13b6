//! `safetensors metadata`: to see and change the metadata of a file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::edit::{Edit, Edited};
use safetensors_core::{Checkpoint, Metadata};

use crate::output::warn;
use crate::{input, json, text};

/// Show or change the metadata of a file.
///
/// Changes are written into the header where it has room for them, which takes no
/// time whatever the size of the file; else the file is written anew, and takes the
/// old one's place when it is complete.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  safetensors metadata get model.safetensors
  safetensors metadata get model.safetensors format
  safetensors metadata set model.safetensors format=pt license=mit
  safetensors metadata remove model.safetensors training_log --dry-run
  safetensors metadata clear model.safetensors

Exit codes: 0 done, 1 there is no such key, or the file is malformed or cannot be read or written, 2 wrong usage.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print entries as KEY=VALUE, or the value alone of a single KEY
    ///
    /// Examples:
    ///   safetensors metadata get model.safetensors
    ///   safetensors metadata get model.safetensors modelspec.title
    #[command(verbatim_doc_comment)]
    Get {
        /// A file, an index or a directory
        path: PathBuf,
        /// The entries to print; all if none is named
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Print values as they are, also what could do things to a terminal
        #[arg(long)]
        raw: bool,
        /// Print a JSON object
        #[arg(long, conflicts_with = "raw")]
        json: bool,
    },
    /// Add entries, or give those that are there another value
    ///
    /// Examples:
    ///   safetensors metadata set model.safetensors format=pt 'title=My model'
    #[command(verbatim_doc_comment)]
    Set {
        /// The file
        path: PathBuf,
        /// What to set; the key ends at the first =
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = entry)]
        entries: Vec<(String, String)>,
        #[command(flatten)]
        how: How,
    },
    /// Remove entries
    ///
    /// Examples:
    ///   safetensors metadata remove model.safetensors ss_training_comment
    #[command(verbatim_doc_comment)]
    Remove {
        /// The file
        path: PathBuf,
        /// The entries to remove
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Remove all entries
    ///
    /// Examples:
    ///   safetensors metadata clear model.safetensors
    #[command(verbatim_doc_comment)]
    Clear {
        /// The file
        path: PathBuf,
        #[command(flatten)]
        how: How,
    },
}

/// How a file is changed, for every command that changes one.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct How {
    /// Say what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Reads `KEY=VALUE`.
pub(crate) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Err("expected KEY=VALUE".into()),
    }
}

/// Shows or changes metadata.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Get { path, keys, raw, json } => get(path, keys, *raw, *json, out)?,
        Command::Set { path, entries, how } => {
            how.apply(path, out, |edit| edit.set_metadata(entries.iter().cloned()))?
        }
        Command::Remove { path, keys, how } => {
            let file = file_of(path)?;
            let known = input::open(&file)?;
            if let Some(missing) = keys.iter().find(|key| !known.metadata().contains_key(*key)) {
                anyhow::bail!(
                    "{}: there is no metadata {}; nothing was removed",
                    text::path(&file),
                    text::name(missing)
                );
            }
            how.apply(path, out, |edit| edit.remove_metadata(keys))?;
        }
        Command::Clear { path, how } => how.apply(path, out, Edit::clear_metadata)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn get(path: &Path, keys: &[String], raw: bool, as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let checkpoint = input::open(path)?;
    let all = checkpoint.metadata();
    let missing = |key: &str| anyhow::anyhow!("{}: there is no metadata {}", text::path(path), text::name(key));
    let mut entries = Vec::new();
    for key in keys {
        entries.push(all.get_key_value(key).ok_or_else(|| missing(key))?);
    }
    let entries = if keys.is_empty() { all.iter().collect() } else { entries };
    if as_json {
        let entries: Metadata = entries.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        return json::write(&entries, out);
    }
    for (key, value) in entries {
        if keys.len() != 1 {
            write!(out, "{}=", text::printable(key))?;
        }
        if raw { writeln!(out, "{value}")? } else { writeln!(out, "{}", text::printable(value))? }
    }
    Ok(())
}

/// The one file that a path leads to.
fn file_of(path: &Path) -> anyhow::Result<PathBuf> {
    let open = |path| Checkpoint::open(path).map_err(|error| error.in_file(Path::display(path)));
    // A file with a broken header is for the edit to restore, if an earlier one was interrupted.
    if path.is_file() && path.extension().is_none_or(|extension| extension != "json") {
        return Ok(path.to_owned());
    }
    match open(path)?.shards() {
        [only] => Ok(only.path().to_owned()),
        several => anyhow::bail!("{}: has {} files; name the one to change", text::path(path), several.len()),
    }
}

impl How {
    /// Changes the file that a path leads to, and says how.
    pub(crate) fn apply<'a>(
        &self,
        path: &Path,
        out: &mut impl Write,
        change: impl FnOnce(Edit<'a>) -> Edit<'a>,
    ) -> anyhow::Result<()> {
        let file = file_of(path)?;
        let edit = change(Edit::open(&file).map_err(|error| error.in_file(file.display()))?);
        let edited = if self.dry_run { edit.dry_run()? } else { edit.apply()? };
        let would = if self.dry_run { "would be " } else { "" };
        let done = match edited {
            Edited::Unchanged => "unchanged",
            Edited::InPlace => "changed in place",
            Edited::Rewritten => "written anew",
        };
        writeln!(out, "{}: {would}{done}", text::path(&file))?;
        if !self.dry_run {
            self.check(&file)?;
        }
        Ok(())
    }

    /// Warns of what is wrong with metadata that follows the ModelSpec standard.
    fn check(&self, file: &Path) -> anyhow::Result<()> {
        let checkpoint = input::open(file)?;
        if super::modelspec::is_followed(checkpoint.metadata()) {
            let findings = super::modelspec::errors(checkpoint.metadata());
            findings.iter().for_each(|finding| warn(format!("{}: {finding}", file.display())));
        }
        Ok(())
    }
}
