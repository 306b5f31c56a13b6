//! The pager, which shows output that is longer than the screen.

use std::process::Command;

use crate::fixtures::*;
use crate::terminal::{Screen, Terminal};

/// A pager that marks each line.
const MARKS: &str = "sed 's/^/| /'";

const LONG: &[&str] = &["inspect", "minilm.safetensors"];
const SHORT: &[&str] = &["inspect", "minilm.safetensors", "--depth", "1"];

fn run_with(dir: &Path, variables: &[(&'static str, &str)], args: &[&str]) -> Screen {
    let mut terminal = Terminal::new(24, 80);
    for (name, value) in variables {
        terminal = terminal.env(name, *value);
    }
    terminal.run(dir, args)
}

/// Whether the last line of the output has gone through the pager.
fn is_marked(screen: &Screen) -> bool {
    assert_eq!(screen.code, Some(0), "{screen:?}");
    assert!(screen.last.contains("minilm.safetensors"), "{screen:?}");
    screen.last.lines().last().unwrap().starts_with("| ")
}

#[test]
fn output_that_is_longer_than_the_screen_goes_to_the_pager() {
    let dir = temp_dir();
    minilm(dir.path());
    let with = |variables: &[(&'static str, &str)], args| {
        is_marked(&run_with(dir.path(), variables, args))
    };
    assert!(with(&[("PAGER", MARKS)], LONG));
    assert!(!with(&[("PAGER", MARKS)], SHORT));
    // The first variable counts.
    assert!(with(&[("PAGER", "false"), ("SAFETENSORS_PAGER", MARKS)], LONG));
    assert!(!with(&[("PAGER", MARKS), ("SAFETENSORS_PAGER", "cat")], LONG));
    for none in ["", "cat", "/no/such/pager --option", "'not closed"] {
        assert!(!with(&[("PAGER", none)], LONG), "{none}");
    }
    assert!(!with(&[("PAGER", MARKS), ("TERM", "dumb")], LONG));
    for args in [
        &["--no-pager", "inspect", "minilm.safetensors"][..],
        &["inspect", "minilm.safetensors", "--no-pager"],
    ] {
        assert!(!with(&[("PAGER", MARKS)], args), "{args:?}");
    }
    // JSON is text like any other.
    let screen = run_with(dir.path(), &[("PAGER", MARKS)], &["inspect", "--json", LONG[1]]);
    assert_eq!(screen.last.lines().last(), Some("| }"));
}

#[test]
fn a_screen_holds_one_line_less_than_it_has_rows() {
    let dir = temp_dir();
    minilm(dir.path());
    let lines = on_a_pipe(dir.path(), SHORT).lines().count();
    for (rows, is_paged) in [(lines, true), (lines + 1, false)] {
        let terminal = Terminal::new(rows as u16, 80).env("PAGER", MARKS);
        assert_eq!(is_marked(&terminal.run(dir.path(), SHORT)), is_paged, "{rows}");
    }
}

fn on_a_pipe(dir: &Path, args: &[&str]) -> String {
    let mut command = safetensors();
    let output = command.current_dir(dir).args(args).env("PAGER", MARKS).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn a_pipe_has_no_pager_and_neither_has_a_command_that_shows_no_checkpoint() {
    let dir = temp_dir();
    minilm(dir.path());
    assert!(!on_a_pipe(dir.path(), LONG).contains("| "));
    for i in 0..30 {
        small_file(dir.path(), &format!("{i}.safetensors"));
    }
    let screen = run_with(dir.path(), &[("PAGER", MARKS)], &["verify", "."]);
    assert!(!screen.last.contains("| ") && screen.last.contains("31 checked: 31 ok"));
}

#[test]
fn a_pager_that_is_left_early_is_no_error() {
    let dir = temp_dir();
    minilm(dir.path());
    // More than a pipe holds.
    let many = ["inspect", "--flat", "--json", "minilm.safetensors"];
    for args in [LONG, &many] {
        for (pager, lines) in [("head -n 1", 1), ("true", 1), ("false", 1)] {
            let screen = run_with(dir.path(), &[("PAGER", pager)], args);
            assert_eq!(screen.code, Some(0), "{pager}: {screen:?}");
            assert_eq!(screen.last.lines().count(), lines, "{pager}: {screen:?}");
        }
    }
}

#[test]
fn once_the_pager_is_left_no_more_inputs_are_read() {
    let dir = temp_dir();
    let tensor = array(&[1], &[1_u8]);
    // Their document is longer than a pipe holds, so that the end of the pager shows.
    let tensors = (0..5_000).map(|i| (format!("model.layers.{i}.weight"), tensor));
    save(dir.at("many.safetensors"), tensors, &quick()).unwrap();
    // Whoever reads this waits for ever.
    let fifo = dir.at("fifo");
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let args = ["inspect", "--flat", "many.safetensors", "fifo"];
    let screen = run_with(dir.path(), &[("PAGER", "head -n 1")], &args);
    assert_eq!((screen.last.as_str(), screen.code), ("many.safetensors:\n", Some(0)));
}

#[test]
fn errors_come_after_the_pager_and_after_output_without_one() {
    let dir = temp_dir();
    minilm(dir.path());
    for (pager, args) in [(MARKS, LONG), ("head -n 3", LONG), (MARKS, SHORT)] {
        let args = [&["inspect", "missing"], &args[1..]].concat();
        let screen = run_with(dir.path(), &[("PAGER", pager)], &args);
        assert_eq!(screen.code, Some(1), "{screen:?}");
        let last = screen.last.lines().last().unwrap();
        assert!(last.starts_with("error: missing: "), "{screen:?}");
        assert_eq!(screen.last.matches("error:").count(), 1, "{screen:?}");
    }
    // An error after which there is no output.
    let screen = run_with(dir.path(), &[("PAGER", MARKS)], &["inspect", "missing"]);
    assert!(screen.last.starts_with("error: missing: ") && screen.code == Some(1), "{screen:?}");
}

#[test]
fn less_gets_the_options_that_git_gives_it() {
    let dir = temp_dir();
    minilm(dir.path());
    let pager = r#"sh -c 'cat > /dev/null; echo "$LESS $LV $LESSCHARSET"'"#;
    let shown = |variables: &[(&'static str, &str)]| run_with(dir.path(), variables, LONG).last;
    assert_eq!(shown(&[("PAGER", pager)]), "FRX -c utf-8\n");
    let own = [("PAGER", pager), ("LESS", "S"), ("LV", "-a"), ("LESSCHARSET", "latin1")];
    assert_eq!(shown(&own), "S -a latin1\n");
}

#[test]
fn less_shows_a_screen_and_ctrl_c_does_not_end_the_command() {
    if Command::new("less").arg("--version").output().is_err() {
        return;
    }
    let dir = temp_dir();
    minilm(dir.path());
    let terminal = Terminal::new(24, 80);
    let screen = terminal.run_with_keys(dir.path(), LONG, &[(":", "\u{3}"), (":", "q")]);
    assert_eq!(screen.code, Some(0), "{screen:?}");
    let shown = &screen.before[0];
    assert!(shown.starts_with("module ") && shown.lines().count() == 24, "{shown}");
    // Without a command in a variable, the pager is `less`.
    let mut missing =
        terminal.run_with_keys(dir.path(), &["inspect", "-d9", "no", LONG[1]], &[(":", "q")]);
    assert!(missing.last.trim_end().lines().last().unwrap().starts_with("error: no: "));
    assert!(missing.before.remove(0).starts_with("minilm.safetensors:\nmodule "));
}
