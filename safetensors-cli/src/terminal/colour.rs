//! Colours, for streams that show them.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};

/// The colour of a word, by its meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    /// An error.
    Red,
    /// A warning.
    Yellow,
    /// A success.
    Green,
}

/// Colours words for a stream that shows colours.
///
/// A terminal shows them unless `NO_COLOR` is set. Other streams show them only if `CLICOLOR_FORCE`
/// is set. Help and usage errors, which clap prints, follow the same rules.
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
