//! Colours: on a terminal only, and never with `NO_COLOR`.

use std::env;
use std::io::IsTerminal;

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

/// Words in a colour, if the stream that they go to has colours.
pub(crate) fn paint(words: &str, colour: Colour, stream: &impl IsTerminal) -> String {
    let plain = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = || env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !stream.is_terminal() || plain("NO_COLOR") || is_dumb() {
        return words.to_owned();
    }
    let code = match colour {
        Colour::Red => "1;31",
        Colour::Yellow => "1;33",
        Colour::Green => "32",
    };
    format!("\x1b[{code}m{words}\x1b[0m")
}
