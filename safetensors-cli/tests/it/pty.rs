//! The command in a pseudo-terminal, and the screen that a user sees there.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use nix::sys::termios::{Termios, tcgetattr};
use pty_process::Size;
use pty_process::blocking::{Command, Pts, Pty};

use crate::fixtures::undo_ignored_signals;

/// A command that runs in a pseudo-terminal.
pub(crate) struct Session {
    pub(crate) child: Child,
    pty: Arc<Pty>,
    /// Until the end, so that the settings can be looked at.
    pts: Option<Pts>,
    /// Ends once no process has the terminal open any more.
    reader: Option<JoinHandle<()>>,
    /// The settings of the terminal before the command began.
    before: Termios,
    seen: Arc<Mutex<Seen>>,
}

/// The output of the command.
struct Seen {
    screen: vt100::Parser,
    bytes: Vec<u8>,
}

impl Session {
    /// Starts `safetensors` with these arguments in a directory, in a terminal of this size.
    pub(crate) fn start(dir: &Path, args: &[&str], (rows, columns): (u16, u16)) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_safetensors")).args(args).current_dir(dir);
        let command = command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        Self::start_command(command, (rows, columns))
    }

    /// Starts any command.
    pub(crate) fn start_command(mut command: Command, (rows, columns): (u16, u16)) -> Self {
        undo_ignored_signals();
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let before = tcgetattr(&pts).unwrap();
        let child = command.spawn_borrowed(&pts).unwrap();
        let screen = vt100::Parser::new(some(rows), some(columns), 0);
        let seen = Arc::new(Mutex::new(Seen { screen, bytes: Vec::new() }));
        let pty = Arc::new(pty);
        let (from, into) = (Arc::clone(&pty), Arc::clone(&seen));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = (&*from).read(&mut bytes) {
                let mut seen = into.lock().unwrap();
                seen.screen.process(&bytes[..n]);
                seen.bytes.extend_from_slice(&bytes[..n]);
            }
        });
        Self { child, pty, pts: Some(pts), reader: Some(reader), before, seen }
    }

    /// Types keys.
    pub(crate) fn send(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        self.seen.lock().unwrap().screen.screen_mut().set_size(some(rows), some(columns));
        self.pty.resize(Size::new(rows, columns)).unwrap();
    }

    /// The lines of the screen, without blanks at their ends.
    pub(crate) fn screen(&self) -> String {
        let seen = self.seen.lock().unwrap();
        let (_, columns) = seen.screen.screen().size();
        let lines = seen.screen.screen().rows(0, columns.get());
        lines.map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Everything that the command has written.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().bytes).into_owned()
    }

    /// Waits until the screen is as asked, and returns it.
    pub(crate) fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "expected:\n{what}\nfound:\n{screen}"
            );
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the screen has a text.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is exactly this.
    pub(crate) fn expect(&self, expected: &str) {
        self.wait(expected, |screen| screen.trim_end() == expected.trim_end());
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill =
            std::process::Command::new("kill").args([OsStr::new(name), pid.as_ref()]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits until the command has ended.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.end_pressing(None)
    }

    /// Waits for the end, and presses keys again once a second: a pager may drop keys that are
    /// pressed while it handles the keys before.
    fn end_pressing(&mut self, keys: Option<&str>) -> ExitStatus {
        let begun = Instant::now();
        let mut pressed = 1;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if let Some(keys) = keys.filter(|_| begun.elapsed().as_secs() >= pressed) {
                // The command may have ended.
                let _ = (&*self.pty).write_all(keys.as_bytes());
                pressed += 1;
            }
            let screen = self.screen();
            assert!(begun.elapsed() < Duration::from_secs(120), "it goes on:\n{screen}");
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the command and its pager have ended. Returns the exit code, the screen, and
    /// whether a line is longer than the screen is wide.
    pub(crate) fn finish(mut self, keys: Option<&str>) -> (Option<i32>, String, bool) {
        let code = self.end_pressing(keys).code();
        self.pts = None;
        self.reader.take().unwrap().join().unwrap();
        let seen = self.seen.lock().unwrap();
        let screen = seen.screen.screen();
        let wraps = (0..screen.size().0.get()).any(|row| screen.row_wrapped(row));
        drop(seen);
        (code, self.screen(), wraps)
    }

    /// Waits until the terminal is as it was before the command: its settings, its screen, its
    /// cursor.
    pub(crate) fn wait_until_restored(&self) {
        self.wait("restored terminal", |_| {
            let seen = self.seen.lock().unwrap();
            let screen = seen.screen.screen();
            let is_own =
                screen.alternate_screen() || screen.hide_cursor() || screen.bracketed_paste();
            !is_own && tcgetattr(self.pts.as_ref().unwrap()).unwrap() == self.before
        });
    }
}

fn some(length: u16) -> NonZero<u16> {
    NonZero::new(length).unwrap()
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
