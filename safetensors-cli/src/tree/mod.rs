//! [`Tree`]: the modules of a model, from the names of its tensors.

mod fold;
#[cfg(test)]
mod tests;

use safetensors_core::{Dtype, LazyTensor};

use crate::order::{Entry, Sort, Sortable, by_name};
use crate::totals::Totals;

/// A module, a tensor, or several of either that differ only in a number in their names.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The part of the name; several parts where modules have one child each; `0…31` for folded
    /// siblings.
    pub(crate) label: String,
    /// The number of siblings that were folded into this one.
    pub(crate) copies: u64,
    /// The dtype and shape, if it is a tensor.
    pub(crate) leaf: Option<(Dtype, Vec<usize>)>,
    /// The modules and tensors inside.
    pub(crate) children: Vec<Tree>,
    /// The totals of one copy.
    pub(crate) totals: Totals,
    /// The separator between the parts of names.
    pub(crate) separator: char,
    /// The position of its first tensor in the checkpoint.
    position: usize,
}

/// A function that may fold siblings together.
type Fold = fn(Vec<Tree>) -> Vec<Tree>;

impl Tree {
    /// The top-level modules and tensors of these tensors.
    pub(crate) fn of<S>(tensors: &[LazyTensor<'_, S>], sort: Sort) -> Vec<Self> {
        Self::grow(tensors, sort, |trees| trees)
    }

    /// The same, with layers of the same structure folded into one.
    pub(crate) fn folded<S>(tensors: &[LazyTensor<'_, S>], sort: Sort) -> Vec<Self> {
        Self::grow(tensors, sort, fold::fold_alike)
    }

    fn grow<S>(tensors: &[LazyTensor<'_, S>], sort: Sort, fold: Fold) -> Vec<Self> {
        let (entries, separator) = by_name(tensors);
        let mut trees = children(&entries, 0, separator, fold);
        sort_all(&mut trees, sort);
        trees
    }

    /// The totals of all copies.
    pub(crate) fn all(&self) -> Totals {
        self.totals * self.copies
    }

    /// The label of a child, with the label of this module before it.
    pub(crate) fn label_of(&self, child: &Self) -> String {
        format!("{}{}{}", self.label, self.separator, child.label)
    }
}

impl Sortable for Tree {
    fn bytes(&self) -> u128 {
        self.all().bytes
    }

    fn dtype(&self) -> Option<Dtype> {
        match &self.leaf {
            Some((dtype, _)) => Some(*dtype),
            None => self.children.first().and_then(Self::dtype),
        }
    }

    fn position(&self) -> usize {
        self.position
    }
}

/// Sorts from the inside out, because the dtype of a module is that of its first tensor.
fn sort_all(trees: &mut [Tree], sort: Sort) {
    trees.iter_mut().for_each(|tree| sort_all(&mut tree.children, sort));
    sort.apply(trees);
}

/// The modules and tensors of sorted entries whose names share their first `depth` parts.
fn children(entries: &[Entry<'_>], depth: usize, separator: char, fold: Fold) -> Vec<Tree> {
    let mut trees = Vec::new();
    for group in entries.chunk_by(|a, b| a.parts.get(depth) == b.parts.get(depth)) {
        let label = group[0].parts.get(depth).copied().unwrap_or_default();
        // A tensor can have the name of a module. It then comes before the tensors in the module.
        let ends = group.iter().take_while(|entry| entry.parts.len() <= depth + 1).count();
        let (tensors, inside) = group.split_at(ends);
        trees.extend(tensors.iter().map(|entry| leaf(label, entry, separator)));
        if !inside.is_empty() {
            trees.push(module(label, children(inside, depth + 1, separator, fold), separator));
        }
    }
    fold(trees)
}

fn leaf(label: &str, entry: &Entry<'_>, separator: char) -> Tree {
    Tree {
        label: label.into(),
        copies: 1,
        leaf: Some((entry.info.dtype(), entry.info.shape().to_vec())),
        children: Vec::new(),
        totals: Totals::one(entry.info),
        separator,
        position: entry.position,
    }
}

/// A module. A module with a single child is joined with it and takes one line.
fn module(label: &str, children: Vec<Tree>, separator: char) -> Tree {
    let totals = children.iter().map(Tree::all).sum();
    let position = children.iter().map(|child| child.position).min().unwrap_or_default();
    let mut module =
        Tree { label: label.into(), copies: 1, leaf: None, children, totals, separator, position };
    if module.children.len() == 1
        && let Some(only) = module.children.pop()
    {
        return Tree { label: module.label_of(&only), ..only };
    }
    module
}
