//! `safetensors manual`: manual pages, for packages of the command.
//!
//! They have the content of `--help`. Examples, variables and exit codes come from the text after
//! the help, which `clap_mangen` would fill to paragraphs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Cli, Run, is_explained};
use crate::output::existing::Existing;
use crate::output::file;
use crate::output::writing::{Content, Writing};
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Write the manual pages of all commands into a directory.
///
/// The directory is made if it does not exist.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to write safetensors.1, safetensors-inspect.1 and the others
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    writing: Writing,
}

const EXAMPLES: &str = "\
Examples:
  safetensors manual ~/.local/share/man/man1

Exit codes: 0 written, 1 DIR cannot be written, 2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        run(self, Cli::command(), out)
    }
}

fn run(args: &Args, command: clap::Command, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let pages = pages(command)?;
    let count = text::counted(pages.len() as u64, "page");
    let existing = Existing::in_directory(&args.dir, |name| pages.contains_key(name));
    let destination = args.writing.permit(existing, &Content::default())?;
    if destination.is_dry_run(out, &count)? {
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::create_dir_all(&args.dir).with_context(|| text::path(&args.dir))?;
    for (name, page) in &pages {
        let path = args.dir.join(name);
        file::replace(&path, &destination.options(), |file| Ok(file.write_all(page)?))?;
    }
    destination.tell(out, count)?;
    Ok(ExitCode::SUCCESS)
}

fn pages(command: clap::Command) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    // `help` explains the other commands, which have separate pages. The command makes its pages: a
    // build script cannot see its arguments.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut pages = BTreeMap::new();
    let mut rest = vec![command];
    while let Some(command) = rest.pop() {
        let nested = command.get_subcommands().filter(|nested| is_explained(nested)).cloned();
        rest.extend(nested);
        pages.extend([page(command, &version)?]);
    }
    Ok(pages)
}

/// Returns a page's name and content. It is equal on every machine: it has neither a date nor the
/// features of this program.
fn page(mut command: clap::Command, version: &str) -> anyhow::Result<(String, Vec<u8>)> {
    // Of options, `clap_mangen` would name all, but no values.
    let usage = command.render_usage().to_string();
    let command = command.override_usage(usage.trim_start_matches("Usage: ").to_owned());
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_arguments = command.get_arguments().any(|arg| !arg.is_hide_set());
    let has_commands = command.get_subcommands().any(|nested| !nested.is_hide_set());
    let man =
        Man::new(command).source(format!("safetensors {version}")).manual("Manual of safetensors");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    if has_arguments {
        man.render_options_section(&mut page)?;
    }
    ending(&after).to_writer(&mut page)?;
    Ok((man.get_filename(), page))
}

/// Empty lines separate the sections, and names begin them.
fn ending(after_help: &str) -> Roff {
    let mut roff = Roff::new();
    for section in after_help.split("\n\n") {
        let (name, rest) = section.split_once(':').unwrap_or((section, ""));
        let name = if name == "Exit codes" { "Exit status" } else { name };
        roff.control("SH", [name.to_uppercase().as_str()]);
        match rest.strip_prefix('\n') {
            // Separate lines, which must not be filled.
            Some(lines) => {
                roff.control("nf", []);
                lines.lines().for_each(|line| {
                    roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
                });
                roff.control("fi", []);
            }
            None => {
                roff.text([roman(rest.trim().replace('\n', " "))]);
            }
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_lines_and_cannot_be_taken_for_requests() {
        let ending = ending("Examples:\n  a -b \\\n      'c'\n  .d\n\nExit codes: 0 e,\n1 f.");
        // An apostrophe that is not `\*(Aq` becomes a curly quote, which a shell does not take.
        let expected = ".SH EXAMPLES\n.nf\na \\-b \\\\\n    \\*(Aqc\\*(Aq\n\\&.d\n.fi\n\
                        .SH \"EXIT STATUS\"\n0 e, 1 f.\n";
        let page = ending.render();
        assert!(page.ends_with(expected), "{page}");
    }
}
