//! Tests of `--help`, of `MANUAL.md`, which is made from it, and of the README.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::commands::{Cli, is_explained};

const README: &str = include_str!("../README.md");

const MANUAL_START: &str = "\
# Manual of `safetensors`

The text of `safetensors help COMMAND`, as a test checks. Where several commands have an argument,
only the first one has its details. [README.md](README.md) has the rules that all commands share.
Every command also has `--help`, and `--no-pager`, which prints long output without a pager.
";

/// Returns all commands with their full names, such as `safetensors metadata set`. A nested command
/// follows its parent.
fn commands() -> Vec<(String, Command)> {
    fn walk(name: &str, command: &Command, all: &mut Vec<(String, Command)>) {
        for command in command.get_subcommands().filter(|command| is_explained(command)) {
            let name = format!("{name} {}", command.get_name());
            all.push((name.clone(), command.clone()));
            walk(&name, command, all);
        }
    }
    let mut cli = Cli::command();
    cli.build();
    cli.clone().debug_assert();
    let mut all = Vec::new();
    walk("safetensors", &cli, &mut all);
    all
}

/// Returns `true` for an option that all commands have: `--no-pager`, and clap's own.
fn is_of_all_commands(option: &Arg) -> bool {
    matches!(option.get_id().as_str(), "help" | "version" | "no_pager")
}

#[test]
fn every_command_explains_itself_with_examples_and_exit_codes() {
    let main = ("safetensors".to_owned(), Cli::command());
    for (name, mut command) in commands().into_iter().chain([main]) {
        for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
            let usage = help.find("\nUsage: ").unwrap_or_else(|| panic!("{name} has no usage"));
            let examples =
                help.find("\nExamples:\n").unwrap_or_else(|| panic!("{name} has no examples"));
            assert!(usage < examples && help[examples..].contains("\nExit codes: 0 "), "{help}");
            assert!(help[examples..].contains(&format!("\n  {name} ")), "{help}");
        }
    }
    let help = Cli::command().render_long_help().to_string();
    for word in ["SAFETENSORS_THREADS", "SAFETENSORS_PAGER", "COLUMNS", "--no-pager"] {
        assert!(help.contains(word) && README.contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn help_fits_a_terminal() {
    for (name, mut command) in commands() {
        for line in command.render_long_help().to_string().lines() {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
    }
}

/// Prose may be wrapped, but a wrapped command line cannot be copied.
#[test]
fn examples_fit_a_narrow_terminal() {
    for (name, mut command) in commands() {
        let help = command.render_long_help().to_string();
        let examples = help
            .lines()
            .skip_while(|line| *line != "Examples:")
            .take_while(|line| !line.is_empty());
        let arguments = help.lines().filter(|line| line.starts_with("  <"));
        for line in examples.chain(arguments) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn the_readme_has_every_command_in_the_same_order() {
    let own: Vec<_> = commands()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.split(' ').count() == 2)
        .collect();
    let rows = README
        .lines()
        .filter_map(|line| line.strip_prefix("| [`")?.split_once('`'))
        .map(|(name, _)| name);
    assert_eq!(rows.collect::<Vec<_>>(), own);
}

/// A user reads it to its end. Everything that one command needs is in the help of the command.
#[test]
fn the_readme_is_short() {
    let lines = README.lines().count();
    assert!(lines <= 250, "README.md has {lines} lines, and should have at most 250");
}

/// `MANUAL.md` from the help of all commands. It is the same on every machine and terminal.
fn manual() -> String {
    let mut manual = MANUAL_START.to_owned();
    let mut details = HashSet::new();
    for (name, command) in commands() {
        let mut command = command.term_width(100).mut_args(|arg| {
            let is_hidden = is_of_all_commands(&arg);
            let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
            if details.insert((arg.get_id().clone(), text)) {
                return arg.hide(is_hidden);
            }
            arg.long_help(None::<&'static str>).hide_possible_values(true).hide(is_hidden)
        });
        let help = command.render_long_help().to_string();
        let help = match help.split_once("\nUsage: ") {
            // The sections of its subcommands follow.
            Some((about, _)) if command.has_subcommands() => about,
            _ => help.as_str(),
        };
        let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
        write!(manual, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n")).unwrap();
    }
    manual
}

/// After a change of the help, `UPDATE_MANUAL=1 cargo test -p safetensors-bridge-cli manual` writes
/// the file again.
#[test]
fn the_manual_is_the_help_of_every_command() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("MANUAL.md");
    if std::env::var_os("UPDATE_MANUAL").is_some() {
        std::fs::write(&path, manual()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == manual(), "MANUAL.md is not what --help says: set UPDATE_MANUAL=1");
}

/// The programs that read the documents rely on the schemas.
#[test]
fn every_json_document_has_a_schema() {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for (name, command) in commands() {
        if command.get_arguments().any(|option| option.get_long() == Some("json")) {
            let schema = name.replacen("safetensors ", "", 1).replace(' ', "-") + ".json";
            assert!(schemas.join(&schema).is_file(), "{name}: there is no schemas/{schema}");
        }
    }
}
