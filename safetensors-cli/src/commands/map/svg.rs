//! Writes a picture as SVG, which a browser shows at any size.

use std::io::{self, Write};

use super::palette::hex;
use super::picture::{HEIGHT, Mark, Picture, WIDTH};
use super::{letters, xml};

impl Picture {
    /// Writes the picture as an SVG document. A browser shows the full name and the totals of what
    /// is pointed at.
    pub(super) fn write_svg(&self, out: &mut impl Write) -> io::Result<()> {
        // A label must not hide the rectangle under it from the pointer.
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"><style>text{{pointer-events:none}}</style>"#
        )?;
        for mark in &self.marks {
            match mark {
                Mark::Rect { rect, fill, about } => {
                    write!(
                        out,
                        r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{}""#,
                        rect.x,
                        rect.y,
                        rect.width,
                        rect.height,
                        hex(*fill)
                    )?;
                    match about {
                        Some(about) => {
                            writeln!(out, "><title>{}</title></rect>", xml::escape(about))?;
                        }
                        None => writeln!(out, "/>")?,
                    }
                }
                Mark::Text { x, y, size, colour, text, down } => {
                    // The browser's font may be wider than 0.6 of its size. `textLength` keeps the
                    // label within its rectangle.
                    let length = letters::width(text, *size);
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
                        xml::escape(text)
                    )?;
                }
            }
        }
        writeln!(out, "</svg>")
    }
}
