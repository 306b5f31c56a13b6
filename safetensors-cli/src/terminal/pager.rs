//! [`Pager`]: the program that shows output longer than the screen.

use std::env;
use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::terminal::signals::Interrupts;

static IS_RUNNING: AtomicBool = AtomicBool::new(false);

static IS_LEFT: AtomicBool = AtomicBool::new(false);

/// Returns `true` if the user has left the pager early. Only a write detects that.
pub(crate) fn is_left() -> bool {
    IS_LEFT.load(Ordering::Relaxed)
}

pub(crate) fn is_running() -> bool {
    IS_RUNNING.load(Ordering::Relaxed)
}

/// The words of `SAFETENSORS_PAGER`, otherwise of `PAGER`, otherwise `less`. `None` if that is
/// empty or `cat`, or if the terminal cannot move its cursor.
pub(crate) fn command() -> Option<Vec<String>> {
    if cfg!(unix) && env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return None;
    }
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    words(variable("SAFETENSORS_PAGER").or_else(|| variable("PAGER")).as_deref())
}

fn words(command: Option<&str>) -> Option<Vec<String>> {
    let words = shlex::split(command.unwrap_or("less"))?;
    let is_none = matches!(*words, []) || words == [""] || words == ["cat"];
    (!is_none).then_some(words)
}

/// Dropping it waits for the user.
pub(crate) struct Pager {
    child: Child,
    /// `None` once everything is written.
    pipe: Option<ChildStdin>,
    interrupts: Interrupts,
}

impl Pager {
    /// Returns `None` if it cannot be started.
    // `less` gets the options that `git` gives it, unless `LESS` has others: it leaves the text on
    // the screen, shows colours, and takes the text as UTF-8.
    pub(crate) fn start(words: &[String]) -> Option<Self> {
        let (program, arguments) = words.split_first()?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        for (name, value) in [("LESS", "FRX"), ("LV", "-c"), ("LESSCHARSET", "utf-8")] {
            if env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let mut child = command.spawn().ok()?;
        IS_RUNNING.store(true, Ordering::Relaxed);
        let interrupts = Interrupts::left_to_the_pager();
        Some(Self { pipe: child.stdin.take(), child, interrupts })
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(pipe) = &mut self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let written = pipe.write(bytes);
        // The user has left the pager. From here on Ctrl-C ends the command again.
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            self.interrupts.end_the_command();
            IS_LEFT.store(true, Ordering::Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.pipe = None;
        // How the pager ends says nothing about the command.
        let _ = self.child.wait();
        self.interrupts.end_the_command();
        IS_RUNNING.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_split_into_words() {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        for (command, expected) in [
            (None, Some(&["less"][..])),
            (Some("less -S"), Some(&["less", "-S"])),
            (Some("'/opt/my pager/p' -x \"a b\""), Some(&["/opt/my pager/p", "-x", "a b"])),
            (Some(""), None),
            (Some("  "), None),
            (Some("''"), None),
            (Some("cat"), None),
            (Some("'not closed"), None),
        ] {
            assert_eq!(words(command), expected.map(owned), "{command:?}");
        }
    }
}
