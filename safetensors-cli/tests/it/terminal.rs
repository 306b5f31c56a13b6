//! A pseudo-terminal: the command runs in it, and its screen is read.

use std::io::{ErrorKind, Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pty_process::blocking::{Command, Pty, open};

/// Variables of whoever runs the tests that change what is shown.
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

    /// The same. Each of `keys` is a last line of the screen to wait for, and then the keys to
    /// press. The screens before these keys are kept.
    pub(crate) fn run_with_keys(&self, dir: &Path, args: &[&str], keys: &[(&str, &str)]) -> Screen {
        let (pty, pts) = open().unwrap();
        let pty = Arc::new(pty);
        pty.resize(pty_process::Size::new(self.rows, self.columns)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
        for name in UNSET {
            command = command.env_remove(name);
        }
        let command = command.env("TERM", "xterm").env("NO_COLOR", "1").current_dir(dir);
        let command = command.args(args).envs(self.variables.iter().map(|(n, v)| (*n, v)));
        let mut child = command.spawn(pts).unwrap();
        let watchdog = Watchdog::new(child.id());
        let size = [self.rows, self.columns].map(|size| NonZero::new(size).unwrap());
        let mut parser = vt100::Parser::new(size[0], size[1], 0);
        let again = press_again(Arc::clone(&pty));
        let mut before = Vec::new();
        let mut keys = keys.iter().map(|(awaited, pressed)| (*awaited, (*pressed).to_owned()));
        let mut next = keys.next();
        let mut buffer = [0; 4096];
        while let Some(bytes) = read(&pty, &mut buffer) {
            parser.process(bytes);
            let screen = shown(&parser);
            if let Some((awaited, pressed)) = &next
                && screen.lines().last() == Some(awaited)
            {
                before.push(screen);
                (&*pty).write_all(pressed.as_bytes()).unwrap();
                let pressed = pressed.clone();
                next = keys.next();
                if next.is_none() {
                    again.send(pressed).unwrap();
                }
            }
        }
        drop((watchdog, again));
        assert!(next.is_none(), "never shown: {:?}\n{}", next, shown(&parser));
        let wraps = (0..self.rows).any(|row| parser.screen().row_wrapped(row));
        Screen { before, last: shown(&parser), wraps, code: child.wait().unwrap().code() }
    }
}

/// Presses the last keys once a second until the sender is dropped: a pager may drop what is
/// pressed while it handles the keys before.
fn press_again(pty: Arc<Pty>) -> Sender<String> {
    let (sender, keys) = channel::<String>();
    std::thread::spawn(move || {
        let mut last = None;
        loop {
            match (keys.recv_timeout(Duration::from_secs(1)), &last) {
                (Ok(pressed), _) => last = Some(pressed),
                // The command may have ended.
                (Err(RecvTimeoutError::Timeout), Some(pressed)) => {
                    let _ = (&*pty).write_all(pressed.as_bytes());
                }
                (Err(RecvTimeoutError::Timeout), None) => {}
                (Err(RecvTimeoutError::Disconnected), _) => return,
            }
        }
    });
    sender
}

/// Kills a command and its pager that wait for ever. The limit is wide for slow machines.
struct Watchdog(#[allow(dead_code, reason = "dropping it ends the watch")] Sender<()>);

impl Watchdog {
    fn new(process: u32) -> Self {
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let waited = ended.recv_timeout(Duration::from_secs(120));
            if waited == Err(RecvTimeoutError::Timeout) {
                let group = format!("-{process}");
                let _ = std::process::Command::new("kill").args(["-KILL", "--", &group]).status();
            }
        });
        Self(sender)
    }
}

/// What a command left on the screen.
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

fn shown(parser: &vt100::Parser) -> String {
    let screen = parser.screen();
    let (_, columns) = screen.size();
    let rows = screen.rows(0, columns.get());
    let lines: String = rows.map(|row| format!("{}\n", row.trim_end())).collect();
    format!("{}\n", lines.trim_end_matches('\n'))
}

/// Reads what the command has written. `None` once it and its pager have ended.
fn read<'b>(mut pty: &Pty, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    loop {
        match pty.read(buffer) {
            Ok(0) => return None,
            Ok(len) => return Some(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Linux: no process has the other end open any more.
            Err(_) => return None,
        }
    }
}
