//! `safetensors verify`: whether files and checkpoints are sound.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::Result;

use super::open;
use crate::output::report;
use crate::text;
use crate::totals::Totals;

/// Check files and checkpoints against every rule of the format.
///
/// Each PATH is a file, an index (*.safetensors.index.json), or a directory that
/// holds an index or exactly one file.
///
/// The header of each file is checked: its length, its JSON, each tensor's dtype,
/// shape and place, and that the file is as long as they ask for. An index must
/// send every tensor to a file that has it. The tensors' values are not read: the
/// format allows any.
///
/// For each sound PATH one line is printed on standard output, for each other one
/// on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// Files, indexes or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  safetensors verify model.safetensors
  safetensors verify checkpoints/*
  safetensors verify model.safetensors.index.json && echo sound

Exit codes: 0 every PATH is sound, 1 at least one is not, 2 wrong usage.";

/// Checks each path; the outcome is a failure if one of them is not sound.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for path in &args.paths {
        match verify(path) {
            Ok(summary) => {
                writeln!(out, "{}: ok, {summary}", text::path(path))?;
                // Standard error is not buffered: without this its lines would come before those of earlier paths.
                out.flush()?;
            }
            Err(error) => {
                report(&error);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// What there is in a sound checkpoint. Opening it checks every rule.
fn verify(path: &Path) -> Result<String> {
    let checkpoint = open(path)?;
    let Totals { tensors, parameters, bytes } = Totals::of(&checkpoint)?;
    let shards = match checkpoint.shards().len() {
        1 => String::new(),
        several => format!("{}, ", text::counted(several as u64, "shard")),
    };
    let (tensors, parameters) = (text::counted(tensors, "tensor"), text::counted(parameters, "parameter"));
    Ok(format!("{shards}{tensors}, {parameters}, {}", text::size(bytes)))
}
