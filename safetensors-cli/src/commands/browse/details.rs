//! The lines about the selected module or tensor.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use safetensors_core::header::attributes;
use unicode_width::UnicodeWidthChar;

use super::app::App;
use super::looks::Looks;
use super::outline::Kind;
use crate::commands::stats::{Facts, bars};
use crate::input;
use crate::input::other::{self, DisplayedTensor};
use crate::model::totals::Totals;
use crate::terminal::text;

/// The most metadata entries, files and attributes that are listed.
const MOST: usize = 500;

const MOST_OF_VALUE: usize = 2000;

const BARS: usize = 6;

const NAMES: usize = 11;

pub(super) struct Details {
    pub(super) lines: Vec<Line<'static>>,
    pub(super) statistics: usize,
}

// Called when a node is selected, and not for each frame: the sums of a module visit everything
// inside.
pub(super) fn details(app: &App<'_>, node: usize, looks: &Looks, width: usize) -> Details {
    let mut lines = Lines { lines: Vec::new(), looks, width };
    let mut statistics = 0;
    match app.outline.node(node).kind {
        Kind::Tensor(shown) => {
            tensor(app, node, shown, &mut lines);
            // After the blank line above the heading.
            statistics = lines.lines.len() + 1;
            values(app, node, &mut lines);
        }
        Kind::Module => module(app, node, &mut lines),
        Kind::Checkpoint => checkpoint(app, &mut lines),
    }
    Details { lines: lines.lines, statistics }
}

struct Lines<'l> {
    lines: Vec<Line<'static>>,
    looks: &'l Looks,
    width: usize,
}

impl Lines<'_> {
    fn add(&mut self, line: &Line<'_>, indent: usize) {
        self.lines.extend(wrap(line, self.width, indent));
    }

    fn title(&mut self, title: String) {
        self.add(&Line::styled(title, self.looks.title), 0);
        self.blank();
    }

    fn heading(&mut self, heading: impl Into<String>) {
        self.blank();
        self.add(&Line::styled(heading.into(), self.looks.heading), 0);
    }

    fn blank(&mut self) {
        self.lines.push(Line::default());
    }

    fn fact(&mut self, name: &str, value: impl Into<String>) {
        let name = Span::styled(format!("{name:<NAMES$} "), self.looks.faint);
        self.add(&Line::from(vec![name, Span::raw(value.into())]), NAMES + 1);
    }

    fn note(&mut self, note: impl Into<String>) {
        self.plain(note, self.looks.faint);
    }

    fn plain(&mut self, text: impl Into<String>, style: Style) {
        self.add(&Line::styled(text.into(), style), 2);
    }
}

fn tensor(app: &App<'_>, node: usize, shown: DisplayedTensor<'_>, lines: &mut Lines<'_>) {
    let totals = app.outline.node(node).totals;
    let info = shown.info;
    lines.title(text::short(info.name()));
    lines.fact("dtype", shown.kind().name());
    lines.fact("shape", text::shape(shown.shape()));
    lines.fact("parameters", text::count(totals.parameters));
    sizes(totals.bytes, app, lines);
    if let Some(tensor) = app.checkpoint.get(info.name()) {
        if let Some(file) = tensor.file() {
            lines.fact("file", input::shard_name(app.checkpoint, file));
        }
        // The bytes of a tensor of another format may be in many places, or in none.
        if other::tensor_file(tensor.source()).is_none() {
            let (start, len) = (tensor.file_offset(), tensor.byte_len());
            let end = text::count(start.saturating_add(len));
            lines.fact("offsets", format!("{} … {end}", text::count(start)));
        }
    }
    for (i, (name, value)) in
        attributes(app.checkpoint.metadata(), info.name()).take(MOST).enumerate()
    {
        if i == 0 {
            lines.heading("Attributes");
        }
        lines.fact(&text::short(name), text::value(value));
    }
}

fn values(app: &App<'_>, node: usize, lines: &mut Lines<'_>) {
    lines.heading("Statistics");
    match app.known.get(&node) {
        Some(Ok(facts)) => facts_lines(facts, lines),
        Some(Err(error)) => lines.plain(text::printable(error).to_string(), lines.looks.error),
        None => match &app.job {
            Some(job) if job.node == node => {
                let percent = (job.fraction() * 100.0).clamp(0.0, 100.0);
                lines.plain(format!("reading values: {percent:.0} %"), Style::default());
                lines.note("Esc stops");
            }
            _ => lines.note("s reads the values: range, percentiles, mean, histogram"),
        },
    }
}

fn facts_lines(facts: &Facts, lines: &mut Lines<'_>) {
    for (name, value) in &facts.lines {
        lines.fact(name, value.clone());
    }
    let rows = bars(&facts.counts, lines.width, BARS);
    let Some(columns) = rows.first().map(|row| row.chars().count()) else { return };
    lines.blank();
    for row in rows {
        lines.lines.push(Line::styled(row, lines.looks.accent));
    }
    let [min, max] = facts.range.map(text::number);
    let blanks = columns.saturating_sub(min.len() + max.len()).max(1);
    lines.note(format!("{min}{}{max}", " ".repeat(blanks)));
}

fn module(app: &App<'_>, number: usize, lines: &mut Lines<'_>) {
    let totals = app.outline.node(number).totals;
    lines.title(text::short(&app.outline.path_of(number)));
    lines.fact("tensors", text::count(totals.tensors));
    lines.fact("parameters", text::count(totals.parameters));
    sizes(totals.bytes, app, lines);
    dtypes(app, number, lines);
}

fn checkpoint(app: &App<'_>, lines: &mut Lines<'_>) {
    let node = app.outline.node(0);
    lines.title(node.label.to_string());
    lines.fact("tensors", text::count(node.totals.tensors));
    lines.fact("parameters", text::count(node.totals.parameters));
    lines.fact("size", text::size(node.totals.bytes));
    if let Some(index) = app.checkpoint.index_path() {
        lines.fact("index", text::path(index));
    }
    dtypes(app, 0, lines);
    let metadata = app.checkpoint.metadata();
    lines.heading(format!("Metadata ({})", text::count(metadata.len() as u64)));
    for (key, value) in metadata.iter().take(MOST) {
        lines.plain(text::short(key), lines.looks.faint);
        let value = text::value_within(value, MOST_OF_VALUE);
        lines.plain(format!("  {value}"), Style::default());
    }
    more(metadata.len(), "safetensors metadata get", lines);
    let files = app.checkpoint.files();
    lines.heading(format!("Files ({})", text::count(files.len() as u64)));
    for file in files.iter().take(MOST) {
        lines.plain(input::shard_name(app.checkpoint, file.path()), Style::default());
        let header = file.safetensors().header();
        let tensors = text::counted(header.len() as u64, "tensor");
        let (size, about) = match other::tensor_file(file.safetensors().source()) {
            Some(other) => (other.file_len(), other.format().to_string()),
            None => {
                let start = header.data_start();
                let about = format!("header of {}", text::size(start));
                (start.saturating_add(header.data_len()), about)
            }
        };
        lines.note(format!("  {tensors}, {}, {about}", text::size(size)));
    }
    more(files.len(), "safetensors inspect", lines);
}

fn more(len: usize, command: &str, lines: &mut Lines<'_>) {
    if len > MOST {
        let rest = text::count((len - MOST) as u64);
        lines.note(format!("and {rest} more, which `{command}` shows"));
    }
}

fn dtypes(app: &App<'_>, number: usize, lines: &mut Lines<'_>) {
    let mut dtypes = std::collections::BTreeMap::<_, Totals>::new();
    for (kind, totals) in app.outline.tensors_in(number) {
        *dtypes.entry(kind).or_default() += totals;
    }
    lines.heading("Dtypes");
    for (kind, totals) in dtypes {
        let tensors = text::counted(totals.tensors, "tensor");
        lines.fact(kind.name(), format!("{tensors}, {}", text::size(totals.bytes)));
    }
}

fn sizes(bytes: u128, app: &App<'_>, lines: &mut Lines<'_>) {
    let all = app.outline.node(0).totals.bytes;
    let exact = text::counted(bytes, "byte");
    let is_long = bytes >= 1000;
    lines.fact("size", if is_long { format!("{} ({exact})", text::size(bytes)) } else { exact });
    let share = if all > 0 { bytes as f64 / all as f64 * 100.0 } else { 0.0 };
    lines.fact("share", format!("{share:.2}%"));
}

/// Wraps a line after a blank where there is one.
fn wrap(line: &Line<'_>, width: usize, indent: usize) -> Vec<Line<'static>> {
    let letters: Vec<(char, Style)> = line
        .spans
        .iter()
        .flat_map(|span| span.content.chars().map(|c| (c, line.style.patch(span.style))))
        .collect();
    let mut lines = Vec::new();
    let mut start = 0;
    while start < letters.len() || lines.is_empty() {
        let hang = if start > 0 { indent.min(width / 2) } else { 0 };
        let mut used = hang;
        let fits = |&&(c, _): &&(char, Style)| {
            used += c.width().unwrap_or_default();
            used <= width
        };
        // At least one letter, however narrow the screen is.
        let mut end = start + letters[start..].iter().take_while(fits).count().max(1);
        if end < letters.len() {
            let after_names = if start == 0 { indent } else { 0 };
            let blank = letters[start..end].iter().rposition(|&(c, _)| c == ' ');
            end = blank.filter(|&at| at > after_names).map_or(end, |at| start + at + 1);
        }
        end = end.min(letters.len());
        let mut spans = vec![Span::raw(" ".repeat(hang))];
        for run in letters[start..end].chunk_by(|(_, a), (_, b)| a == b) {
            let text: String = run.iter().map(|(c, _)| c).collect();
            spans.push(Span::styled(text, run[0].1));
        }
        lines.push(Line::from(spans));
        start = end;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
        wrap(&Line::raw(text.to_owned()), width, indent).iter().map(Line::to_string).collect()
    }

    #[test]
    fn long_lines_go_on_below_their_values() {
        assert_eq!(
            wrapped("name  one two three", 12, 6),
            ["name  one ", "      two ", "      three"]
        );
        assert_eq!(wrapped("0123456789", 4, 2), ["0123", "  45", "  67", "  89"]);
        assert_eq!(wrapped("", 4, 2), [""]);
        assert_eq!(wrapped("层层层", 4, 0), ["层层", "层"]);
        assert_eq!(wrapped("abc", 0, 2).len(), 3);
    }
}
