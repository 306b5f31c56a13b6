//! One file or folder for each command: its arguments, its [`Run`], and code only for it.

mod browse;
mod cache;
mod completions;
mod convert;
mod delta;
mod diff;
mod digest;
mod download;
mod extract;
mod inputs;
mod inspect;
mod manifest;
mod manual;
mod map;
mod memory;
mod metadata;
mod plan;
mod show;
mod sign;
mod stats;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::terminal::stdout::Out;

/// Inspect, check, compare, edit and convert safetensors files and sharded checkpoints.
#[derive(Debug, Parser)]
#[command(
    name = "safetensors",
    // Otherwise the name of the file, which is `safetensors.exe` on Windows.
    bin_name = "safetensors",
    version,
    long_version = VERSION,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print output that is longer than the screen without a pager
    ///
    /// The pager is the command in SAFETENSORS_PAGER, otherwise in PAGER, otherwise less. It gets
    /// LESS=FRX and LV=-c unless they are set. There is none if the variable is empty or cat, or if
    /// TERM is dumb
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_pager: bool,
}

/// Follows the name in `--version`. `-V` prints only the version.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ntarget: ",
    env!("SAFETENSORS_TARGET"),
    "\nfeatures: ",
    env!("SAFETENSORS_FEATURES")
);

const EXAMPLES: &str = "\
More commands:
  manifest  Write the places of tensors, as references of kerchunk, for readers of Zarr
  manual    Write the manual pages of all commands into a directory

Examples:
  safetensors inspect model.safetensors             Show what is in a file
  safetensors browse model.safetensors              Look through it in the terminal
  safetensors verify checkpoints/                   Check every file in a directory
  safetensors show model.safetensors weight '[0]'   Show the values of a tensor
  safetensors diff a.safetensors b.safetensors      Compare two files
  safetensors convert model/ small/ --dtype bf16    Convert to another dtype
  safetensors plan model/ --world-size 4            Show what each of 4 ranks holds
  safetensors map model.safetensors -o map.html     Draw where the parameters are
  safetensors inspect hf://owner/name               Show what is on the Hub
  safetensors download owner/name                   Get it into the cache
  safetensors help convert                          Explain one command

Environment:
  SAFETENSORS_THREADS   Number of threads; the default is one per core, at most 8
  SAFETENSORS_PAGER     Pager for output that is longer than the screen; else PAGER, else less
  COLUMNS               Width of tables; a pipe gets tabs between cells without it
  NO_COLOR              Turn colours off, even on a terminal
  CLICOLOR_FORCE        Turn colours on, even where there is no terminal

Exit codes: 0 done, 1 a file is malformed, different, unreadable or unwritable, 2 wrong usage,
and of diff also a file that is malformed or unreadable.";

/// The defaults suit a command that only reads.
pub(crate) trait Run {
    /// Returns `true` if it reacts to signals. Then it writes no files.
    fn handles_signals(&self) -> bool {
        false
    }

    /// Returns `true` if its output may go to a pager. Then it writes no files.
    fn is_paged(&self) -> bool {
        false
    }

    fn trouble(&self) -> ExitCode {
        ExitCode::FAILURE
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode>;
}

/// The help hides other commands, and names some under "More commands".
pub(crate) fn is_explained(command: &clap::Command) -> bool {
    !matches!(command.get_name(), "help" | "manual")
}

/// Declares subcommands, and finds the [`Run`] of the chosen one.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident($module:ident),)*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$attribute])* $name($module::Args),)*
        }

        impl Cli {
            /// Returns the command that was asked for.
            pub(crate) fn chosen(&self) -> &dyn Run {
                match &self.command {
                    $(Command::$name(args) => args,)*
                }
            }
        }
    };
}

// In the order of the help.
commands! {
    Inspect(inspect),
    Browse(browse),
    Verify(verify),
    Show(show),
    Stats(stats),
    Diff(diff),
    Convert(convert),
    Delta(delta),
    Memory(memory),
    Plan(plan),
    Metadata(metadata),
    Digest(digest),
    Sign(sign),
    Extract(extract),
    Map(map),
    #[command(hide = true)]
    Manifest(manifest),
    Download(download),
    Cache(cache),
    Completions(completions),
    #[command(hide = true)]
    Manual(manual),
}
