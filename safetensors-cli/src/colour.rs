//! Colours, where a stream has them.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};

/// What a few words are shown in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    /// What went wrong.
    Red,
    /// What is odd.
    Yellow,
    /// What is well.
    Green,
}

/// Words in a colour, if the stream that they go to has colours: on a terminal, unless `NO_COLOR`
/// is set; elsewhere with `CLICOLOR_FORCE`. Help and wrong usage, which clap prints, follow the
/// same rules.
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
