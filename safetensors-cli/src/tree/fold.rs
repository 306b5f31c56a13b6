//! Folds layers of the same structure into one.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::Tree;
use crate::order::number;

/// Folds siblings that differ only in the number at the start of their labels.
pub(super) fn fold_alike(trees: Vec<Tree>) -> Vec<Tree> {
    // Each structure maps to its place in `folded`, which has the first tree of the structure and
    // the numbers of all trees of it.
    let mut groups: HashMap<Unlabelled<'_>, usize> = HashMap::new();
    let mut folded: Vec<(usize, Vec<u64>)> = Vec::new();
    for (i, tree) in trees.iter().enumerate() {
        let Some((number, rest)) = leading_number(tree) else {
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
            let rest = leading_number(&trees[i]).map_or("", |(_, rest)| rest);
            tree.label = format!("{}{rest}", ranges(&numbers));
            tree.copies *= numbers.len() as u64;
        }
        tree
    });
    folded.collect()
}

/// Splits a label into the number that it starts with and the rest. There is a rest where a module
/// was joined with its only child.
fn leading_number(tree: &Tree) -> Option<(u64, &str)> {
    let end = tree.label.find(tree.separator).unwrap_or(tree.label.len());
    let (first, rest) = tree.label.split_at(end);
    Some((number(first)?, rest))
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

/// A tree to compare without the number at the start of its label.
struct Unlabelled<'a> {
    rest: &'a str,
    tree: &'a Tree,
}

impl PartialEq for Unlabelled<'_> {
    fn eq(&self, other: &Self) -> bool {
        let children = || self.tree.children.len() == other.tree.children.len();
        let same = |(a, b): (&Tree, &Tree)| {
            a.label == b.label
                && Unlabelled { rest: "", tree: a } == Unlabelled { rest: "", tree: b }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_numbers() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0…2, 5, 7…8");
        assert_eq!(ranges(&[0, 2, 4, 6, 8, 10, 12]), "0, 2, 4, 6, 8, 10, …");
    }
}
