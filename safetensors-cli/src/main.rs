//! The `safetensors` command: inspects, checks, compares, edits and converts checkpoints.
//!
//! `safetensors-core` has the rules of the format. This crate has the arguments, tables and exit
//! codes.
//!
//! | module | content |
//! |---|---|
//! | `hints` | advice for commands that do not exist |
//! | `commands` | one file or folder for each command |
//! | `output` | writing |
//! | `model` | knowledge about models |
//! | `input` | reading |
//! | `terminal` | showing |
//!
//! Each imports only from those below it.
#![forbid(unsafe_code)]

mod commands;
mod hints;
mod input;
mod model;
mod output;
mod terminal;

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use commands::Cli;

use crate::input::{address, threads};
use crate::terminal::{report, signals, stdout, text};

fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return wrong_arguments(error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(wrong) => return show_wrong(&wrong.format(&mut asked(&matches))),
    };
    run(&cli).unwrap_or_else(|error| match error.downcast::<clap::Error>() {
        Ok(wrong) => show_wrong(&wrong.format(&mut asked(&matches))),
        Err(error) => {
            signals::wait_if_ending();
            report::report(format!("{error:#}"));
            cli.chosen().trouble()
        }
    })
}

fn wrong_arguments(mut error: clap::Error) -> ExitCode {
    hints::add_to(&mut error);
    show_wrong(&error)
}

/// Prints help, or an error about arguments.
// An argument may have characters that control the terminal, or change the direction of text. These
// are escaped, and the error then has no colours.
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

/// Returns the selected subcommand, such as `metadata set`, for an error that shows its usage.
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
    let command = cli.chosen();
    let is_paged = command.is_paged();
    if !command.handles_signals() && !is_paged {
        signals::clean_up_after_them(address::abort_uploads);
    }
    let mut out = stdout::stdout(is_paged && !cli.no_pager);
    let code = command.run(&mut out)?;
    stdout::finish(out)?;
    Ok(code)
}

#[cfg(test)]
mod tests;
