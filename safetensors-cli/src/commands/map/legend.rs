//! The title above a picture, and below it what the colours stand for.

use std::cmp::Reverse;

use super::letters::Size;
use super::letters::width;
use super::palette::{self, Colour, FAINT, INK};
use super::picture::{Drawing, HEIGHT, LEGEND, MARGIN, Mark, WIDTH};
use super::treemap::Rect;
use crate::input::other::Kind;
use crate::model::totals::Totals;
use crate::terminal::text;

impl Drawing<'_, '_> {
    pub(super) fn title(&mut self) {
        let all = self.all;
        let (parameters, size) =
            (text::counted(all.parameters, "parameter"), text::size(all.bytes));
        let mut about = format!("{}, {parameters}, {size}", text::counted(all.tensors, "tensor"));
        // Where colours do not show it, the text says which dtype it is.
        let main = self.model.dtypes.iter().max_by_key(|(_, totals)| totals.bytes);
        if let Some((dtype, totals)) = main.filter(|_| self.model.groups.is_some()) {
            about += if totals.bytes == all.bytes { ", " } else { ", mostly " };
            about += dtype.name();
        }
        let room = WIDTH - 2.0 * MARGIN - width(&about, Size::Small) - 30.0;
        if let Some(title) = self.letters.fit(self.model.title, None, room, Size::Large) {
            self.text(MARGIN, MARGIN, Size::Large, INK, title);
        }
        let x = WIDTH - MARGIN - width(&about, Size::Small);
        self.text(x, MARGIN + 3.0, Size::Small, FAINT, about);
    }

    /// What the colours stand for, with their shares of the bytes, in two lines at most.
    pub(super) fn legend(&mut self) {
        const SWATCH: f64 = 14.0;
        const LINE: f64 = 22.0;
        const LONGEST: f64 = 260.0;
        let mut y = HEIGHT - MARGIN - LEGEND + 20.0;
        let mut x = MARGIN;
        for (fill, name, bytes) in self.colours() {
            let share = bytes as f64 / self.all.bytes as f64 * 100.0;
            let share = if share < 0.1 { "under 0.1%".into() } else { format!("{share:.1}%") };
            let label = if self.model.groups.is_none() {
                format!("{name}  {}, {share}", text::size(bytes))
            } else {
                let name = self.letters.fit(&name, None, LONGEST, Size::Small);
                format!("{}  {share}", name.unwrap_or_default())
            };
            let needed = SWATCH + 8.0 + width(&label, Size::Small);
            if x + needed > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LINE);
                if y > HEIGHT - MARGIN {
                    return;
                }
            }
            let rect = Rect { x, y, width: SWATCH, height: SWATCH };
            self.marks.push(Mark::Rect { rect, fill, about: None });
            self.text(x + SWATCH + 8.0, y, Size::Small, INK, label);
            x += needed + 28.0;
        }
    }

    /// The colours with their names and bytes, the largest first.
    fn colours(&self) -> Vec<(Colour, String, u128)> {
        let Some(groups) = self.model.groups else {
            let mut dtypes: Vec<_> = self.model.dtypes.iter().collect();
            dtypes.retain(|(_, totals)| totals.bytes > 0);
            dtypes.sort_by_key(|(_, totals)| Reverse(totals.bytes));
            let colour = |(kind, totals): (&Kind<'_>, &Totals)| {
                (palette::kind(*kind), kind.to_string(), totals.bytes)
            };
            return dtypes.into_iter().map(colour).collect();
        };
        let coloured: u128 = groups.list.iter().map(|group| group.totals.bytes).sum();
        let other = (palette::OTHER, "other".to_owned(), self.all.bytes - coloured);
        let own = palette::GROUPS.into_iter().zip(&groups.list);
        own.map(|(colour, group)| (colour, group.name.clone(), group.totals.bytes))
            .chain(Some(other).filter(|(_, _, bytes)| *bytes > 0))
            .collect()
    }
}
