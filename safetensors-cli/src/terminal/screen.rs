//! [`Screen`]: the size of standard output's terminal. [`table_width`]: the width of tables.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use terminal_size::{Height, Width, terminal_size_of};

/// The size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size where the terminal does not report it, such as a serial line.
const UNKNOWN: Screen = Screen { columns: 80, rows: 24 };

impl Screen {
    /// Returns `None` for a file or a pipe, with lines of any length. `COLUMNS` sets another width.
    pub(crate) fn of_stdout() -> Option<Self> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        let told = terminal_size_of(&stdout);
        let told = told.map(|(Width(columns), Height(rows))| Self {
            columns: columns.into(),
            rows: rows.into(),
        });
        let told = told.unwrap_or(UNKNOWN);
        Some(Self { columns: columns_variable().unwrap_or(told.columns), ..told })
    }

    /// Returns `true` if a text fits, with a line left for the prompt. A line wider than the screen
    /// takes several rows.
    pub(crate) fn holds(self, text: &str) -> bool {
        use unicode_width::UnicodeWidthStr;

        let rows = |line: &str| line.width().div_ceil(self.columns).max(1);
        text.lines().map(rows).sum::<usize>() < self.rows
    }
}

/// `None` for a program, which reads a file or a pipe. `COLUMNS`, which `watch` exports, means a
/// person.
pub(crate) fn table_width() -> Option<usize> {
    static WIDTH: OnceLock<Option<usize>> = OnceLock::new();
    let width = || columns_variable().or_else(|| Screen::of_stdout().map(|screen| screen.columns));
    *WIDTH.get_or_init(width)
}

pub(crate) fn is_for_programs() -> bool {
    table_width().is_none()
}

fn columns_variable() -> Option<usize> {
    columns_in(&std::env::var("COLUMNS").ok()?)
}

fn columns_in(variable: &str) -> Option<usize> {
    variable.trim().parse().ok().filter(|&columns| columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_sets_the_width() {
        assert_eq!(columns_in(" 132\n"), Some(132));
        for nonsense in ["", "0", "-5", "wide"] {
            assert_eq!(columns_in(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn lines_that_wrap_take_several_rows() {
        let screen = Screen { columns: 4, rows: 4 };
        for (text, fits) in [
            ("", true),
            ("a\nb\nc\n", true),
            ("a\nb\nc\nd\n", false),
            ("abcd\n\nc\n", true),
            ("abcde\n\nc\n", false),
            ("层层\nb\nc", true),
            ("层层层\nb\nc", false),
        ] {
            assert_eq!(screen.holds(text), fits, "{text:?}");
        }
    }
}
