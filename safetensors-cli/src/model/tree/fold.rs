//! Folds layers of the same structure into one.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use hashbrown::HashTable;

use super::Tree;
use crate::input::other::Kind;
use crate::model::order::number;

/// Folds siblings that differ only in the number at the start of their labels. The folded tree
/// takes the place of the first of them.
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

/// For each sibling, the position of the first one of the same structure, which may be its own.
/// Nothing else is kept of each sibling, because there may be a million.
fn firsts(trees: &[Tree<'_>]) -> Vec<u32> {
    let hasher = RandomState::new();
    let unlabelled = |i: u32| {
        let tree = &trees[i as usize];
        leading_number(tree).map(|(_, rest)| Unlabelled { rest, tree })
    };
    let mut table: HashTable<u32> = HashTable::new();
    let first = |i: u32| {
        let Some(own) = unlabelled(i) else { return i };
        let is_alike = |&other: &u32| unlabelled(other).as_ref() == Some(&own);
        let hash_of = |&other: &u32| hasher.hash_one(unlabelled(other));
        *table.entry(hasher.hash_one(Some(&own)), is_alike, hash_of).or_insert(i).get()
    };
    // No checkpoint that fits in memory has 2³² tensors.
    (0..u32::try_from(trees.len()).unwrap_or(u32::MAX)).map(first).collect()
}

/// Splits a label into the number that it starts with and the rest. There is a rest where a module
/// was joined with its only child.
fn leading_number<'t>(tree: &'t Tree<'_>) -> Option<(u64, &'t str)> {
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
struct Unlabelled<'t, 'a> {
    rest: &'t str,
    tree: &'t Tree<'a>,
}

/// Returns the part of a tensor's description that is compared.
fn kind<'a>(tree: &Tree<'a>) -> Option<(Kind<'a>, &'a [usize])> {
    Some((tree.kind()?, tree.shape()?))
}

impl PartialEq for Unlabelled<'_, '_> {
    fn eq(&self, other: &Self) -> bool {
        let (inside, others) = (self.tree.children(), other.tree.children());
        let same = |(a, b): (&Tree<'_>, &Tree<'_>)| {
            a.label == b.label
                && Unlabelled { rest: "", tree: a } == Unlabelled { rest: "", tree: b }
        };
        self.rest == other.rest
            && self.tree.copies == other.tree.copies
            && kind(self.tree) == kind(other.tree)
            && inside.len() == others.len()
            && inside.iter().zip(others).all(same)
    }
}

impl Eq for Unlabelled<'_, '_> {}

impl Hash for Unlabelled<'_, '_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rest.hash(state);
        self.tree.copies.hash(state);
        kind(self.tree).hash(state);
        self.tree.children().len().hash(state);
        for child in self.tree.children() {
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
