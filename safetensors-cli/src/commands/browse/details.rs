//! The lines about the selected module or tensor.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use safetensors_core::header::{TensorInfo, attributes};
use unicode_width::UnicodeWidthChar;

use super::app::App;
use super::bars;
use super::looks::Looks;
use super::outline::Kind;
use crate::commands::stats::Facts;
use crate::totals::Totals;
use crate::{input, text};

/// The most metadata entries, files and attributes that are listed.
const MOST: usize = 500;

/// The most characters of a metadata value.
const MOST_OF_VALUE: usize = 2000;

/// The height of a histogram.
const BARS: usize = 6;

/// The width of the names before values.
const NAMES: usize = 11;

/// Lines about a node. They are made when it is selected, and not for each frame: the sums of a
/// module take a look at everything inside.
pub(super) fn lines(app: &App<'_>, node: usize, looks: &Looks, width: usize) -> Vec<Line<'static>> {
    let mut lines = Lines { lines: Vec::new(), looks, width };
    match app.outline.node(node).kind {
        Kind::Tensor(info) => tensor(app, node, info, &mut lines),
        Kind::Module => module(app, node, &mut lines),
        Kind::Checkpoint => checkpoint(app, &mut lines),
    }
    lines.lines
}

struct Lines<'l> {
    lines: Vec<Line<'static>>,
    looks: &'l Looks,
    width: usize,
}

impl Lines<'_> {
    /// Adds a line. What does not fit goes on in the next one, after `indent` blanks.
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

fn tensor(app: &App<'_>, node: usize, info: TensorInfo<'_>, lines: &mut Lines<'_>) {
    let all = app.outline.node(0).bytes;
    lines.title(text::name(info.name()));
    lines.fact("dtype", info.dtype().name());
    lines.fact("shape", text::shape(info.shape()));
    lines.fact("parameters", text::count(info.element_count()));
    sizes(info.byte_len().into(), all, lines);
    if let Some(tensor) = app.checkpoint.get(info.name()) {
        if let Some(file) = tensor.file() {
            lines.fact("file", input::shard_name(app.checkpoint, file));
        }
        let (start, end) =
            (tensor.file_offset(), tensor.file_offset().saturating_add(tensor.byte_len()));
        lines.fact("offsets", format!("{} … {}", text::count(start), text::count(end)));
    }
    for (i, (name, value)) in
        attributes(app.checkpoint.metadata(), info.name()).take(MOST).enumerate()
    {
        if i == 0 {
            lines.heading("Attributes");
        }
        lines.fact(&text::name(name), text::value(value));
    }
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
    let rows = bars::rows(&facts.counts, lines.width, BARS);
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
    let node = app.outline.node(number);
    let all = app.outline.node(0).bytes;
    lines.title(text::name(&app.outline.path_of(number)));
    lines.fact("tensors", text::count(node.tensors as u64));
    lines.fact("parameters", text::count(node.parameters));
    sizes(node.bytes, all, lines);
    dtypes(app, number, lines);
}

fn checkpoint(app: &App<'_>, lines: &mut Lines<'_>) {
    let node = app.outline.node(0);
    lines.title(node.label.to_string());
    lines.fact("tensors", text::count(node.tensors as u64));
    lines.fact("parameters", text::count(node.parameters));
    lines.fact("size", text::size(node.bytes));
    if let Some(index) = app.checkpoint.index() {
        lines.fact("index", text::path(index));
    }
    dtypes(app, 0, lines);
    let metadata = app.checkpoint.metadata();
    lines.heading(format!("Metadata ({})", text::count(metadata.len() as u64)));
    for (key, value) in metadata.iter().take(MOST) {
        lines.plain(text::name(key), lines.looks.faint);
        let shown: String = value.chars().take(MOST_OF_VALUE).collect();
        let rest = if shown.len() < value.len() {
            format!("… ({} bytes)", text::count(value.len() as u64))
        } else {
            String::new()
        };
        lines.plain(format!("  {}{rest}", text::escaped(&shown)), Style::default());
    }
    more(metadata.len(), "safetensors metadata get", lines);
    let files = app.checkpoint.files();
    lines.heading(format!("Files ({})", text::count(files.len() as u64)));
    for file in files.iter().take(MOST) {
        lines.plain(input::shard_name(app.checkpoint, file.path()), Style::default());
        let header = file.safetensors().header();
        let tensors = text::counted(header.len() as u64, "tensor");
        let size = text::size(header.data_start().saturating_add(header.data_len()));
        lines.note(format!("  {tensors}, {size}, header of {}", text::size(header.data_start())));
    }
    more(files.len(), "safetensors inspect", lines);
}

/// Says that a list is longer, and which command shows all of it.
fn more(len: usize, command: &str, lines: &mut Lines<'_>) {
    if len > MOST {
        let rest = text::count((len - MOST) as u64);
        lines.note(format!("and {rest} more, which `{command}` shows"));
    }
}

fn dtypes(app: &App<'_>, number: usize, lines: &mut Lines<'_>) {
    let mut dtypes = std::collections::BTreeMap::<_, Totals>::new();
    for info in app.outline.tensors_in(number) {
        *dtypes.entry(info.dtype()).or_default() += Totals::one(info, None);
    }
    lines.heading("Dtypes");
    for (dtype, totals) in dtypes {
        let tensors = text::counted(totals.tensors, "tensor");
        lines.fact(dtype.name(), format!("{tensors}, {}", text::size(totals.bytes)));
    }
}

/// A number of bytes, and its share of all bytes.
fn sizes(bytes: u128, all: u128, lines: &mut Lines<'_>) {
    let exact = text::counted(bytes, "byte");
    let is_long = bytes >= 1000;
    lines.fact("size", if is_long { format!("{} ({exact})", text::size(bytes)) } else { exact });
    let share = if all > 0 { bytes as f64 / all as f64 * 100.0 } else { 0.0 };
    lines.fact("share", format!("{share:.2}%"));
}

/// A line in as many lines as it takes. They end after a blank where there is one.
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
