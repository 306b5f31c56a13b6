//! The `safetensors` command: inspects, checks, compares, edits and converts safetensors files and
//! sharded checkpoints.
//!
//! The rules of the format live in `safetensors-core`. This crate has only the arguments, tables
//! and exit codes. Each command is one file or folder in `commands`.
#![forbid(unsafe_code)]

mod address;
mod below;
mod colour;
mod commands;
mod discover;
mod edit;
mod file;
mod find;
mod hints;
mod input;
mod inputs;
mod json;
mod kind;
mod numpy;
mod order;
mod other;
mod pager;

mod progress;
mod ranks;
mod report;
mod screen;
mod select;
mod signals;
mod slicing;
mod spool;
mod stdout;
mod table;
mod targets;
mod text;
mod threads;
mod totals;
mod tree;
mod values;
mod vectors;

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use commands::{
    browse, cache, completions, convert, diff, digest, download, extract, inspect, manual, map,
    metadata, modelspec, plan, show, stats, verify,
};

/// Inspect, check, compare, edit and convert safetensors files and sharded checkpoints.
#[derive(Debug, Parser)]
#[command(
    name = "safetensors",
    version,
    long_version = VERSION,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print output that is longer than the screen without a pager
    ///
    /// The pager is the command in SAFETENSORS_PAGER, or else in PAGER, or else less
    #[arg(long, global = true, hide_short_help = true)]
    no_pager: bool,
}

/// What `--version` prints after the name. `-V` prints only the version.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ntarget: ",
    env!("SAFETENSORS_TARGET"),
    "\nfeatures: ",
    env!("SAFETENSORS_FEATURES")
);

const EXAMPLES: &str = "\
Examples:
  safetensors inspect model.safetensors             Show what is in a file
  safetensors browse model.safetensors              Look through it in the terminal
  safetensors verify checkpoints/                   Check every file in a directory
  safetensors show model.safetensors weight '[0]'   Show the values of a tensor
  safetensors diff a.safetensors b.safetensors      Compare two files
  safetensors convert model/ small/ --dtype bf16    Convert to another dtype
  safetensors plan model/ --world-size 4            Show what each of 4 ranks holds
  safetensors map model.safetensors -o map.svg      Draw where the parameters are
  safetensors inspect hf://owner/name               Show what is on the Hub
  safetensors download owner/name                   Get it into the cache
  safetensors help convert                          Explain one command

Environment:
  SAFETENSORS_THREADS   Number of threads; the default is one per core, at most 8
  SAFETENSORS_PAGER     Pager for output that is longer than the screen; else PAGER, else less
  COLUMNS               Width of tables on a terminal
  NO_COLOR              Turn colours off, even on a terminal
  CLICOLOR_FORCE        Turn colours on, even where there is no terminal

Exit codes: 0 done, 1 a file is malformed, different, unreadable or unwritable, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::Args),
    Browse(browse::Args),
    Verify(verify::Args),
    Show(show::Args),
    Stats(stats::Args),
    Diff(diff::Args),
    Convert(convert::Args),
    Plan(plan::Args),
    Metadata(metadata::Args),
    Modelspec(modelspec::Args),
    Digest(digest::Args),
    Extract(extract::Args),
    Map(map::Args),
    Download(download::Args),
    Cache(cache::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Manual(manual::Args),
}

impl Command {
    /// Whether it may write files, and so have temporary ones.
    fn writes_files(&self) -> bool {
        match self {
            Self::Convert(_)
            | Self::Plan(_)
            | Self::Metadata(_)
            | Self::Modelspec(_)
            | Self::Digest(_)
            | Self::Extract(_)
            | Self::Map(_)
            | Self::Manual(_) => true,
            Self::Inspect(_)
            | Self::Browse(_)
            | Self::Verify(_)
            | Self::Show(_)
            | Self::Stats(_)
            | Self::Diff(_)
            | Self::Download(_)
            | Self::Cache(_)
            | Self::Completions(_) => false,
        }
    }

    /// Whether a pager shows its output on a terminal. Such a command writes no files.
    fn is_paged(&self) -> bool {
        match self {
            Self::Inspect(_) | Self::Show(_) | Self::Stats(_) | Self::Diff(_) => true,
            Self::Convert(args) => args.is_dry_run(),
            Self::Plan(args) => args.only_shows(),
            Self::Metadata(args) => args.only_shows(),
            Self::Modelspec(args) => args.only_shows(),
            Self::Digest(args) => args.only_shows(),
            Self::Browse(_)
            | Self::Verify(_)
            | Self::Extract(_)
            | Self::Map(_)
            | Self::Download(_)
            | Self::Cache(_)
            | Self::Completions(_)
            | Self::Manual(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return wrong_arguments(error),
    };
    let outcome =
        Cli::from_arg_matches(&matches).map_err(anyhow::Error::from).and_then(|cli| run(&cli));
    outcome.unwrap_or_else(|error| match error.downcast::<clap::Error>() {
        Ok(wrong) => show_wrong(&wrong.format(&mut asked(&matches))),
        Err(error) => {
            signals::wait_if_ending();
            report::report(format!("{error:#}"));
            ExitCode::FAILURE
        }
    })
}

/// Prints what is wrong with the arguments, or the requested help.
fn wrong_arguments(mut error: clap::Error) -> ExitCode {
    hints::add_to(&mut error);
    show_wrong(&error)
}

/// Prints an error about arguments, or help.
///
/// An argument may be a file name with characters that control the terminal, or that change the
/// direction of text. These are escaped, and the error has no colours then.
fn show_wrong(error: &clap::Error) -> ExitCode {
    let plain = error.render().to_string();
    let is_hostile = |c: char| c != '\n' && !text::is_printable(c);
    // If the stream is closed, there is nowhere to report that.
    let _ = if error.use_stderr() && plain.chars().any(is_hostile) {
        let lines = plain.split('\n').map(|line| text::printable(line).to_string());
        std::io::stderr().write_all(lines.collect::<Vec<_>>().join("\n").as_bytes())
    } else {
        error.print()
    };
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// The selected subcommand, such as `metadata set`, for an error that shows its usage.
fn asked(mut matches: &ArgMatches) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name).cloned() else { break };
        (command, matches) = (found, inner);
    }
    command
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    signals::make_limits_errors();
    threads::check_environment()?;
    let is_paged = cli.command.is_paged();
    if cli.command.writes_files() && !is_paged {
        signals::clean_up_after_them();
    }
    let mut out = stdout::stdout(is_paged && !cli.no_pager);
    let code = match &cli.command {
        Command::Inspect(args) => inspect::run(args, &mut out)?,
        Command::Browse(args) => browse::run(args)?,
        Command::Verify(args) => verify::run(args, &mut out)?,
        Command::Show(args) => show::run(args, &mut out)?,
        Command::Stats(args) => stats::run(args, &mut out)?,
        Command::Diff(args) => diff::run(args, &mut out)?,
        Command::Convert(args) => convert::run(args, &mut out)?,
        Command::Plan(args) => plan::run(args, &mut out)?,
        Command::Metadata(args) => metadata::run(args, &mut out)?,
        Command::Modelspec(args) => modelspec::run(args, &mut out)?,
        Command::Digest(args) => digest::run(args, &mut out)?,
        Command::Extract(args) => extract::run(args, &mut out)?,
        Command::Map(args) => map::run(args, &mut out)?,
        Command::Download(args) => download::run(args, &mut out)?,
        Command::Cache(args) => cache::run(args, &mut out)?,
        Command::Completions(args) => completions::run(args, Cli::command(), &mut out)?,
        Command::Manual(args) => manual::run(args, Cli::command(), &mut out)?,
    };
    stdout::finish(out)?;
    Ok(code)
}

#[cfg(test)]
mod help;
