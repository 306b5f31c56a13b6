//! Tests that `--help` and the README describe the same commands and options.

use clap::{Arg, Command, CommandFactory};

use crate::commands::Cli;

const README: &str = include_str!("../README.md");

/// All commands with their full names, such as `safetensors metadata set`. A nested command follows
/// its parent.
fn commands() -> Vec<(String, Command)> {
    fn walk(name: &str, command: &Command, all: &mut Vec<(String, Command)>) {
        let shown = |command: &&Command| command.get_name() != "help" && !command.is_hide_set();
        for command in command.get_subcommands().filter(shown) {
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

/// The README's section on a command. A nested command is in its parent's section.
fn section(command: &str) -> &'static str {
    let own: Vec<_> = command.split(' ').take(2).collect();
    let heading = format!("\n## {}\n", own.join(" "));
    let (_, section) =
        README.split_once(&heading).unwrap_or_else(|| panic!("the README has no {heading:?}"));
    section.split("\n## ").next().unwrap_or(section)
}

/// The options of a command, without those of all commands: `--no-pager`, and `--help` and
/// `--version`, which clap adds.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        !arg.is_positional() && !matches!(arg.get_id().as_str(), "help" | "version" | "no_pager")
    })
}

/// An option as the README's tables write it: `` `-f`, `--filter GLOB` ``.
fn cell(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let takes = option.get_action().takes_values();
    let values = option.get_value_names().filter(|_| takes).unwrap_or_default();
    let values: String = values.iter().map(|value| format!(" {value}")).collect();
    format!("{short}`--{}{values}`", option.get_long().unwrap_or_default())
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
    let headings = README
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .filter(|name| name.starts_with("safetensors "));
    assert_eq!(headings.collect::<Vec<_>>(), own);
}

#[test]
fn the_readme_has_every_option_of_every_command() {
    for (name, command) in commands() {
        let section = section(&name);
        let synopsis = section.split("```").nth(1).unwrap_or_default();
        assert!(synopsis.contains(&name), "{name} is not in the synopsis");
        let table =
            section.split("\n### Options\n").nth(1).and_then(|rest| rest.split("\n### ").next());
        for option in options(&command) {
            let row = format!("\n| {} |", cell(option));
            assert!(
                table.is_some_and(|table| table.contains(&row)),
                "{name}: the README's options lack {row:?}"
            );
            let long = format!("--{}", option.get_long().unwrap_or_default());
            let short = option.get_short().map(|short| format!("-{short}"));
            let is_there =
                |option: &str| synopsis.split([' ', '[', ']', '\n']).any(|word| word == option);
            assert!(
                is_there(&long) || short.is_some_and(|short| is_there(&short)),
                "{name}: the synopsis lacks {long}"
            );
        }
    }
}

#[test]
fn the_readme_has_no_unknown_option() {
    let mut rows: Vec<_> =
        README.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |")).collect();
    rows.retain(|(cell, _)| cell.starts_with("`-"));
    let cells: Vec<_> = commands()
        .iter()
        .flat_map(|(_, command)| options(command).map(cell).collect::<Vec<_>>())
        .collect();
    for (cell, _) in &rows {
        assert!(cells.iter().any(|known| known == cell), "{cell}");
    }
    assert!(!rows.is_empty());
}

/// The programs that read the documents rely on the schemas.
#[test]
fn every_json_document_has_a_schema() {
    let schemas = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for (name, command) in commands() {
        if options(&command).any(|option| option.get_long() == Some("json")) {
            let schema = name.replacen("safetensors ", "", 1).replace(' ', "-") + ".json";
            assert!(schemas.join(&schema).is_file(), "{name}: there is no schemas/{schema}");
        }
    }
}

#[test]
fn the_licence_of_the_letters_is_there() {
    assert!(README.contains("(LICENSE-OFL)"));
    let licence = include_str!("../LICENSE-OFL");
    assert!(
        licence.contains("The Noto Project Authors")
            && licence.contains("SIL OPEN FONT LICENSE\n\nVersion 1.1")
    );
}
