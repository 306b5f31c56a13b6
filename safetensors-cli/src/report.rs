//! What is told on standard error: errors, warnings, wrong usage.

use std::fmt::Display;
use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::colour::{Colour, paint};
use crate::text;

/// Prints `error: ...` on standard error.
///
/// The message may quote a file, so what is not printable is escaped. If standard error is gone
/// there is nobody to tell.
pub(crate) fn report(error: impl Display) {
    tell("error:", Colour::Red, error);
}

/// Prints `warning: ...` on standard error, as [`report`] prints errors.
pub(crate) fn warn(warning: impl Display) {
    tell("warning:", Colour::Yellow, warning);
}

fn tell(label: &str, colour: Colour, message: impl Display) {
    let (label, message) = (paint(label, colour, &io::stderr()), message.to_string());
    writeln!(io::stderr(), "{label} {}", text::printable(&message)).ok();
}

/// The error for arguments that do not go together, found out after they were read one by one.
/// `main` shows it as clap shows what it finds wrong itself, with the usage of the command, so the
/// message must be printable: see [`text`].
pub(crate) fn wrong_usage(message: impl Display) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ValueValidation, message).into()
}
