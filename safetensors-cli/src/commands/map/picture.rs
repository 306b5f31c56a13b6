//! [`Picture`]: rectangles and lines of text, the same for every file format.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use safetensors_core::Dtype;

use super::treemap::{Rect, squarify};
use crate::text;
use crate::totals::Totals;
use crate::tree::Tree;

/// The size of the picture.
pub(super) const WIDTH: f64 = 1280.0;
pub(super) const HEIGHT: f64 = 860.0;

const MARGIN: f64 = 20.0;
const TITLE: f64 = 40.0;
const LEGEND: f64 = 44.0;

/// The height of a module's label, which is above its content.
const STRIP: f64 = 17.0;

/// A module with a side shorter than this is drawn without its content.
const SMALLEST: f64 = 4.0;

/// The sizes of letters. All letters have the same width: 0.6 of their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Size {
    pub(super) fn height(self) -> f64 {
        match self {
            Self::Small => 12.0,
            Self::Large => 16.0,
        }
    }

    /// The width of each letter.
    pub(super) fn width(self) -> f64 {
        self.height() * 0.6
    }
}

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

const PAPER: Colour = [255, 255, 255];
const INK: Colour = [34, 40, 49];
const FAINT: Colour = [104, 112, 124];

/// One element of the picture, drawn over the elements before it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    Rect {
        rect: Rect,
        fill: Colour,
    },
    /// A line of text. It starts at its top left corner, or, if it runs `down`, at its top right
    /// corner.
    Text {
        x: f64,
        y: f64,
        size: Size,
        colour: Colour,
        text: String,
        down: bool,
    },
}

/// A picture of a model.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(super) marks: Vec<Mark>,
}

impl Picture {
    /// Draws modules and tensors, which must have at least one byte in all.
    pub(crate) fn new(title: &str, trees: &[Tree<'_>], dtypes: &BTreeMap<Dtype, Totals>) -> Self {
        let page = Rect { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
        let mut picture = Self { marks: vec![Mark::Rect { rect: page, fill: PAPER }] };
        let all = dtypes.values().copied().sum();
        picture.title(title, all);
        let space = page.inside(TITLE + MARGIN, MARGIN);
        picture.trees(trees, Rect { height: space.height - LEGEND, ..space }, 0);
        picture.legend(dtypes, all);
        picture
    }

    fn title(&mut self, title: &str, all: Totals) {
        let (parameters, size) =
            (text::counted(all.parameters, "parameter"), text::size(all.bytes));
        let about = format!("{}, {parameters}, {size}", text::counted(all.tensors, "tensor"));
        let about_width = about.chars().count() as f64 * Size::Small.width();
        let room = WIDTH - 2.0 * MARGIN - about_width - 30.0;
        if let Some(title) = fit(title, None, room, Size::Large) {
            self.text(MARGIN, MARGIN, Size::Large, INK, title);
        }
        self.text(WIDTH - MARGIN - about_width, MARGIN + 3.0, Size::Small, FAINT, about);
    }

    fn legend(&mut self, dtypes: &BTreeMap<Dtype, Totals>, all: Totals) {
        const SWATCH: f64 = 14.0;
        let y = HEIGHT - MARGIN - SWATCH - 4.0;
        let mut x = MARGIN;
        let mut dtypes: Vec<_> = dtypes.iter().filter(|(_, totals)| totals.bytes > 0).collect();
        dtypes.sort_by_key(|(_, totals)| Reverse(totals.bytes));
        for (dtype, totals) in dtypes {
            let share = totals.bytes as f64 / all.bytes as f64 * 100.0;
            let share = if share < 0.1 { "under 0.1%".into() } else { format!("{share:.1}%") };
            let label = format!("{dtype}  {}, {share}", text::size(totals.bytes));
            let width = SWATCH + 8.0 + label.chars().count() as f64 * Size::Small.width();
            if x + width > WIDTH - MARGIN {
                return;
            }
            let swatch = Rect { x, y, width: SWATCH, height: SWATCH };
            self.marks.push(Mark::Rect { rect: swatch, fill: colour(*dtype) });
            self.text(x + SWATCH + 8.0, y, Size::Small, INK, label);
            x += width + 28.0;
        }
    }

    /// Draws siblings side by side, the largest first.
    fn trees(&mut self, trees: &[Tree<'_>], space: Rect, depth: u8) {
        let mut trees: Vec<_> = trees.iter().filter(|tree| tree.all().bytes > 0).collect();
        trees.sort_by_cached_key(|tree| Reverse(tree.all().bytes));
        let weights: Vec<f64> = trees.iter().map(|tree| tree.all().bytes as f64).collect();
        for (tree, rect) in trees.into_iter().zip(squarify(&weights, space)) {
            self.tree(tree, rect, depth);
        }
    }

    fn tree(&mut self, tree: &Tree<'_>, rect: Rect, depth: u8) {
        if rect.width < 0.3 || rect.height < 0.3 {
            return;
        }
        let is_tiny = rect.width < SMALLEST || rect.height < SMALLEST;
        if tree.tensor().is_some() || is_tiny {
            // A module too small to show its content has the colour of its largest part.
            let fill = largest_dtype(tree).map_or(shade(depth), colour);
            self.marks.push(Mark::Rect { rect: if is_tiny { rect } else { gap(rect) }, fill });
            return self.leaf_label(tree, rect, fill);
        }
        if let Some(most) = nearly_all(tree, rect) {
            let mut joined = most.clone();
            joined.label = tree.label_of(most).into();
            return self.tree(&joined, rect, depth);
        }
        self.marks.push(Mark::Rect { rect: gap(rect), fill: shade(depth) });
        let has_room = rect.height > 3.0 * STRIP;
        let label = if has_room {
            fit(&tree.label, Some(tree.separator), rect.width - 10.0, Size::Small)
        } else {
            None
        };
        let top = if label.is_some() { STRIP } else { 2.0 };
        if let Some(label) = label {
            self.text(rect.x + 6.0, rect.y + 3.0, Size::Small, INK, label);
        }
        let side = if rect.width < 40.0 || rect.height < 40.0 { 1.0 } else { 2.0 };
        self.trees(tree.children(), rect.inside(top, side), depth.saturating_add(1));
    }

    /// Writes the name of a tensor, and its shape below, where there is room.
    fn leaf_label(&mut self, tree: &Tree<'_>, rect: Rect, fill: Colour) {
        let room = rect.width - 10.0;
        let colour = ink_on(fill);
        if rect.height > 2.0 * rect.width && (18.0..60.0).contains(&rect.width) {
            if let Some(text) =
                fit(&tree.label, Some(tree.separator), rect.height - 10.0, Size::Small)
            {
                let (x, y) = (rect.x + rect.width / 2.0 + Size::Small.height() / 2.0, rect.y + 6.0);
                self.marks.push(Mark::Text { x, y, size: Size::Small, colour, text, down: true });
            }
            return;
        }
        if rect.height < 20.0 {
            return;
        }
        let Some(label) = fit(&tree.label, Some(tree.separator), room, Size::Small) else { return };
        self.text(rect.x + 6.0, rect.y + 4.0, Size::Small, colour, label);
        let shape = tree.tensor().map(|tensor| text::shape(tensor.shape())).unwrap_or_default();
        let fits = shape.chars().count() as f64 * Size::Small.width() <= room;
        if rect.height >= 38.0 && fits {
            self.text(rect.x + 6.0, rect.y + 20.0, Size::Small, colour, shape);
        }
    }

    fn text(&mut self, x: f64, y: f64, size: Size, colour: Colour, text: String) {
        self.marks.push(Mark::Text { x, y, size, colour, text, down: false });
    }
}

/// The child that fills nearly all of a module, such as a weight beside its bias. The other
/// children would be too small to see.
fn nearly_all<'t, 'a>(tree: &'t Tree<'a>, rect: Rect) -> Option<&'t Tree<'a>> {
    const UNSEEN: f64 = 40.0;
    let most = tree.children().iter().max_by_key(|child| child.all().bytes)?;
    let others = (tree.totals().bytes - most.all().bytes) as f64 / tree.totals().bytes as f64;
    (others * rect.width * rect.height < UNSEEN).then_some(most)
}

/// A rectangle without its edge, which stays blank to separate it from its neighbours.
fn gap(rect: Rect) -> Rect {
    rect.inside(0.5, 0.5)
}

/// Makes a name printable and shortens it to a width, at its last separator if that is enough.
/// `None` if there is no room for a few letters.
fn fit(name: &str, separator: Option<char>, width: f64, size: Size) -> Option<String> {
    const FEWEST: usize = 4;
    let room = (width / size.width()).max(0.0) as usize;
    let name = text::name(name);
    let length = name.chars().count();
    if length <= room {
        return Some(name);
    }
    // A name without its end, `weight` or `bias`, still identifies the module.
    let parts = separator
        .and_then(|separator| name.rsplit_once(separator))
        .map(|(start, _)| start)
        .filter(|start| start.chars().count() <= room);
    match parts {
        Some(start) => Some(start.to_owned()),
        None if room >= FEWEST => Some(name.chars().take(room - 2).chain("..".chars()).collect()),
        None => None,
    }
}

/// The dtype of the largest child, of its largest child, and so on down to a tensor.
fn largest_dtype(tree: &Tree<'_>) -> Option<Dtype> {
    match tree.tensor() {
        Some(tensor) => Some(tensor.dtype()),
        None => {
            tree.children().iter().max_by_key(|child| child.all().bytes).and_then(largest_dtype)
        }
    }
}

/// The background of a module: darker at each of the first five levels.
fn shade(depth: u8) -> Colour {
    let grey = 240 - depth.min(5) * 9;
    [grey, grey.saturating_add(2), grey.saturating_add(6)]
}

/// The colour of a dtype, from Paul Tol's palette, which colour-blind readers can tell apart.
/// Related floats share a hue.
fn colour(dtype: Dtype) -> Colour {
    match dtype {
        Dtype::F64 => [51, 34, 136],
        Dtype::F32 => [68, 119, 170],
        Dtype::F16 => [34, 136, 51],
        Dtype::BF16 => [68, 170, 153],
        Dtype::F8_E4M3 | Dtype::F8_E4M3FNUZ => [204, 187, 68],
        Dtype::F8_E5M2 | Dtype::F8_E5M2FNUZ => [221, 204, 119],
        Dtype::F8_E8M0 => [153, 153, 51],
        Dtype::F4 | Dtype::F6_E2M3 | Dtype::F6_E3M2 => [238, 136, 102],
        Dtype::I64 | Dtype::U64 => [136, 34, 85],
        Dtype::I32 | Dtype::U32 => [170, 51, 119],
        Dtype::I16 | Dtype::U16 => [204, 102, 119],
        Dtype::I8 | Dtype::U8 => [204, 121, 167],
        Dtype::BOOL => [187, 187, 187],
        Dtype::C64 => [102, 204, 238],
        _ => [119, 119, 119],
    }
}

/// The colour of letters with the better contrast on `fill`.
fn ink_on(fill: Colour) -> Colour {
    if contrast(PAPER, fill) > contrast(INK, fill) { PAPER } else { INK }
}

/// The contrast of two colours, from 1 to 21, as the Web Content Accessibility Guidelines define
/// it.
fn contrast(a: Colour, b: Colour) -> f64 {
    let luminance = |colour: Colour| {
        let [red, green, blue] = colour.map(|part| match f64::from(part) / 255.0 {
            part if part <= 0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    };
    let (a, b) = (luminance(a), luminance(b));
    a.max(b) / a.min(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_can_be_read_on_every_dtype() {
        assert_eq!((contrast(PAPER, PAPER), contrast(PAPER, [0; 3])), (1.0, 21.0));
        for &dtype in Dtype::ALL {
            let fill = colour(dtype);
            let contrast = contrast(fill, ink_on(fill));
            assert!(contrast >= 4.0, "{dtype}: {contrast}");
        }
    }

    #[test]
    fn labels_fit_or_are_left_out() {
        let fit = |name, separator, letters: f64| {
            fit(name, separator, letters * Size::Small.width() + 0.01, Size::Small)
        };
        let label = |letters| fit("q_proj.weight", Some('.'), letters);
        assert_eq!(label(13.0).as_deref(), Some("q_proj.weight"));
        assert_eq!(label(12.0).as_deref(), Some("q_proj"));
        assert_eq!(label(5.0).as_deref(), Some("q_p.."));
        assert_eq!(label(3.0), None);
        assert_eq!(fit("q/kernel.x", Some('/'), 8.0).as_deref(), Some("q"));
        assert_eq!(fit("Llama 3.1 8B", None, 10.0).as_deref(), Some("Llama 3..."));
        assert_eq!(fit("a\u{202e}", Some('.'), 100.0).as_deref(), Some("a\\u{202e}"));
        assert_eq!(fit("abc", Some('.'), -1.0), None);
    }
}
