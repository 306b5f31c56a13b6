//! Messages on standard error: errors, warnings, wrong usage.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Mutex;

use clap::error::ErrorKind;
use safetensors_core::lock;

use crate::terminal::colour::{Colour, paint};
use crate::terminal::text;

/// Escapes unprintable characters, since a message may quote a file. Ignores a closed standard
/// error.
pub(crate) fn report(error: impl Display) {
    tell("error:", Colour::Red, error);
}

/// Like [`report`].
pub(crate) fn warn(warning: impl Display) {
    tell("warning:", Colour::Yellow, warning);
}

/// Messages that wait.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Messages wait until [`release`]. Returns `false` if they already do.
pub(crate) fn hold() -> bool {
    let mut held = lock(&HELD);
    let is_new = held.is_none();
    held.get_or_insert_default();
    is_new
}

pub(crate) fn release() {
    if let Some(messages) = lock(&HELD).take() {
        let _ = io::stderr().write_all(&messages);
    }
}

fn tell(label: &str, colour: Colour, message: impl Display) {
    let label = format!("{} ", paint(label, colour, &io::stderr()));
    let message = message.to_string();
    // There is no other place to report a failure of this.
    let _ = match lock(&HELD).as_mut() {
        Some(held) => write_line(held, label, &message),
        None => write_line(&mut io::stderr(), label, &message),
    };
}

// Standard error is not buffered, so each formatted part would be a call to the system.
pub(crate) fn write_line(out: &mut impl Write, label: impl Display, text: &str) -> io::Result<()> {
    let mut line = format!("{label}{}", text::printable(text));
    line.push('\n');
    out.write_all(line.as_bytes())
}

/// Returns the error for arguments that are valid one by one but not together. `main` prints it
/// with the usage of the command. The message must be printable: see [`text`].
pub(crate) fn wrong_usage(message: impl Display) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ValueValidation, message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is called.
    #[derive(Default)]
    struct Calls {
        writes: usize,
        written: Vec<u8>,
    }

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            self.written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_is_written_in_one_go() {
        let mut out = Calls::default();
        let message = "x\u{202e}\n\"".repeat(100_000);
        write_line(&mut out, "error: ", &message).unwrap();
        assert_eq!(out.writes, 1);
        let expected = format!("error: {}\n", "x\\u{202e}\\n\"".repeat(100_000));
        assert!(out.written == expected.as_bytes());
    }
}
