//! [`Tree`]: the modules of a model, from the names of its tensors.

mod fold;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use safetensors_core::{Dtype, LazyTensor, TensorInfo};

use crate::order::{self, MAX_PARTS, Position, Sort, Sortable};
use crate::totals::Totals;

/// A module, a tensor, or several of either that differ in nothing but a number in their names.
///
/// There may be a million, so a tensor borrows all that is known of it, and a label is part of a
/// name as long as it can.
#[derive(Clone, Debug)]
pub(crate) struct Tree<'a> {
    /// The part of the name; several parts where modules have one child each; `0…31` for what was
    /// folded.
    pub(crate) label: Cow<'a, str>,
    /// How many were folded into this one.
    pub(crate) copies: u32,
    content: Content<'a>,
    /// What stands between the parts of names.
    pub(crate) separator: char,
}

#[derive(Clone, Debug)]
enum Content<'a> {
    /// A tensor, and the number of its file.
    Tensor(TensorInfo<'a>, usize),
    /// What is in a module.
    Module(Box<[Tree<'a>]>),
}

/// What becomes of siblings.
type Fold = for<'a> fn(Vec<Tree<'a>>) -> Vec<Tree<'a>>;

impl<'a> Tree<'a> {
    /// The top-level modules and tensors of these tensors, which it puts in the order of names.
    pub(crate) fn of<S>(tensors: &mut [LazyTensor<'a, S>], sort: Sort) -> Vec<Self> {
        Self::grow(tensors, sort, |trees| trees)
    }

    /// The same, with layers that are alike folded into one.
    pub(crate) fn folded<S>(tensors: &mut [LazyTensor<'a, S>], sort: Sort) -> Vec<Self> {
        Self::grow(tensors, sort, fold::fold_alike)
    }

    fn grow<S>(tensors: &mut [LazyTensor<'a, S>], sort: Sort, fold: Fold) -> Vec<Self> {
        let separator = order::by_name(tensors);
        let mut trees = Grow { separator, fold }.children(tensors, 0, 0);
        sort_all(&mut trees, sort);
        trees
    }

    /// The tensor that it is, if it is no module.
    pub(crate) fn tensor(&self) -> Option<TensorInfo<'a>> {
        match &self.content {
            Content::Tensor(info, _) => Some(*info),
            Content::Module(_) => None,
        }
    }

    /// What is inside.
    pub(crate) fn children(&self) -> &[Self] {
        match &self.content {
            Content::Tensor(..) => &[],
            Content::Module(children) => children,
        }
    }

    /// The sums of one copy.
    pub(crate) fn totals(&self) -> Totals {
        match &self.content {
            Content::Tensor(info, _) => Totals::one(*info),
            Content::Module(children) => children.iter().map(Self::all).sum(),
        }
    }

    /// The sums of all copies.
    pub(crate) fn all(&self) -> Totals {
        self.totals() * self.copies.into()
    }

    /// What a child is called outside of this module.
    pub(crate) fn label_of(&self, child: &Self) -> String {
        format!("{}{}{}", self.label, self.separator, child.label)
    }
}

impl Sortable for Tree<'_> {
    fn bytes(&self) -> u128 {
        self.all().bytes
    }

    fn dtype(&self) -> Option<Dtype> {
        match &self.content {
            Content::Tensor(info, _) => Some(info.dtype()),
            Content::Module(children) => children.first().and_then(Self::dtype),
        }
    }

    fn position(&self) -> Position {
        match &self.content {
            Content::Tensor(info, file) => {
                let place = info.data_offsets();
                (*file, place.start, place.end)
            }
            Content::Module(children) => {
                children.iter().map(Self::position).min().unwrap_or_default()
            }
        }
    }
}

/// From the inside out: the dtype of a module is that of its first tensor.
fn sort_all(trees: &mut [Tree<'_>], sort: Sort) {
    for tree in trees.iter_mut() {
        if let Content::Module(children) = &mut tree.content {
            sort_all(children, sort);
        }
    }
    sort.apply(trees);
}

/// How trees are grown of names.
struct Grow {
    separator: char,
    fold: Fold,
}

impl Grow {
    /// The modules and tensors of tensors in the order of their names, which agree in their first
    /// `depth` parts: those before the byte `start`.
    fn children<'a, S>(
        &self,
        tensors: &[LazyTensor<'a, S>],
        depth: usize,
        start: usize,
    ) -> Vec<Tree<'a>> {
        let part = |tensor: &LazyTensor<'a, S>| {
            let rest = &tensor.name()[start..];
            match rest.split_once(self.separator) {
                Some((part, _)) if depth + 1 < MAX_PARTS => part,
                _ => rest,
            }
        };
        let groups = || tensors.chunk_by(|a, b| part(a) == part(b));
        // A tensor can have the name of a module; it is sorted before what is inside the module.
        let split = |group: &'_ [LazyTensor<'a, S>]| {
            let end = start + part(&group[0]).len();
            (end, group.iter().take_while(|tensor| tensor.name().len() == end).count())
        };
        // There may be so many that room for more would count.
        let count = groups().map(|group| {
            let (_, ends) = split(group);
            ends + usize::from(ends < group.len())
        });
        let mut trees = Vec::with_capacity(count.sum());
        for group in groups() {
            let label = part(&group[0]);
            let (end, ends) = split(group);
            let (tensors, inside) = group.split_at(ends);
            trees.extend(tensors.iter().map(|tensor| Tree {
                label: label.into(),
                copies: 1,
                content: Content::Tensor(tensor.info(), tensor.file_index()),
                separator: self.separator,
            }));
            if let Some(first) = inside.first() {
                let children = self.children(inside, depth + 1, end + self.separator.len_utf8());
                trees.push(self.module(first.name(), start..end, children));
            }
        }
        (self.fold)(trees)
    }

    /// The module that has this part of a name; one with a single child is written on one line with
    /// it.
    fn module<'a>(
        &self,
        name: &'a str,
        part: Range<usize>,
        mut children: Vec<Tree<'a>>,
    ) -> Tree<'a> {
        let label = &name[part.clone()];
        if children.len() == 1
            && let Some(only) = children.pop()
        {
            let label = match &only.label {
                // They stand in the name as they do on the line.
                Cow::Borrowed(inside) => {
                    let end = part.end + self.separator.len_utf8() + inside.len();
                    Cow::Borrowed(&name[part.start..end])
                }
                Cow::Owned(inside) => Cow::Owned(format!("{label}{}{inside}", self.separator)),
            };
            return Tree { label, ..only };
        }
        Tree {
            label: label.into(),
            copies: 1,
            content: Content::Module(children.into_boxed_slice()),
            separator: self.separator,
        }
    }
}
