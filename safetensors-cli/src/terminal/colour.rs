//! Colours, for streams that show them.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    Red,
    Yellow,
    Green,
}

/// A terminal shows colours unless `NO_COLOR` is set, other streams only if `CLICOLOR_FORCE` is.
/// Clap's help and errors follow the same rules.
pub(crate) fn paint(words: &str, colour: Colour, stream: &impl RawStream) -> String {
    if AutoStream::choice(stream) == ColorChoice::Never {
        return words.to_owned();
    }
    let style: Style = match colour {
        Colour::Red => AnsiColor::Red.on_default().bold(),
        Colour::Yellow => AnsiColor::Yellow.on_default().bold(),
        Colour::Green => AnsiColor::Green.on_default(),
    };
    format!("{style}{words}{style:#}")
}
