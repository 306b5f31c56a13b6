//! `safetensors cache`: lists, checks and cleans the Hub's cache.

#![cfg_attr(not(feature = "remote"), allow(dead_code, reason = "the arguments are only explained"))]

#[cfg(feature = "remote")]
mod content;

use std::path::PathBuf;
use std::process::ExitCode;

use super::Run;
use crate::terminal::stdout::Out;

/// Show, check and clean the cache of the Hugging Face Hub
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  safetensors cache list
  safetensors cache size --json | jq .bytes
  safetensors cache verify openai-community/gpt2
  safetensors cache prune --dry-run
  safetensors cache help verify

Exit codes: 0 done, 1 a file is damaged, or the cache cannot be read or changed, 2 wrong usage.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the repositories that were downloaded, with their revisions
    ///
    /// Revisions share equal files. A branch or a tag without a snapshot is listed as such: nothing
    /// of it was downloaded, or its files were removed.
    #[command(after_help = "\
Examples:
  safetensors cache list
  safetensors cache list openai-community/gpt2
  safetensors cache list --json | jq -r '.repos[].snapshots[].path'

Exit codes: 0 shown, 1 REPO is not in the cache, or the cache cannot be read, 2 wrong usage.")]
    List(ShowArgs),
    /// Read every file, and compare its digest with the Hub's
    ///
    /// A damaged file gets a line on standard error. Remove it, and the next download replaces it.
    /// A file without a known digest is not verified, and gets a warning: a copy in a snapshot, as
    /// on Windows, or a blob from a server with other ETags. So does a branch or a tag without a
    /// snapshot.
    #[command(after_help = "\
Examples:
  safetensors cache verify
  safetensors cache verify openai-community/gpt2
  safetensors cache verify --json | jq -r '.repos[].damaged[].path'

Exit codes: 0 no file is damaged, 1 a file is damaged, or cannot be read, or, with --strict, is not
verified, 2 wrong usage.")]
    Verify {
        #[command(flatten)]
        args: ShowArgs,
        /// Fail if a file is not verified
        #[arg(long)]
        strict: bool,
    },
    /// Show the bytes on the disk of each repository, the largest first
    ///
    /// Unfinished downloads count too.
    #[command(after_help = "\
Examples:
  safetensors cache size
  safetensors cache size --cache-dir /mnt/models --json

Exit codes: 0 shown, 1 REPO is not in the cache, or the cache cannot be read, 2 wrong usage.")]
    Size(ShowArgs),
    /// Remove repositories from the cache
    ///
    /// The next download gets them again. On a terminal a question comes first; elsewhere --force
    /// is needed.
    #[command(after_help = "\
Examples:
  safetensors cache rm openai-community/gpt2 --dry-run
  safetensors cache rm openai-community/gpt2 datasets/owner/name --force

Exit codes: 0 removed, 1 REPO is not in the cache, or the cache cannot be changed, 2 wrong usage.")]
    Rm(Removal),
    /// Remove the snapshots that no branch or tag leads to
    ///
    /// These are older commits of branches, and commits that were downloaded by their hash. Files
    /// of other snapshots stay, and so do unfinished downloads. On a terminal a question comes
    /// first; elsewhere --force is needed.
    #[command(after_help = "\
Examples:
  safetensors cache prune --dry-run
  safetensors cache prune --force

Exit codes: 0 removed, or nothing to remove, 1 REPO is not in the cache, or the cache cannot be
changed, 2 wrong usage.")]
    Prune(Removal),
}

/// The arguments of all.
#[derive(Debug, clap::Args)]
struct Place {
    /// Only these repositories; all by default
    #[arg(value_name = "REPO")]
    repos: Vec<String>,
    /// The cache; by default HF_HUB_CACHE, else hub in HF_HOME, else ~/.cache/huggingface/hub
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

/// The arguments of the commands that only show something.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    place: Place,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The arguments of the commands that remove something.
#[derive(Debug, clap::Args)]
struct Removal {
    #[command(flatten)]
    place: Place,
    /// Print what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Remove it without a question
    #[arg(long)]
    force: bool,
}

impl Run for Args {
    #[cfg(not(feature = "remote"))]
    fn run(&self, _: &mut Out) -> anyhow::Result<ExitCode> {
        Err(crate::input::address::missing())
    }

    #[cfg(feature = "remote")]
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        match &self.command {
            Command::List(args) => content::list(args, out),
            Command::Verify { args, strict } => content::verify(args, *strict, out),
            Command::Size(args) => content::size(args, out),
            Command::Rm(removal) => content::rm(removal, out),
            Command::Prune(removal) => content::prune(removal, out),
        }
    }
}
