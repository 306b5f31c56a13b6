//! Draws the interface.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};
use unicode_width::UnicodeWidthStr;

use super::app::{App, Focus};
use super::details::{Details, details};
use super::looks::Looks;
use super::outline::{Kind, Search};
use crate::terminal::{table, text};

/// A narrower terminal has the details below the list.
const WIDE: u16 = 84;

// Drawn again and again, but seldom changed.
pub(super) struct View {
    looks: Looks,
    details: Option<(ShownNode, Details)>,
}

/// The facts that lines about a node depend on.
#[derive(Debug, PartialEq)]
struct ShownNode {
    node: usize,
    width: u16,
    has_values: bool,
    percent: Option<u8>,
}

const KEYS: &[(&str, &str)] = &[
    ("↑ ↓  j k", "move"),
    ("→ ←  l h", "open and close; go to the module around"),
    ("Enter  Space", "open or close"),
    ("o  c", "open or close everything inside"),
    ("PgUp PgDn", "move by a page"),
    ("Home End  g G", "go to the start or the end"),
    ("/", "search in names; Enter keeps what is found, Esc ends"),
    ("s", "read the values: statistics and histogram"),
    ("Tab", "scroll the details, or back to the list"),
    ("Esc", "stop reading, leave the details, end the search"),
    ("?", "these keys"),
    ("q  Ctrl-C", "quit"),
];

impl View {
    pub(super) fn new(looks: Looks) -> Self {
        Self { looks, details: None }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, app: &mut App<'_>) {
        app.search_if_new();
        let all = frame.area();
        let (body, footer) = split_rows(all, all.height.saturating_sub(1));
        let (list, side) = if all.width >= WIDE {
            let width = larger_part(all.width).max(40);
            let list = Rect { width, ..body };
            (list, Rect { x: list.right() + 2, width: body.width - width - 2, ..body })
        } else if body.height >= 12 {
            let (list, below) = split_rows(body, larger_part(body.height));
            (list, Rect { y: below.y + 1, height: below.height - 1, ..below })
        } else {
            (body, Rect { height: 0, ..body })
        };
        let buffer = frame.buffer_mut();
        let selected = app.selected();
        let job = app.job.as_ref().filter(|job| job.node == selected);
        let shown = ShownNode {
            node: selected,
            width: side.width,
            has_values: app.known.contains_key(&selected),
            percent: job.map(|job| (job.fraction() * 100.0) as u8),
        };
        if self.details.as_ref().is_none_or(|(before, _)| *before != shown) {
            self.details = Some((shown, details(app, selected, &self.looks, side.width.into())));
        }
        let (lines, statistics) = match &self.details {
            Some((_, details)) => (&*details.lines, details.statistics),
            None => (&[][..], 0),
        };
        app.resize(list.height.into(), side.height.into(), lines.len(), statistics);
        let has_rule = side.height > 0 && side.x > list.x;
        self.list(Rect { width: list.width - u16::from(has_rule), ..list }, app, buffer);
        self.rule(list, side, app, buffer);
        for (y, line) in (side.y..side.bottom()).zip(lines.iter().skip(app.scroll)) {
            buffer.set_line(side.x, y, line, side.width);
        }
        self.footer(footer, app, buffer);
        if app.focus == Focus::Help {
            self.help(all, buffer);
        }
        if app.focus == Focus::Search && footer.height > 0 {
            let x = 2 + text::printable(&app.query).to_string().width();
            let x =
                footer.x + u16::try_from(x).unwrap_or(u16::MAX).min(footer.width.saturating_sub(1));
            frame.set_cursor_position((x, footer.y));
        }
    }

    fn list(&self, area: Rect, app: &App<'_>, buffer: &mut Buffer) {
        let search = Search::new(&app.query);
        for (y, row) in (app.top..app.outline.len()).take(area.height.into()).enumerate() {
            let line = Rect { y: area.y + y as u16, height: 1, ..area };
            self.row(line, app, row, &search, buffer);
        }
    }

    fn row(&self, area: Rect, app: &App<'_>, row: usize, search: &Search, buffer: &mut Buffer) {
        let number = app.outline.at(row);
        let node = app.outline.node(number);
        let mark = match (app.outline.is_module(number), app.outline.is_open(number)) {
            (false, _) => "  ",
            (true, true) => "▾ ",
            (true, false) => "▸ ",
        };
        let (kind, base) = match node.kind {
            Kind::Tensor(it) => {
                (format!("{} {}", it.kind(), text::shape(it.shape())), Style::new())
            }
            _ => (text::counted(node.totals.tensors, "tensor"), self.looks.title),
        };
        let size = format!("{:>9}", text::size(node.totals.bytes));
        let width = usize::from(area.width);
        // Deep modules do not push their names out of the screen.
        let indent = (usize::from(node.depth) * 2).min(width / 3);
        let label = match node.kind {
            Kind::Checkpoint => node.label.to_string(),
            _ => text::short(&node.label),
        };
        let room = width.saturating_sub(indent + 2);
        // Parts that do not fit next to the name are dropped, the kind first.
        let full = label.width() + kind.width() + size.len() + 4;
        let (kind, size) = match room {
            room if room >= full => (kind, size),
            room if room >= label.width().min(12) + size.len() + 2 => (String::new(), size),
            _ => (String::new(), String::new()),
        };
        let right = kind.width() + size.len() + usize::from(!kind.is_empty()) * 2;
        let label = shorten(&label, room.saturating_sub(right + usize::from(right > 0)));
        let looks = &self.looks;
        let x = area.x + indent as u16;
        buffer.set_stringn(x, area.y, mark, 2, looks.faint);
        buffer.set_stringn(x + 2, area.y, &label, room, base);
        if let Some(found) = search.find(&label) {
            let x = x + 2 + label[..found.start].width() as u16;
            buffer.set_stringn(x, area.y, &label[found], room, base.patch(looks.found));
        }
        let end = area.right() - (size.len() as u16).min(area.width);
        buffer.set_string(end, area.y, &size, Style::new());
        let start = end.saturating_sub(kind.width() as u16 + 1);
        buffer.set_string(start, area.y, &kind, looks.faint);
        if row == app.row {
            let is_focus = app.focus != Focus::Details;
            let style = if is_focus { looks.selected } else { looks.selected_faint };
            buffer.set_style(area, style);
        }
    }

    fn rule(&self, list: Rect, details: Rect, app: &App<'_>, buffer: &mut Buffer) {
        if details.height == 0 {
            return;
        }
        let style = if app.focus == Focus::Details { self.looks.accent } else { self.looks.faint };
        if details.x > list.x {
            for y in list.y..list.bottom() {
                buffer.set_string(list.right(), y, "│", style);
            }
        } else {
            let rule = "─".repeat(list.width.into());
            buffer.set_string(list.x, list.bottom(), rule, style);
        }
    }

    /// The query, or the keys that are useful now.
    fn footer(&self, area: Rect, app: &App<'_>, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let looks = &self.looks;
        let width = usize::from(area.width);
        let found = || format!("{} found", text::counted(app.found, "tensor"));
        if app.focus == Focus::Search {
            let query = format!("/ {}", text::printable(&app.query));
            buffer.set_stringn(area.x, area.y, query, width, Style::new());
            if !app.query.is_empty() {
                let style = if app.found == 0 { looks.error } else { looks.faint };
                let note = found();
                let x = area.right().saturating_sub(note.width() as u16);
                buffer.set_stringn(x, area.y, note, width, style);
            }
            return;
        }
        let mut keys = useful_keys(app);
        // The last two are always there.
        while keys.len() > 2 && length(&keys) > width {
            keys.remove(keys.len() - 3);
        }
        let mut x = area.x;
        for (key, action) in keys {
            x = buffer.set_stringn(x, area.y, key, (area.right() - x).into(), looks.title).0;
            let action = format!(" {action}   ");
            x = buffer.set_stringn(x, area.y, action, (area.right() - x).into(), looks.faint).0;
        }
        if !app.query.is_empty() {
            let note = format!("/{}: {}", text::printable(&app.query), found());
            let start = area.right().saturating_sub(note.width() as u16);
            if start > x {
                buffer.set_string(start, area.y, note, looks.accent);
            }
        }
    }

    fn help(&self, all: Rect, buffer: &mut Buffer) {
        let names = KEYS.iter().map(|(key, _)| key.width()).max().unwrap_or_default();
        let lines: Vec<_> = KEYS
            .iter()
            .map(|(key, action)| {
                let blank = " ".repeat(names - key.width());
                Line::raw(format!(" {key}{blank}  {action}"))
            })
            .collect();
        let width = lines.iter().map(Line::width).max().unwrap_or_default() as u16 + 3;
        let (width, height) = (width.min(all.width), (KEYS.len() as u16 + 2).min(all.height));
        let area = Rect {
            x: all.x + (all.width - width) / 2,
            y: all.y + (all.height - height) / 2,
            width,
            height,
        };
        Clear.render(area, buffer);
        let block = Block::bordered().title(" Keys ").border_style(self.looks.faint);
        Paragraph::new(Text::from(lines)).block(block).render(area, buffer);
    }
}

fn useful_keys(app: &App<'_>) -> Vec<(&'static str, &'static str)> {
    let is_tensor = matches!(app.outline.node(app.selected()).kind, Kind::Tensor(..));
    let mut keys = match app.focus {
        Focus::Details => vec![("↑↓", "scroll"), ("Tab", "list")],
        _ => vec![("↑↓", "move"), ("→←", "open, close"), ("/", "search")],
    };
    if app.job.is_some() {
        keys.push(("Esc", "stop"));
    } else if is_tensor && !app.known.contains_key(&app.selected()) {
        keys.push(("s", "statistics"));
    }
    if app.job.is_none() && !app.query.is_empty() {
        keys.push(("Esc", "end search"));
    }
    if app.focus != Focus::Details {
        keys.push(("Tab", "details"));
    }
    keys.extend([("?", "keys"), ("q", "quit")]);
    keys
}

fn larger_part(length: u16) -> u16 {
    (u32::from(length) * 11 / 20) as u16
}

fn split_rows(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    let above = Rect { height, ..area };
    (above, Rect { y: area.y + height, height: area.height - height, ..area })
}

fn length(keys: &[(&str, &str)]) -> usize {
    keys.iter()
        .map(|(key, action)| key.width() + action.width() + 4)
        .sum::<usize>()
        .saturating_sub(3)
}

/// Cuts a text to `width` columns, with `…` at its end.
fn shorten(text: &str, width: usize) -> String {
    match width.checked_sub(1) {
        _ if text.width() <= width => text.to_owned(),
        Some(room) => format!("{}…", table::start(text, room)),
        None => String::new(),
    }
}
