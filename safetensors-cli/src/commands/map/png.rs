//! Writes a picture as PNG, with three pixels for two units.

use std::io::{self, Write};

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};

use super::letters::Size;
use super::palette::Colour;
use super::picture::{HEIGHT, Mark, Picture, WIDTH};
use super::treemap::Rect;

/// At 1.5, the two sizes of text are 18 and 24 pixels, for which the font has letters.
const SCALE: f64 = 1.5;

/// Pixels, row by row, of three bytes each.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    /// Writes the picture as a PNG file.
    pub(super) fn write_png(&self, out: &mut impl Write) -> io::Result<()> {
        let mut canvas = Canvas::new((WIDTH * SCALE) as usize, (HEIGHT * SCALE) as usize);
        for mark in &self.marks {
            match mark {
                Mark::Rect { rect, fill, .. } => canvas.rect(*rect, *fill),
                Mark::Text { x, y, size, colour, text, down } => {
                    canvas.text((x * SCALE, y * SCALE), *size, *colour, text, *down);
                }
            }
        }
        let mut encoder = png::Encoder::new(out, canvas.width as u32, canvas.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&canvas.pixels)?;
        Ok(writer.finish()?)
    }
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![255; width * height * 3] }
    }

    /// Mixes a colour into a pixel. A cover of 1 replaces the old colour.
    fn mix(&mut self, x: usize, y: usize, colour: Colour, cover: f64) {
        if x >= self.width {
            return;
        }
        let at = (y * self.width + x) * 3;
        let Some(pixel) = self.pixels.get_mut(at..at + 3) else { return };
        for (old, new) in pixel.iter_mut().zip(colour) {
            *old = (f64::from(*old) * (1.0 - cover) + f64::from(new) * cover).round() as u8;
        }
    }

    /// Fills a rectangle. Pixels that it covers in part are mixed.
    fn rect(&mut self, rect: Rect, fill: Colour) {
        let (left, top) = (rect.x * SCALE, rect.y * SCALE);
        let (right, bottom) = (left + rect.width * SCALE, top + rect.height * SCALE);
        let cover = |pixel: usize, start: f64, end: f64| {
            let pixel = pixel as f64;
            (end.min(pixel + 1.0) - start.max(pixel)).clamp(0.0, 1.0)
        };
        for y in top as usize..(bottom.ceil() as usize).min(self.height) {
            for x in left as usize..(right.ceil() as usize).min(self.width) {
                self.mix(x, y, fill, cover(x, left, right) * cover(y, top, bottom));
            }
        }
    }

    /// Writes letters from left to right, or downwards. The font has all of them, because they went
    /// through [`Letters::Bitmap`](super::letters::Letters).
    fn text(&mut self, (x, y): (f64, f64), size: Size, colour: Colour, text: &str, down: bool) {
        let height = match size {
            Size::Small => RasterHeight::Size24,
            Size::Large => RasterHeight::Size32,
        };
        // The font's rasters are higher than their letters.
        let above = (height.val() as f64 - size.height() * SCALE) / 2.0;
        let advance = size.width() * SCALE;
        for (i, c) in text.chars().enumerate() {
            let Some(letter) = get_raster(c, FontWeight::Regular, height) else { continue };
            // A letter may be narrower than its advance, and is centred in it.
            let along = i as f64 * advance + (advance - letter.width() as f64) / 2.0;
            for (row, line) in letter.rows().enumerate() {
                for (column, &cover) in line.iter().enumerate() {
                    let (right, below) =
                        (along.round() + column as f64, row as f64 - above.round());
                    let (x, y) = if down {
                        (x.round() - below, y.round() + right)
                    } else {
                        (x.round() + right, y.round() + below)
                    };
                    self.mix(
                        x.max(0.0) as usize,
                        y.max(0.0) as usize,
                        colour,
                        f64::from(cover) / 255.0,
                    );
                }
            }
        }
    }
}
