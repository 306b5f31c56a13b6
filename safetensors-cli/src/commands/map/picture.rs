//! [`Picture`]: rectangles and lines of text, the same for every file format.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::groups::{Groups, path_of};
use super::letters::{Letters, Size, width};
use super::palette::{self, Colour, INK, PAPER, ink_on, shade};
use super::treemap::{Rect, squarify};
use crate::input::other::Kind;
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::terminal::text;

/// The size of the picture.
pub(super) const WIDTH: f64 = 1280.0;
pub(super) const HEIGHT: f64 = 860.0;

pub(super) const MARGIN: f64 = 20.0;
const TITLE: f64 = 40.0;
pub(super) const LEGEND: f64 = 58.0;

/// The height of a module's label, which is above its content.
const STRIP: f64 = 17.0;

/// A module with a side shorter than this is drawn without its content.
const SMALLEST: f64 = 4.0;

/// About the most tensors that are drawn one by one. Where there are more, the smallest siblings
/// share a rectangle, so that a picture of any checkpoint has a bounded size.
const MOST: usize = 3000;

/// One element of the picture, drawn over the elements before it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    Rect {
        rect: Rect,
        fill: Colour,
        /// What a reader who points at it is told, in several lines.
        about: Option<String>,
    },
    /// A line of text. It starts at its top left corner, or, if it runs `down`, at its top right
    /// corner.
    Text { x: f64, y: f64, size: Size, colour: Colour, text: String, down: bool },
}

/// What the picture shows.
pub(super) struct Model<'t, 'a> {
    pub(super) title: &'t str,
    /// With identical layers folded. They must have at least one byte in all.
    pub(super) trees: &'t [Tree<'a>],
    pub(super) dtypes: &'t BTreeMap<Kind<'a>, Totals>,
    /// The modules that colours stand for; `None` if colours stand for dtypes.
    pub(super) groups: Option<&'t Groups>,
}

/// A picture of a model.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) marks: Vec<Mark>,
}

/// Draws a picture.
pub(super) struct Drawing<'t, 'a> {
    pub(super) model: &'t Model<'t, 'a>,
    pub(super) all: Totals,
    pub(super) letters: Letters,
    /// A smaller rectangle is not drawn by itself.
    smallest_area: f64,
    pub(super) marks: Vec<Mark>,
}

/// Where a module or tensor is: on the page, and in the model.
#[derive(Clone, Copy)]
struct PicturePlace<'p> {
    rect: Rect,
    depth: u8,
    /// The name of the module around it, with a separator at its end.
    name: &'p str,
    /// The path of the module around it, as [`Groups`] has it.
    path: &'p str,
    /// The group that the module around it belongs to.
    group: Option<usize>,
    /// The number of copies of the layers around it.
    copies: u64,
}

impl Picture {
    pub(super) fn new(model: &Model<'_, '_>, letters: Letters) -> Self {
        let page = Rect { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
        let all = model.dtypes.values().copied().sum();
        let space = page.inside(TITLE + MARGIN, MARGIN);
        let space = Rect { height: space.height - LEGEND, ..space };
        let tensors: usize = model.trees.iter().map(count).sum();
        let smallest_area =
            if tensors > MOST { space.width * space.height / MOST as f64 } else { 0.0 };
        let marks = vec![Mark::Rect { rect: page, fill: PAPER, about: None }];
        let mut drawing = Drawing { model, all, letters, smallest_area, marks };
        drawing.title();
        let place =
            PicturePlace { rect: space, depth: 0, name: "", path: "", group: None, copies: 1 };
        drawing.trees(model.trees, place);
        drawing.legend();
        Self { marks: drawing.marks }
    }
}

impl Drawing<'_, '_> {
    /// Draws siblings side by side, the largest first. Those that are too small share a rectangle.
    fn trees(&mut self, trees: &[Tree<'_>], place: PicturePlace<'_>) {
        let mut trees: Vec<_> = trees
            .iter()
            .map(|tree| (tree.all().bytes, tree))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        trees.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let total: u128 = trees.iter().map(|(bytes, _)| bytes).sum();
        let area = place.rect.width * place.rect.height;
        let is_large =
            |(bytes, _): &(u128, _)| *bytes as f64 / total as f64 * area >= self.smallest_area;
        let small = trees.split_off(trees.partition_point(is_large));
        let mut parts: Vec<_> = trees.into_iter().map(|(bytes, tree)| (bytes, Ok(tree))).collect();
        let mut rests: BTreeMap<Colour, Totals> = BTreeMap::new();
        for (_, tree) in small {
            *rests.entry(self.fill(tree, self.group(tree, place))).or_default() += tree.all();
        }
        parts.extend(rests.into_iter().map(|(fill, rest)| (rest.bytes, Err((fill, rest)))));
        parts.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let weights: Vec<f64> = parts.iter().map(|(bytes, _)| *bytes as f64).collect();
        for ((_, part), rect) in parts.into_iter().zip(squarify(&weights, place.rect)) {
            match part {
                Ok(tree) => self.tree(tree, PicturePlace { rect, ..place }),
                Err((fill, rest)) => self.rest(fill, rest * place.copies, rect),
            }
        }
    }

    /// Draws tensors of one colour that are too small to be drawn one by one.
    fn rest(&mut self, fill: Colour, totals: Totals, rect: Rect) {
        if rect.width < 0.3 || rect.height < 0.3 {
            return;
        }
        let label = format!("{} small", text::count(totals.tensors));
        let tensors = if totals.tensors == 1 { "tensor" } else { "tensors" };
        let about = format!("{label} {tensors}\n{}", self.sums(totals));
        self.marks.push(Mark::Rect { rect: gap(rect), fill, about: Some(about) });
        self.labels(rect, fill, None, &label, "");
    }

    /// The group of a module or tensor, or of a module around it.
    fn group(&self, tree: &Tree<'_>, place: PicturePlace<'_>) -> Option<usize> {
        let groups = self.model.groups?;
        place.group.or_else(|| groups.position(&path_of(place.path, tree)))
    }

    /// The colour of a module or tensor that is drawn without its content.
    fn fill(&self, tree: &Tree<'_>, group: Option<usize>) -> Colour {
        match (self.model.groups, group) {
            (Some(_), Some(group)) => palette::GROUPS[group],
            (Some(_), None) => palette::OTHER,
            // The colour of its largest part.
            (None, _) => largest_kind(tree).map_or(palette::OTHER, palette::kind),
        }
    }

    fn tree(&mut self, tree: &Tree<'_>, place: PicturePlace<'_>) {
        let rect = place.rect;
        if rect.width < 0.3 || rect.height < 0.3 {
            return;
        }
        let group = self.group(tree, place);
        let is_tiny = rect.width < SMALLEST || rect.height < SMALLEST;
        if tree.tensor().is_some() || is_tiny {
            return self.leaf(tree, PicturePlace { group, ..place });
        }
        if let Some(most) = nearly_all(tree, rect) {
            let mut joined = most.clone();
            joined.label = tree.label_of(most).into();
            let copies = place.copies.saturating_mul(tree.copies.into());
            return self.tree(&joined, PicturePlace { group, copies, ..place });
        }
        let about = self.about(tree, place);
        self.marks.push(Mark::Rect {
            rect: gap(rect),
            fill: shade(place.depth),
            about: Some(about),
        });
        let label = if rect.height > 3.0 * STRIP {
            self.letters.fit(&tree.label, Some(tree.separator), rect.width - 10.0, Size::Small)
        } else {
            None
        };
        let top = if label.is_some() { STRIP } else { 2.0 };
        if let Some(label) = label {
            self.text(rect.x + 6.0, rect.y + 3.0, Size::Small, INK, label);
        }
        let side = if rect.width < 40.0 || rect.height < 40.0 { 1.0 } else { 2.0 };
        let name = format!("{}{}{}", place.name, tree.label, tree.separator);
        let path = path_of(place.path, tree);
        let inside = PicturePlace {
            rect: rect.inside(top, side),
            depth: place.depth.saturating_add(1),
            name: &name,
            path: &path,
            group,
            copies: place.copies.saturating_mul(tree.copies.into()),
        };
        self.trees(tree.children(), inside);
    }

    /// Draws a tensor, or a module without its content. Its name and shape are written where there
    /// is room.
    fn leaf(&mut self, tree: &Tree<'_>, place: PicturePlace<'_>) {
        let rect = place.rect;
        let fill = self.fill(tree, place.group);
        let is_tiny = rect.width < SMALLEST || rect.height < SMALLEST;
        let about = Some(self.about(tree, place));
        self.marks.push(Mark::Rect { rect: if is_tiny { rect } else { gap(rect) }, fill, about });
        let shape = tree.shape().map(text::shape);
        self.labels(rect, fill, Some(tree.separator), &tree.label, &shape.unwrap_or_default());
    }

    /// Writes a name, and a shape below, where there is room.
    fn labels(
        &mut self,
        rect: Rect,
        fill: Colour,
        separator: Option<char>,
        name: &str,
        shape: &str,
    ) {
        let room = rect.width - 10.0;
        let colour = ink_on(fill);
        let size = Size::Small;
        if rect.height > 2.0 * rect.width && (18.0..60.0).contains(&rect.width) {
            if let Some(text) = self.letters.fit(name, separator, rect.height - 10.0, size) {
                let (x, y) = (rect.x + rect.width / 2.0 + size.height() / 2.0, rect.y + 6.0);
                self.marks.push(Mark::Text { x, y, size, colour, text, down: true });
            }
            return;
        }
        if rect.height < 20.0 {
            return;
        }
        let Some(label) = self.letters.fit(name, separator, room, size) else { return };
        self.text(rect.x + 6.0, rect.y + 4.0, size, colour, label);
        let shape = self.letters.spell(shape);
        if rect.height >= 38.0 && width(&shape, size) <= room {
            self.text(rect.x + 6.0, rect.y + 20.0, size, colour, shape);
        }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, size: Size, colour: Colour, text: String) {
        self.marks.push(Mark::Text { x, y, size, colour, text, down: false });
    }

    /// The full name of a module or tensor, its dtype and shape, and its totals, in lines.
    fn about(&self, tree: &Tree<'_>, place: PicturePlace<'_>) -> String {
        let name = text::name(&format!("{}{}", place.name, tree.label));
        let copies = place.copies.saturating_mul(tree.copies.into());
        let kind = match tree.kind().zip(tree.shape()) {
            Some((kind, shape)) => {
                let times =
                    if copies > 1 { format!("{} × ", text::count(copies)) } else { String::new() };
                format!("{times}{kind} {}\n", text::shape(shape))
            }
            None => format!("{}\n", text::counted(tree.all().tensors * place.copies, "tensor")),
        };
        format!("{name}\n{kind}{}", self.sums(tree.all() * place.copies))
    }

    /// Parameters, bytes, and their share of all bytes.
    fn sums(&self, totals: Totals) -> String {
        let share = totals.bytes as f64 / self.all.bytes as f64 * 100.0;
        let parameters = text::counted(totals.parameters, "parameter");
        format!("{parameters}, {}, {share:.2}%", text::size(totals.bytes))
    }
}

/// The number of tensors, folded ones counted once.
fn count(tree: &Tree<'_>) -> usize {
    tree.children().iter().map(count).sum::<usize>().max(1)
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

/// The dtype of the largest child, of its largest child, and so on down to a tensor.
fn largest_kind<'a>(tree: &Tree<'a>) -> Option<Kind<'a>> {
    let largest = || tree.children().iter().max_by_key(|child| child.all().bytes);
    tree.kind().or_else(|| largest().and_then(largest_kind))
}
