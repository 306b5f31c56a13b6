//! The screen that a command leaves in a terminal, with and without a pager.

use std::path::Path;

use pty_process::blocking::Command;

use crate::pty::Session;

/// Environment variables of the tests that change the output.
const UNSET: &[&str] = &[
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "LESS",
    "LESSCHARSET",
    "LESSOPEN",
    "LV",
    "PAGER",
    "SAFETENSORS_PAGER",
];

/// A terminal of this size, in which a command runs.
pub(crate) struct Terminal {
    rows: u16,
    columns: u16,
    variables: Vec<(&'static str, String)>,
}

/// The screen after a command.
#[derive(Debug)]
pub(crate) struct Screen {
    /// The screens before keys were pressed.
    pub(crate) before: Vec<String>,
    /// The screen at the end, without spaces at the ends of lines.
    pub(crate) last: String,
    /// Whether a line was longer than the screen is wide.
    pub(crate) wraps: bool,
    pub(crate) code: Option<i32>,
}

impl Terminal {
    /// A terminal of this size.
    pub(crate) fn new(rows: u16, columns: u16) -> Self {
        Self { rows, columns, variables: Vec::new() }
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Runs the command in a directory to its end.
    pub(crate) fn run(&self, dir: &Path, args: &[&str]) -> Screen {
        self.run_with_keys(dir, args, &[])
    }

    /// Runs a command with keys. Each of `keys` is a last line of the screen to wait for, and then
    /// the keys to press. The screens before these keys are kept.
    pub(crate) fn run_with_keys(&self, dir: &Path, args: &[&str], keys: &[(&str, &str)]) -> Screen {
        let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors")).args(args);
        for name in UNSET {
            command = command.env_remove(name);
        }
        command = command.env("TERM", "xterm").env("NO_COLOR", "1").current_dir(dir);
        command = command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        let session = Session::start_command(command, (self.rows, self.columns));
        let mut before = Vec::new();
        for (awaited, pressed) in keys {
            let is_shown = |screen: &str| screen.trim_end().lines().last() == Some(*awaited);
            before.push(session.wait(awaited, is_shown));
            session.send(pressed);
        }
        let again = keys.last().map(|(_, pressed)| *pressed);
        let (code, last, wraps) = session.finish(again);
        Screen { before, last: format!("{}\n", last.trim_end_matches('\n')), wraps, code }
    }
}
