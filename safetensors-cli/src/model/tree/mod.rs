//! [`Tree`]: the modules of a model, from the names of its tensors.

mod fold;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use safetensors_core::header::TensorInfo;
use safetensors_core::{Dtype, LazyTensor};
use safetensors_formats::Stored;

use crate::input::other::{self, Kind};
use crate::model::order::{self, MAX_PARTS, Position, Sort, Sortable};
use crate::model::totals::{Parameters, Totals};

/// A module, a tensor, or several of either that differ only in a number in their names.
///
/// There may be a million, so a tree is small: it borrows the description of a tensor, and a label
/// is part of a tensor's name where possible.
#[derive(Clone, Debug)]
pub(crate) struct Tree<'a> {
    /// The part of the name; several parts where modules have one child each; `0…31` for folded
    /// siblings.
    pub(crate) label: Cow<'a, str>,
    /// The number of siblings that were folded into this one.
    pub(crate) copies: u32,
    content: Content<'a>,
    /// The separator between the parts of names.
    pub(crate) separator: char,
}

#[derive(Clone, Debug)]
enum Content<'a> {
    /// A tensor, the number of its file, how it is stored if its dtype does not say that, and its
    /// parameters.
    Tensor(TensorInfo<'a>, usize, Option<&'a Stored>, u64),
    /// The modules and tensors in a module.
    Module(Box<[Tree<'a>]>),
}

/// A function that may fold siblings together.
type Fold = for<'a> fn(Vec<Tree<'a>>) -> Vec<Tree<'a>>;

impl<'a> Tree<'a> {
    /// Returns the top-level modules and tensors of these tensors, which are sorted by name on the
    /// way.
    pub(crate) fn of<S: 'static>(
        tensors: &mut [LazyTensor<'a, S>],
        parameters: &Parameters<'_>,
        sort: Sort,
    ) -> Vec<Self> {
        Self::grow(tensors, parameters, sort, |trees| trees)
    }

    /// Makes the tree with layers of equal structure folded together.
    pub(crate) fn folded<S: 'static>(
        tensors: &mut [LazyTensor<'a, S>],
        parameters: &Parameters<'_>,
        sort: Sort,
    ) -> Vec<Self> {
        Self::grow(tensors, parameters, sort, fold::fold_alike)
    }

    fn grow<S: 'static>(
        tensors: &mut [LazyTensor<'a, S>],
        parameters: &Parameters<'_>,
        sort: Sort,
        fold: Fold,
    ) -> Vec<Self> {
        let separator = order::by_name(tensors, |tensor| tensor.name());
        let mut trees = Grow { separator, fold, parameters }.children(tensors, 0, 0);
        sort_all(&mut trees, sort);
        trees
    }

    /// Returns the description of the tensor. `None` for a module.
    pub(crate) fn tensor(&self) -> Option<TensorInfo<'a>> {
        match &self.content {
            Content::Tensor(info, ..) => Some(*info),
            Content::Module(_) => None,
        }
    }

    /// Returns the dtype of the tensor, as it is shown. `None` for a module.
    pub(crate) fn kind(&self) -> Option<Kind<'a>> {
        match &self.content {
            Content::Tensor(info, _, stored, _) => Some(Kind::of(*info, *stored)),
            Content::Module(_) => None,
        }
    }

    /// Returns the dimensions of the tensor in its file. `None` for a module.
    pub(crate) fn shape(&self) -> Option<&'a [usize]> {
        match &self.content {
            Content::Tensor(info, _, stored, _) => Some(other::shape(*info, *stored)),
            Content::Module(_) => None,
        }
    }

    /// Returns the number of the tensor's file. `None` for a module.
    pub(crate) fn file_index(&self) -> Option<usize> {
        match &self.content {
            Content::Tensor(_, file, ..) => Some(*file),
            Content::Module(_) => None,
        }
    }

    /// Returns the modules and tensors inside.
    pub(crate) fn children(&self) -> &[Self] {
        match &self.content {
            Content::Tensor(..) => &[],
            Content::Module(children) => children,
        }
    }

    /// Returns the totals of a single copy.
    pub(crate) fn totals(&self) -> Totals {
        match &self.content {
            Content::Tensor(info, _, stored, parameters) => {
                let one = Totals::one(*info, *stored);
                Totals { parameters: (*parameters).into(), ..one }
            }
            Content::Module(children) => children.iter().map(Self::all).sum(),
        }
    }

    /// Returns the totals of all copies.
    pub(crate) fn all(&self) -> Totals {
        self.totals() * self.copies.into()
    }
}

impl Sortable for Tree<'_> {
    fn bytes(&self) -> u128 {
        self.all().bytes
    }

    fn dtype(&self) -> Option<Dtype> {
        match &self.content {
            Content::Tensor(info, ..) => Some(info.dtype()),
            Content::Module(children) => children.first().and_then(Self::dtype),
        }
    }

    fn position(&self) -> Position {
        match &self.content {
            Content::Tensor(info, file, ..) => {
                let place = info.data_offsets();
                (*file, place.start, place.end)
            }
            Content::Module(children) => {
                children.iter().map(Self::position).min().unwrap_or_default()
            }
        }
    }
}

/// Sorts from the inside out, because a module has the dtype of its first tensor.
fn sort_all(trees: &mut [Tree<'_>], sort: Sort) {
    for tree in trees.iter_mut() {
        if let Content::Module(children) = &mut tree.content {
            sort_all(children, sort);
        }
    }
    sort.apply(trees);
}

/// Builds trees from names.
struct Grow<'p> {
    separator: char,
    fold: Fold,
    parameters: &'p Parameters<'p>,
}

impl Grow<'_> {
    /// Returns the modules and tensors of sorted tensors with names that share their first `depth`
    /// parts, which end before the byte `start`.
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
                let stored = other::stored(tensor);
                let parameters = self.parameters.count(tensor.info(), stored);
                let content =
                    Content::Tensor(tensor.info(), tensor.file_index(), stored, parameters);
                Tree { label: label.into(), copies: 1, content, separator: self.separator }
            }));
            if let Some(first) = inside.first() {
                let children = self.children(inside, depth + 1, end + self.separator.len_utf8());
                trees.push(self.module(first.name(), start..end, children));
            }
        }
        (self.fold)(trees)
    }

    /// Returns the module of this part of a name. A module with a single child is joined with it
    /// and takes one line.
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
