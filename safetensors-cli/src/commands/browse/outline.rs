//! [`Outline`]: the modules and tensors of a checkpoint, and which of them are visible.

// A checkpoint may have a hundred thousand tensors. Opening, closing and filtering visit each node
// once. Moving and drawing visit only the visible rows.

use std::borrow::Cow;
use std::ops::Range;

use regex::{Regex, RegexBuilder};

use crate::input::other::{self, DisplayedTensor};
use crate::model::totals::Totals;
use crate::model::tree::Tree;

/// A module or tensor. The first node is the whole checkpoint.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) label: Cow<'a, str>,
    pub(super) depth: u16,
    pub(super) kind: Kind<'a>,
    pub(super) totals: Totals,
    parent: usize,
    /// The number of the first node after everything inside.
    end: usize,
    is_open: bool,
    is_shown: bool,
}

#[derive(Debug)]
pub(super) enum Kind<'a> {
    Checkpoint,
    Module,
    Tensor(DisplayedTensor<'a>),
}

/// All nodes, each module before its content.
#[derive(Debug)]
pub(super) struct Outline<'a> {
    nodes: Vec<Node<'a>>,
    rows: Vec<usize>,
    before_filter: Option<Vec<bool>>,
    pub(super) separator: char,
    /// Counts visited nodes: drawing must not depend on the size of the checkpoint.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<usize>,
}

impl<'a> Outline<'a> {
    /// Opens only the top.
    pub(super) fn new(name: String, trees: &[Tree<'a>]) -> Self {
        let mut outline = Self {
            nodes: Vec::new(),
            rows: Vec::new(),
            before_filter: None,
            separator: trees.first().map_or('.', |tree| tree.separator),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        };
        let root = 0;
        outline.add(name.into(), (Kind::Checkpoint, Totals::default()), trees, 0, root);
        outline.nodes[root].is_open = true;
        // A single module at the top carries no information.
        if let [only] = trees
            && only.tensor().is_none()
        {
            outline.nodes[root + 1].is_open = true;
        }
        outline.refresh();
        outline
    }

    fn add(
        &mut self,
        label: Cow<'a, str>,
        (kind, totals): (Kind<'a>, Totals),
        inside: &[Tree<'a>],
        depth: u16,
        parent: usize,
    ) {
        let own = self.nodes.len();
        self.nodes.push(Node {
            label,
            depth,
            kind,
            totals,
            parent,
            end: own + 1,
            is_open: false,
            is_shown: true,
        });
        for tree in inside {
            let content = match tree.tensor() {
                Some(tensor) => (Kind::Tensor(tensor), tree.totals()),
                None => (Kind::Module, Totals::default()),
            };
            self.add(tree.label.clone(), content, tree.children(), depth + 1, own);
        }
        self.nodes[own].end = self.nodes.len();
        let Node { totals, .. } = self.nodes[own];
        if parent != own {
            self.nodes[parent].totals += totals;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn at(&self, row: usize) -> usize {
        self.rows.get(row).copied().unwrap_or_default()
    }

    pub(super) fn node(&self, number: usize) -> &Node<'a> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &self.nodes[number]
    }

    /// Returns the types and totals of the tensors in a node, or of the tensor that it is.
    pub(super) fn tensors_in(
        &self,
        number: usize,
    ) -> impl Iterator<Item = (other::Kind<'a>, Totals)> {
        self.nodes[number..self.nodes[number].end].iter().filter_map(|node| match node.kind {
            Kind::Tensor(tensor) => Some((tensor.kind(), node.totals)),
            _ => None,
        })
    }

    pub(super) fn is_module(&self, number: usize) -> bool {
        self.nodes[number].end > number + 1
    }

    pub(super) fn is_open(&self, number: usize) -> bool {
        self.nodes[number].is_open
    }

    pub(super) fn set_open(&mut self, number: usize, is_open: bool) {
        if self.is_module(number) {
            self.nodes[number].is_open = is_open;
            self.refresh();
        }
    }

    /// Opens or closes everything inside, but keeps the checkpoint open.
    pub(super) fn set_all_open(&mut self, number: usize, is_open: bool) {
        let end = self.nodes[number].end;
        self.nodes[number..end].iter_mut().for_each(|node| node.is_open = is_open);
        self.nodes[0].is_open = true;
        self.refresh();
    }

    /// The checkpoint is its own parent.
    pub(super) fn parent(&self, number: usize) -> usize {
        self.nodes[number].parent
    }

    /// Returns the common start of the names in a module.
    pub(super) fn path_of(&self, number: usize) -> String {
        let mut labels = Vec::new();
        let mut up = number;
        while up != 0 {
            labels.push(self.nodes[up].label.as_ref());
            up = self.nodes[up].parent;
        }
        labels.reverse();
        labels.join(self.separator.encode_utf8(&mut [0; 4]))
    }

    /// Returns the row of a node, or of the closed module that it is in.
    pub(super) fn row_of(&self, mut number: usize) -> usize {
        loop {
            if let Ok(row) = self.rows.binary_search(&number) {
                return row;
            }
            if number == 0 {
                return 0;
            }
            number = self.nodes[number].parent;
        }
    }

    pub(super) fn reveal(&mut self, number: usize) {
        let mut up = number;
        while up != 0 {
            up = self.nodes[up].parent;
            self.nodes[up].is_open = true;
        }
        self.refresh();
    }

    /// Shows only tensors with this text, in open modules, and returns their number. Small letters
    /// also match capitals; an empty text restores the earlier view.
    pub(super) fn filter(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            if let Some(before) = self.before_filter.take() {
                self.nodes.iter_mut().zip(before).for_each(|(node, open)| node.is_open = open);
            }
            self.nodes.iter_mut().for_each(|node| node.is_shown = true);
            self.refresh();
            return self.nodes[0].totals.tensors;
        }
        if self.before_filter.is_none() {
            self.before_filter = Some(self.nodes.iter().map(|node| node.is_open).collect());
        }
        let search = Search::new(text);
        let mut found = 0;
        for node in &mut self.nodes {
            node.is_shown = matches!(&node.kind, Kind::Tensor(it) if search.is_in(it.info.name()));
            node.is_open = false;
            found += u64::from(node.is_shown);
        }
        self.nodes[0].is_shown = true;
        // Backwards, so that a module comes after everything inside.
        for number in (1..self.nodes.len()).rev() {
            if self.nodes[number].is_shown {
                let parent = self.nodes[number].parent;
                self.nodes[parent].is_shown = true;
                self.nodes[parent].is_open = true;
            }
        }
        self.refresh();
        found
    }

    /// Returns the first shown tensor at or after a node, otherwise the first of all.
    pub(super) fn first_shown_from(&self, number: usize) -> Option<usize> {
        let is_found = |&at: &usize| {
            self.nodes[at].is_shown && matches!(self.nodes[at].kind, Kind::Tensor(..))
        };
        (number..self.nodes.len()).find(is_found).or_else(|| (0..number).find(is_found))
    }

    fn refresh(&mut self) {
        self.rows.clear();
        let mut number = 0;
        while let Some(node) = self.nodes.get(number) {
            if node.is_shown {
                self.rows.push(number);
            }
            number = if node.is_shown && node.is_open { number + 1 } else { node.end };
        }
    }
}

/// The empty text finds nothing.
#[derive(Debug)]
pub(super) struct Search(Option<Regex>);

impl Search {
    /// Ignores case if the text has no capitals.
    pub(super) fn new(text: &str) -> Self {
        let mut regex = RegexBuilder::new(&regex::escape(text));
        let regex = regex.case_insensitive(!text.contains(char::is_uppercase)).build();
        // Only a text that is longer than any name is no expression.
        Self(regex.ok().filter(|_| !text.is_empty()))
    }

    pub(super) fn is_in(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub(super) fn find(&self, name: &str) -> Option<Range<usize>> {
        Some(self.0.as_ref()?.find(name)?.range())
    }
}
