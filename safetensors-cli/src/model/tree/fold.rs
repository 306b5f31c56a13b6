//! Folds layers of the same structure into one.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::Tree;
use crate::model::order::number;

/// Folds siblings that differ only in the number at the start of their labels.
pub(super) fn fold_alike(mut trees: Vec<Tree<'_>>) -> Vec<Tree<'_>> {
    let firsts = firsts(&trees);
    let mut numbers: HashMap<usize, Vec<u64>> = HashMap::new();
    let number = |i: usize| leading_number(&trees[i]).map_or(0, |(number, _)| number);
    for (i, &first) in firsts.iter().enumerate().filter(|&(i, &first)| first as usize != i) {
        let first = first as usize;
        numbers.entry(first).or_insert_with(|| vec![number(first)]).push(number(i));
    }
    if numbers.is_empty() {
        return trees;
    }
    let mut i = 0..;
    trees.retain_mut(|tree| {
        let stays = |&i: &usize| firsts.get(i).is_none_or(|&first| first as usize == i);
        let Some(i) = i.next().filter(stays) else { return false };
        if let Some(numbers) = numbers.get(&i) {
            let rest = leading_number(tree).map_or("", |(_, rest)| rest);
            tree.label = format!("{}{rest}", ranges(numbers)).into();
            tree.copies =
                tree.copies.saturating_mul(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        }
        true
    });
    trees
}

/// Returns for each sibling the first one of the same structure.
// Little else is kept, because there may be a million.
fn firsts(trees: &[Tree<'_>]) -> Vec<u32> {
    let mut found = HashMap::new();
    // No checkpoint that fits in memory has 2³² tensors.
    let first = |(i, tree)| match leading_number(tree) {
        Some((_, label)) => *found.entry(Labelled { label, tree }).or_insert(i),
        None => i,
    };
    (0..).zip(trees).map(first).collect()
}

/// Splits a label after its number. A rest follows if a module was joined with its only child.
fn leading_number<'t>(tree: &'t Tree<'_>) -> Option<(u64, &'t str)> {
    let end = tree.label.find(tree.separator).unwrap_or(tree.label.len());
    let (first, rest) = tree.label.split_at(end);
    Some((number(first)?, rest))
}

/// Displays ascending numbers as ranges: `0…2, 5, 7…9`.
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

/// A tree to compare by another label.
struct Labelled<'t, 'a> {
    label: &'t str,
    tree: &'t Tree<'a>,
}

impl Labelled<'_, '_> {
    /// All that is compared but the content.
    fn own(&self) -> impl Hash + PartialEq {
        let tensor = self.tree.tensor().map(|tensor| (tensor.kind(), tensor.shape()));
        (self.label, self.tree.copies, tensor, self.tree.children().len())
    }

    fn children(&self) -> impl Iterator<Item = Self> {
        self.tree.children().iter().map(|tree| Self { label: &tree.label, tree })
    }
}

impl PartialEq for Labelled<'_, '_> {
    fn eq(&self, other: &Self) -> bool {
        self.own() == other.own() && self.children().eq(other.children())
    }
}

impl Eq for Labelled<'_, '_> {}

impl Hash for Labelled<'_, '_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.own().hash(state);
        self.children().for_each(|child| child.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_numbers_are_abbreviated() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0…2, 5, 7…8");
        assert_eq!(ranges(&[0, 2, 4, 6, 8, 10, 12]), "0, 2, 4, 6, 8, 10, …");
    }
}
