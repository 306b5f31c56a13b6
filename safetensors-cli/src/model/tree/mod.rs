//! [`Tree`]: the modules of a model, by the names of its tensors.

mod fold;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use safetensors_core::{Dtype, LazyTensor};

use crate::input::other::DisplayedTensor;
use crate::model::order::{self, MAX_PARTS, Sort};
use crate::model::totals::{Parameters, Totals};

/// A module, a tensor, or several of either that differ only in a number.
// There may be a million, so a tree borrows the description of a tensor, and a label from its name
// where possible.
#[derive(Clone, Debug)]
pub(crate) struct Tree<'a> {
    /// Several parts if modules have one child each; `0…31` for folded siblings.
    pub(crate) label: Cow<'a, str>,
    /// Siblings that were folded into this one.
    pub(crate) copies: u32,
    content: Content<'a>,
    /// The separator between the parts of names.
    pub(crate) separator: char,
}

#[derive(Clone, Debug)]
enum Content<'a> {
    /// A tensor, the number of its file, and its parameters.
    Tensor(DisplayedTensor<'a>, usize, u64),
    Module(Box<[Tree<'a>]>),
}

impl<'a> Tree<'a> {
    /// Sorts the tensors by name. With `folds`, layers of equal structure are folded.
    pub(crate) fn build<S: 'static>(
        tensors: &mut [LazyTensor<'a, S>],
        parameters: &Parameters<'_>,
        sort: Sort,
        folds: bool,
    ) -> Vec<Self> {
        let separator = order::by_name(tensors, |tensor| tensor.name());
        let mut trees = Grow { separator, folds, parameters }.children(tensors, 0, 0);
        sort_all(&mut trees, sort);
        trees
    }

    pub(crate) fn tensor(&self) -> Option<DisplayedTensor<'a>> {
        match self.content {
            Content::Tensor(tensor, ..) => Some(tensor),
            Content::Module(_) => None,
        }
    }

    /// `None` for a module.
    pub(crate) fn file_index(&self) -> Option<usize> {
        match self.content {
            Content::Tensor(_, file, _) => Some(file),
            Content::Module(_) => None,
        }
    }

    pub(crate) fn children(&self) -> &[Self] {
        match &self.content {
            Content::Tensor(..) => &[],
            Content::Module(children) => children,
        }
    }

    /// Returns the totals of a single copy.
    pub(crate) fn totals(&self) -> Totals {
        match &self.content {
            Content::Tensor(tensor, _, parameters) => Totals::one(*tensor, *parameters),
            Content::Module(children) => children.iter().map(Self::all).sum(),
        }
    }

    /// Returns the totals of all copies.
    pub(crate) fn all(&self) -> Totals {
        self.totals() * self.copies.into()
    }

    /// Returns the dtype of the tensor, or of the first one in the module.
    fn dtype(&self) -> Option<Dtype> {
        match &self.content {
            Content::Tensor(tensor, ..) => Some(tensor.info.dtype()),
            Content::Module(children) => children.first().and_then(Self::dtype),
        }
    }

    /// The file's number and the range of bytes, of the first tensor.
    fn position(&self) -> (usize, u64, u64) {
        match &self.content {
            Content::Tensor(tensor, file, _) => {
                let place = tensor.info.data_offsets();
                (*file, place.start, place.end)
            }
            Content::Module(children) => {
                children.iter().map(Self::position).min().unwrap_or_default()
            }
        }
    }
}

/// Sorts from the inside out, because a module has the dtype of its first tensor. The sort is
/// stable.
fn sort_all(trees: &mut [Tree<'_>], sort: Sort) {
    for tree in trees.iter_mut() {
        if let Content::Module(children) = &mut tree.content {
            sort_all(children, sort);
        }
    }
    match sort {
        Sort::Name => {}
        Sort::Size => trees.sort_by_cached_key(|tree| Reverse(tree.all().bytes)),
        Sort::Offset => trees.sort_by_cached_key(Tree::position),
        Sort::Dtype => trees.sort_by_cached_key(Tree::dtype),
    }
}

struct Grow<'p> {
    separator: char,
    folds: bool,
    parameters: &'p Parameters<'p>,
}

impl Grow<'_> {
    /// The sorted names share their first `depth` parts, up to the byte `start`.
    fn children<'a, S: 'static>(
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
        // A tensor can have the name of a module. It then comes before the tensors in the module.
        let split = |group: &'_ [LazyTensor<'a, S>]| {
            let end = start + part(&group[0]).len();
            (end, group.iter().take_while(|tensor| tensor.name().len() == end).count())
        };
        // The exact number is counted first, because unused room in each module would add up.
        let count = groups().map(|group| {
            let (_, ends) = split(group);
            ends + usize::from(ends < group.len())
        });
        let mut trees = Vec::with_capacity(count.sum());
        for group in groups() {
            let label = part(&group[0]);
            let (end, ends) = split(group);
            let (tensors, inside) = group.split_at(ends);
            trees.extend(tensors.iter().map(|tensor| {
                let shown = DisplayedTensor::new(tensor);
                let parameters = self.parameters.count(shown);
                let content = Content::Tensor(shown, tensor.file_index(), parameters);
                Tree { label: label.into(), copies: 1, content, separator: self.separator }
            }));
            if let Some(first) = inside.first() {
                let children = self.children(inside, depth + 1, end + self.separator.len_utf8());
                trees.push(self.module(first.name(), start..end, children));
            }
        }
        if self.folds { fold::fold_alike(trees) } else { trees }
    }

    /// Joins a module with a single child.
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
                // The joined label is part of the name too.
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
