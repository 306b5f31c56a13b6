//! `safetensors metadata`: to see and change the metadata of a file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::Metadata;
use safetensors_core::edit::Edit;

use super::edit::{EditArgs, entry};
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
        /// Print values as they are: without escapes, and so also what could do things to a terminal
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
        how: EditArgs,
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
        how: EditArgs,
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
        how: EditArgs,
    },
}

/// Shows or changes metadata.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Get { path, keys, raw, json } => get(path, keys, *raw, *json, out)?,
        Command::Set { path, entries, how } => {
            how.apply(path, out, |edit| Ok(edit.set_metadata(entries.iter().cloned())))?
        }
        Command::Remove { path, keys, how } => how.apply(path, out, |edit| remove(edit, path, keys))?,
        Command::Clear { path, how } => how.apply(path, out, |edit| Ok(edit.clear_metadata()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn remove<'a>(edit: Edit<'a>, path: &Path, keys: &[String]) -> anyhow::Result<Edit<'a>> {
    match keys.iter().find(|key| !edit.header().metadata().contains_key(*key)) {
        Some(missing) => Err(no_such_key(path, missing).context("nothing was removed")),
        None => Ok(edit.remove_metadata(keys)),
    }
}

/// The error for a key that is not there.
fn no_such_key(path: &Path, key: &str) -> anyhow::Error {
    let (path, key) = (input::name(path), text::name(key));
    anyhow::anyhow!("{path}: there is no metadata {key}; `safetensors metadata get PATH` lists the keys")
}

fn get(path: &Path, keys: &[String], raw: bool, as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let checkpoint = input::open(path)?;
    let all = checkpoint.metadata();
    let mut entries = Vec::new();
    for key in keys {
        entries.push(all.get_key_value(key).ok_or_else(|| no_such_key(path, key))?);
    }
    let entries = if keys.is_empty() { all.iter().collect() } else { entries };
    if as_json {
        let entries: Metadata = entries.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        return json::write(&entries, out);
    }
    for (key, value) in entries {
        if keys.len() != 1 {
            write!(out, "{}=", text::escaped(key))?;
        }
        if raw { writeln!(out, "{value}")? } else { writeln!(out, "{}", text::escaped(value))? }
    }
    Ok(())
}
