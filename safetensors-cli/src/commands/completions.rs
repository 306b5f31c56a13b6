//! `safetensors completions`: the script for a shell.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Run};
use crate::terminal::stdout::Out;

/// Print the script with which a shell completes this command.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  source <(safetensors completions bash)    # a line of ~/.bashrc
  safetensors completions zsh > ~/.zfunc/_safetensors
  safetensors completions fish > ~/.config/fish/completions/safetensors.fish

Exit codes: 0 printed, 1 writing failed, 2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        run(self, Cli::command(), out)
    }
}

fn run(args: &Args, mut command: clap::Command, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    // Into memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "safetensors", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
