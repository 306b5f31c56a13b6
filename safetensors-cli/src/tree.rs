//! [`Tree`]: the modules of a model, from the names of its tensors, with layers that are alike folded into one.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use safetensors_core::{Dtype, LazyTensor, Result};

use crate::totals::Totals;

/// Names are split so many times at most: what is left of a hostile one is a single label.
const MAX_DEPTH: usize = 24;

/// The order of modules and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By name, numbers by their value
    Name,
    /// The largest first
    Size,
    /// As they lie in the files
    Offset,
    /// By dtype, then by name
    Dtype,
}

/// A module, a tensor, or several of either that differ in nothing but a number in their names.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The part of the name; several parts where modules have one child each; `0…31` for what was folded.
    pub(crate) label: String,
    /// How many were folded into this one.
    pub(crate) copies: u64,
    /// The dtype and shape, if it is a tensor.
    pub(crate) leaf: Option<(Dtype, Vec<usize>)>,
    /// What is inside.
    pub(crate) children: Vec<Tree>,
    /// The sums of one copy.
    pub(crate) totals: Totals,
    /// Where its first tensor stands in the checkpoint.
    position: usize,
}

/// A tensor on its way into the tree.
struct Item<'a> {
    parts: Vec<&'a str>,
    dtype: Dtype,
    shape: &'a [usize],
    totals: Totals,
    position: usize,
}

impl Tree {
    /// The top-level modules and tensors of these tensors.
    pub(crate) fn of<S>(tensors: &[LazyTensor<'_, S>], sort: Sort, fold: bool) -> Result<Vec<Self>> {
        let separator = separator(tensors.iter().map(LazyTensor::name));
        let mut items = Vec::with_capacity(tensors.len());
        for (position, tensor) in tensors.iter().enumerate() {
            let parts = tensor.name().splitn(MAX_DEPTH, separator).collect();
            let totals = Totals::one(tensor)?;
            items.push(Item { parts, dtype: tensor.dtype(), shape: tensor.shape(), totals, position });
        }
        items.sort_by(|a, b| compare_parts(&a.parts, &b.parts));
        let mut trees = children(&items, 0, separator, fold);
        trees.iter_mut().for_each(|tree| tree.sort(sort));
        sort_trees(&mut trees, sort);
        Ok(trees)
    }

    /// The sums of all copies.
    pub(crate) fn all(&self) -> Totals {
        self.totals * self.copies
    }

    fn sort(&mut self, sort: Sort) {
        self.children.iter_mut().for_each(|child| child.sort(sort));
        sort_trees(&mut self.children, sort);
    }

    /// The dtype of the first tensor inside.
    fn first_dtype(&self) -> Option<Dtype> {
        match &self.leaf {
            Some((dtype, _)) => Some(*dtype),
            None => self.children.first().and_then(Self::first_dtype),
        }
    }
}

/// Names are paths, with dots as PyTorch writes them or slashes as JAX and TensorFlow do.
fn separator<'a>(names: impl Iterator<Item = &'a str>) -> char {
    let (mut dots, mut slashes) = (0_usize, 0_usize);
    for name in names {
        dots += usize::from(name.contains('.'));
        slashes += usize::from(name.contains('/'));
    }
    if slashes > dots { '/' } else { '.' }
}

/// The modules and tensors of sorted items that agree in their first `depth` parts.
fn children(items: &[Item<'_>], depth: usize, separator: char, fold: bool) -> Vec<Tree> {
    let mut trees = Vec::new();
    for group in items.chunk_by(|a, b| a.parts.get(depth) == b.parts.get(depth)) {
        let label = group[0].parts.get(depth).copied().unwrap_or_default();
        // A tensor can have the name of a module; it is sorted before what is inside the module.
        let ends = group.iter().take_while(|item| item.parts.len() <= depth + 1).count();
        let (tensors, inside) = group.split_at(ends);
        trees.extend(tensors.iter().map(|item| leaf(label, item)));
        if !inside.is_empty() {
            trees.push(module(label, children(inside, depth + 1, separator, fold), separator));
        }
    }
    if fold { fold_alike(trees) } else { trees }
}

fn leaf(label: &str, item: &Item<'_>) -> Tree {
    let leaf = Some((item.dtype, item.shape.to_vec()));
    Tree { label: label.into(), copies: 1, leaf, children: Vec::new(), totals: item.totals, position: item.position }
}

/// A module; one with a single child is written on one line with it.
fn module(label: &str, mut children: Vec<Tree>, separator: char) -> Tree {
    if children.len() == 1
        && let Some(mut only) = children.pop()
    {
        only.label = format!("{label}{separator}{}", only.label);
        return only;
    }
    let mut totals = Totals::default();
    children.iter().for_each(|child| totals += child.all());
    let position = children.iter().map(|child| child.position).min().unwrap_or_default();
    Tree { label: label.into(), copies: 1, leaf: None, children, totals, position }
}

/// Folds siblings into one whose labels are numbers and that are otherwise alike.
fn fold_alike(trees: Vec<Tree>) -> Vec<Tree> {
    let mut groups: HashMap<Unlabelled<'_>, usize> = HashMap::new();
    let mut folded: Vec<(usize, Vec<u64>)> = Vec::new();
    for (i, tree) in trees.iter().enumerate() {
        let Some((number, rest)) = leading_number(&tree.label) else {
            folded.push((i, Vec::new()));
            continue;
        };
        let group = *groups.entry(Unlabelled { rest, tree }).or_insert(folded.len());
        match folded.get_mut(group) {
            Some((_, numbers)) => numbers.push(number),
            None => folded.push((i, vec![number])),
        }
    }
    if folded.len() == trees.len() {
        return trees;
    }
    let folded = folded.into_iter().map(|(i, numbers)| {
        let mut tree = trees[i].clone();
        if numbers.len() > 1 {
            let rest = leading_number(&tree.label).map_or("", |(_, rest)| rest);
            tree.label = format!("{}{rest}", ranges(&numbers));
            tree.copies *= numbers.len() as u64;
        }
        tree
    });
    folded.collect()
}

/// The number that a label is, or that it starts with where a module was joined with its only child.
fn leading_number(label: &str) -> Option<(u64, &str)> {
    let digits = label.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = label.split_at(digits);
    let is_whole = rest.is_empty() || rest.starts_with(['.', '/']);
    // With a leading zero it would not be the same name any more.
    let is_plain = is_whole && (1..=15).contains(&digits) && (digits == 1 || !number.starts_with('0'));
    is_plain.then(|| Some((number.parse().ok()?, rest))).flatten()
}

/// Ascending numbers as ranges: `0…2, 5, 7…9`.
fn ranges(numbers: &[u64]) -> String {
    const SHOWN: usize = 6;
    let mut ranges: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        if ranges.len() == SHOWN {
            ranges.push("…".into());
            break;
        }
        ranges.push(match run {
            [first, .., last] => format!("{first}…{last}"),
            _ => run.first().map(u64::to_string).unwrap_or_default(),
        });
    }
    ranges.join(", ")
}

/// A tree without the number that its label starts with, to be compared.
struct Unlabelled<'a> {
    rest: &'a str,
    tree: &'a Tree,
}

impl PartialEq for Unlabelled<'_> {
    fn eq(&self, other: &Self) -> bool {
        let children = || self.tree.children.len() == other.tree.children.len();
        let same = |(a, b): (&Tree, &Tree)| {
            a.label == b.label && Unlabelled { rest: "", tree: a } == Unlabelled { rest: "", tree: b }
        };
        self.rest == other.rest
            && self.tree.copies == other.tree.copies
            && self.tree.leaf == other.tree.leaf
            && children()
            && self.tree.children.iter().zip(&other.tree.children).all(same)
    }
}

impl Eq for Unlabelled<'_> {}

impl Hash for Unlabelled<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rest.hash(state);
        self.tree.copies.hash(state);
        self.tree.leaf.hash(state);
        self.tree.children.len().hash(state);
        for child in &self.tree.children {
            child.label.hash(state);
            Unlabelled { rest: "", tree: child }.hash(state);
        }
    }
}

/// Names part by part, numbers by their value; a name before those that it is the start of.
fn compare_parts(a: &[&str], b: &[&str]) -> Ordering {
    let differing = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
    differing.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Two parts of names: both numbers by value, else as text.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let number = |text: &str| leading_number(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number);
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        // Numbers stand together, so that the order is one.
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

fn sort_trees(trees: &mut [Tree], sort: Sort) {
    match sort {
        // They are made in this order.
        Sort::Name => {}
        Sort::Size => trees.sort_by_key(|tree| Reverse(tree.all().bytes)),
        Sort::Offset => trees.sort_by_key(|tree| tree.position),
        Sort::Dtype => trees.sort_by_key(Tree::first_dtype),
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};

    use super::*;

    /// A tree as lines of indented labels, `×n` for what was folded.
    fn lines(names: &[&str], sort: Sort) -> Vec<String> {
        fn write(trees: &[Tree], depth: usize, lines: &mut Vec<String>) {
            for tree in trees {
                let copies = if tree.copies > 1 { format!(" ×{}", tree.copies) } else { String::new() };
                lines.push(format!("{}{}{copies}", "  ".repeat(depth), tree.label));
                write(&tree.children, depth + 1, lines);
            }
        }
        let one = [0_u8; 2];
        let two = [0_u16; 1];
        let tensors = names.iter().map(|&name| {
            let view = TensorView::from_slice(&[2], &one).unwrap();
            (name, if name.ends_with('!') { TensorView::from_slice(&[1], &two).unwrap() } else { view })
        });
        let file = serialize(tensors, &SaveOptions::new()).unwrap();
        let archive = SafeTensors::parse(file).unwrap();
        let tensors: Vec<_> = archive.tensors().map(|info| archive.tensor(info.name()).unwrap()).collect();
        let trees = Tree::of(&tensors, sort, true).unwrap();
        let mut all = Totals::default();
        trees.iter().for_each(|tree| all += tree.all());
        assert_eq!(all, Totals::of(tensors.iter().copied()).unwrap());
        let mut lines = Vec::new();
        write(&trees, 0, &mut lines);
        lines
    }

    #[test]
    fn layers_that_are_alike_are_one() {
        let mut names: Vec<String> = Vec::new();
        for i in 0..12 {
            names.push(format!("m.layers.{i}.q.weight"));
            names.push(format!("m.layers.{i}.norm"));
        }
        names.push("m.layers.3.extra".into());
        names.push("head".into());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let expected = [
            "head",
            "m.layers",
            "  0…2, 4…11 ×11",
            "    norm",
            "    q.weight",
            "  3",
            "    extra",
            "    norm",
            "    q.weight",
        ];
        assert_eq!(lines(&names, Sort::Name), expected);
    }

    #[test]
    fn layers_of_one_tensor_and_layers_in_layers() {
        assert_eq!(lines(&["e.0.w", "e.1.w", "e.2.w"], Sort::Name), ["e.0…2.w ×3"]);
        assert_eq!(lines(&["e.0.x.0", "e.0.x.1", "e.1.x.0", "e.1.x.1"], Sort::Name), ["e.0…1.x.0…1 ×4"]);
        // Another dtype, or another name, is another kind of layer.
        assert_eq!(lines(&["0.w", "1.w!", "2.v"], Sort::Name), ["0.w", "1.w!", "2.v"]);
        assert_eq!(lines(&["00", "01", "1"], Sort::Name), ["1", "00", "01"]);
    }

    #[test]
    fn a_tensor_may_have_the_name_of_a_module() {
        assert_eq!(lines(&["a.b", "a", "a.c"], Sort::Name), ["a", "a", "  b", "  c"]);
        assert_eq!(lines(&["", ".", ".."], Sort::Name).len(), 4);
    }

    #[test]
    fn slashes_are_separators_where_they_are_more() {
        assert_eq!(lines(&["p/a.x/k", "p/a.x/b", "q/r"], Sort::Name), ["p/a.x", "  b", "  k", "q/r"]);
    }

    #[test]
    fn hostile_depth_is_one_label() {
        let deep = "a.".repeat(100_000);
        let shown = lines(&[&deep, "b"], Sort::Size);
        assert_eq!((shown.len(), shown[0].len()), (2, deep.len()));
    }

    #[test]
    fn ranges_of_numbers() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0…2, 5, 7…8");
        assert_eq!(ranges(&[0, 2, 4, 6, 8, 10, 12]), "0, 2, 4, 6, 8, 10, …");
    }
}
