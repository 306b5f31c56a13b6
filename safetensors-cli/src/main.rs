//! The `safetensors` command: looks at safetensors files and sharded checkpoints, checks, compares, changes and converts them.
//!
//! Every rule of the format lives in `safetensors-core`; here are arguments, tables and exit codes only. Each command is one
//! file in `commands`.
#![forbid(unsafe_code)]

mod colour;
mod commands;
mod compare;
mod discover;
mod file;
mod input;
mod json;
mod map;
mod moments;
mod numpy;
mod order;
mod output;
mod parallel;
mod progress;
mod select;
mod spool;
mod table;
mod text;
mod totals;
mod tree;
mod usage;
mod values;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    completions, convert as conversion, diff, digest, extract, inspect, map as draw, metadata, modelspec, stats, verify,
};

/// Look at safetensors files and sharded checkpoints; check, compare, change and convert them.
#[derive(Debug, Parser)]
#[command(name = "safetensors", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  safetensors inspect model.safetensors                        What is in a file
  safetensors verify checkpoints/                              Whether files and checkpoints are sound
  safetensors convert model/ small/ --dtype bf16               Another dtype
  safetensors diff before.safetensors after.safetensors        What has changed
  safetensors map model.safetensors -o map.svg                 Where the parameters are
  safetensors help convert                                     More about a command

Environment:
  SAFETENSORS_THREADS   How many threads to use; one a core if not set, 8 at most
  NO_COLOR              No colours, also on a terminal

Exit codes: 0 done, 1 a file is malformed or different, or cannot be read or written, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::Args),
    Stats(stats::Args),
    Convert(conversion::Args),
    Diff(diff::Args),
    Digest(digest::Args),
    Extract(extract::Args),
    Map(draw::Args),
    Metadata(metadata::Args),
    Modelspec(modelspec::Args),
    Verify(verify::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    run(&cli).unwrap_or_else(|error| {
        output::report(&format!("{error:#}"));
        // As clap ends what it finds wrong itself.
        if error.is::<usage::WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let mut out = output::stdout();
    let code = match &cli.command {
        Command::Inspect(args) => inspect::run(args, &mut out)?,
        Command::Convert(args) => conversion::run(args, &mut out)?,
        Command::Diff(args) => diff::run(args, &mut out)?,
        Command::Extract(args) => extract::run(args, &mut out)?,
        Command::Digest(args) => digest::run(args, &mut out)?,
        Command::Metadata(args) => metadata::run(args, &mut out)?,
        Command::Modelspec(args) => modelspec::run(args, &mut out)?,
        Command::Map(args) => draw::run(args, &mut out)?,
        Command::Stats(args) => stats::run(args, &mut out)?,
        Command::Verify(args) => verify::run(args, &mut out)?,
        Command::Completions(args) => completions::run(args, Cli::command(), &mut out)?,
    };
    out.flush()?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_explains_itself_with_examples() {
        let mut cli = Cli::command();
        cli.build();
        cli.clone().debug_assert();
        for command in std::iter::once(&cli).chain(cli.get_subcommands().filter(|c| c.get_name() != "help")) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{help}");
        }
        assert!(cli.render_long_help().to_string().contains("SAFETENSORS_THREADS"));
    }
}
