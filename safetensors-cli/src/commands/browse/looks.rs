//! [`Looks`]: the styles of the interface.

use ratatui::style::{Color, Modifier, Style};

// The terminal's own sixteen colours suit its theme.
#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) title: Style,
    pub(super) heading: Style,
    pub(super) faint: Style,
    pub(super) accent: Style,
    pub(super) found: Style,
    pub(super) selected: Style,
    /// The selected row while keys go elsewhere.
    pub(super) selected_faint: Style,
    pub(super) error: Style,
}

impl Looks {
    /// Without colours, uses only bold, dim and reversed letters.
    pub(super) fn new(has_colours: bool) -> Self {
        let colour =
            |colour: Color| if has_colours { Style::new().fg(colour) } else { Style::new() };
        Self {
            title: Style::new().add_modifier(Modifier::BOLD),
            heading: colour(Color::Cyan).add_modifier(Modifier::BOLD),
            faint: Style::new().add_modifier(Modifier::DIM),
            accent: colour(Color::Cyan),
            found: colour(Color::Yellow).add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            selected: Style::new().add_modifier(Modifier::REVERSED),
            selected_faint: Style::new().add_modifier(Modifier::REVERSED | Modifier::DIM),
            error: colour(Color::Red),
        }
    }

    pub(super) fn from_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }
}
