//! Messages on standard error: errors, warnings, wrong usage.

use std::fmt::Display;
use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::colour::{Colour, paint};
use crate::text;

/// Prints `error: ...` on standard error.
///
/// The message may quote the content of a file, so unprintable characters are escaped. A closed
/// standard error is ignored.
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

/// The error for arguments that are valid one by one but not together.
///
/// `main` prints it like clap's own errors, with the usage of the command. The message must be
/// printable: see [`text`].
pub(crate) fn wrong_usage(message: impl Display) -> anyhow::Error {
    clap::Error::raw(ErrorKind::ValueValidation, message).into()
}
