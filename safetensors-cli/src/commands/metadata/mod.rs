//! `safetensors metadata`: shows and changes the metadata of all files of a checkpoint.

mod modelspec;

use std::io::Write;
use std::process::ExitCode;

use safetensors_core::Metadata;

use super::Run;
use crate::input::{self, Input};
use crate::output::edit::{Changing, EditArgs, entry, with_files};
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Show or change the metadata of a file, or of all files of a sharded checkpoint
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  safetensors metadata get model.safetensors
  safetensors metadata set model/ format=pt license=@LICENSE
  safetensors metadata remove model.safetensors training_log --dry-run
  safetensors metadata clear model.safetensors
  safetensors metadata modelspec validate model.safetensors
  safetensors metadata help set

Exit codes: 0 done, 1 there is no such key, or the file cannot be read or written, 2 wrong usage.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    Get(Get),
    /// Add entries, or replace the values of existing ones
    ///
    /// In a sharded checkpoint, each file gets them. A complete copy with the new header replaces
    /// the file, so that it is old or new, also after a kill. The copy has the mode and, where
    /// allowed, the owner of the file. It takes hardly any time or space on btrfs and XFS. Hard
    /// links keep the old file; a symbolic link is followed. A file of a burn epoch is refused,
    /// because its manifest has a digest of the header.
    #[command(after_help = "\
Examples:
  safetensors metadata set model.safetensors format=pt license=mit
  safetensors metadata set model/ 'title=My model' license=@LICENSE --dry-run
  safetensors metadata set model.safetensors format=np --in-place

Exit codes: 0 done, 1 the file is unchanged, or the error says what it is, 2 wrong usage.")]
    Set {
        #[command(flatten)]
        edit: EditArgs,
        /// The entries to set; the key ends at the first =
        ///
        /// The value @FILE is the text of a file, @- of standard input; @@ begins a value with @
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = entry)]
        entries: Vec<(String, String)>,
    },
    /// Remove entries
    ///
    /// If a key does not exist, nothing is removed. In a sharded checkpoint, one file with the key
    /// is enough.
    #[command(after_help = "\
Examples:
  safetensors metadata remove model.safetensors ss_training_comment
  safetensors metadata remove model.safetensors author license --dry-run

Exit codes: 0 done, 1 no such key, or the file cannot be read or written, 2 wrong usage.")]
    Remove {
        #[command(flatten)]
        edit: EditArgs,
        /// The entries to remove
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
    /// Remove all entries
    #[command(after_help = "\
Examples:
  safetensors metadata clear model.safetensors
  safetensors metadata clear model.safetensors --dry-run

Exit codes: 0 done, 1 the file is unchanged, or the error says what it is, 2 wrong usage.")]
    Clear(EditArgs),
    /// Check or write metadata that follows the ModelSpec standard.
    ///
    /// ModelSpec 1.0.1 defines the metadata keys that describe a model, such as
    /// modelspec.title.
    #[command(after_help = modelspec::EXAMPLES)]
    Modelspec {
        #[command(subcommand)]
        command: modelspec::Command,
    },
}

/// Print entries as KEY=VALUE; of a single KEY print only the value
///
/// Unprintable characters and backslashes are escaped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  safetensors metadata get model.safetensors
  safetensors metadata get model.safetensors modelspec.title
  safetensors metadata get --json checkpoint/ | jq keys

Exit codes: 0 printed, 1 no such key, or PATH is malformed or cannot be read, 2 wrong usage.")]
struct Get {
    #[command(flatten)]
    input: Input,
    /// The entries to print; all by default
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Print values without escapes
    ///
    /// Values may hold characters that control a terminal
    #[arg(long)]
    raw: bool,
    /// Print a JSON object
    #[arg(long, conflicts_with = "raw")]
    json: bool,
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        match &self.command {
            Command::Get(_) => true,
            Command::Modelspec { command } => matches!(command, modelspec::Command::Validate(_)),
            _ => false,
        }
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        match &self.command {
            Command::Get(get) => get.run(out)?,
            Command::Set { edit, entries } => {
                let entries = with_files(entries)?;
                let keys = text::some(entries.iter().map(|(key, _)| key));
                edit.apply(out, |edit, it| {
                    Ok((
                        edit.set_metadata(entries.iter().cloned()),
                        it.would(&format!("set {keys}")),
                    ))
                })?;
            }
            Command::Remove { edit, keys } => remove(edit, keys, out)?,
            Command::Clear(edit) => {
                edit.apply(out, |edit, it| {
                    let keys = text::some(edit.header().metadata().keys());
                    Ok((edit.clear_metadata(), it.would(&format!("remove {keys}"))))
                })?;
            }
            Command::Modelspec { command } => return command.run(out),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Get {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let checkpoint = self.input.open()?;
        let all = checkpoint.metadata();
        let mut entries = Vec::new();
        for key in &self.keys {
            entries
                .push(all.get_key_value(key).ok_or_else(|| no_such_key(&self.input.name(), key))?);
        }
        let entries = if self.keys.is_empty() { all.iter().collect() } else { entries };
        if self.json {
            let entries: Metadata =
                entries.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            return json::write(&entries, out);
        }
        for (key, value) in entries {
            if self.keys.len() != 1 {
                write!(out, "{}=", text::escaped(key))?;
            }
            if self.raw {
                writeln!(out, "{value}")?
            } else {
                writeln!(out, "{}", text::escaped(value))?
            }
        }
        Ok(())
    }
}

fn remove(edit: &EditArgs, keys: &[String], out: &mut impl Write) -> anyhow::Result<()> {
    edit.apply(out, |edit, it: Changing<'_>| {
        if let Some(missing) = keys.iter().find(|key| !it.keys.contains(*key)) {
            let error = no_such_key(&input::name(it.file), missing);
            return Err(error.context("nothing was removed"));
        }
        let told = it.would(&format!("remove {}", text::some(keys)));
        Ok((edit.remove_metadata(keys), told))
    })
}

fn no_such_key(path: &str, key: &str) -> anyhow::Error {
    let key = text::short(key);
    anyhow::anyhow!(
        "{path}: there is no metadata key {key}; `safetensors metadata get PATH` lists the keys"
    )
}
