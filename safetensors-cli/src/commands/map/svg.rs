//! Writes a picture as SVG, which a browser shows at any size.

use std::io::{self, Write};

use super::Picture;
use super::picture::{Colour, HEIGHT, Mark, WIDTH};

impl Picture {
    /// Writes the picture as an SVG document.
    pub(crate) fn write_svg(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace">"#
        )?;
        for mark in &self.marks {
            match mark {
                Mark::Rect { rect, fill } => writeln!(
                    out,
                    r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}"/>"#,
                    rect.x,
                    rect.y,
                    rect.width,
                    rect.height,
                    hex(*fill)
                )?,
                Mark::Text { x, y, size, colour, text, down } => {
                    // The browser's font may be wider than 0.6 of its size. `textLength` keeps the
                    // label within its rectangle.
                    let length = text.chars().count() as f64 * size.width();
                    // The baseline of the letters.
                    let (size, base) = (size.height(), size.height() * 0.82);
                    let place = if *down {
                        format!(r#"transform="translate({:.1} {y:.1}) rotate(90)""#, x - base)
                    } else {
                        format!(r#"x="{x:.1}" y="{:.1}""#, y + base)
                    };
                    writeln!(
                        out,
                        r#"<text {place} font-size="{size}" textLength="{length:.1}" lengthAdjust="spacingAndGlyphs" fill="{}" xml:space="preserve">{}</text>"#,
                        hex(*colour),
                        escape(text)
                    )?;
                }
            }
        }
        writeln!(out, "</svg>")
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Escapes text for XML. Labels are already printable, so they have no control characters.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
