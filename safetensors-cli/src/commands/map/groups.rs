//! [`Groups`]: the modules that get a separate colour.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::palette;
use crate::model::totals::Totals;
use crate::model::tree::Tree;

/// A module with less than this part of all bytes has no colour.
const SMALLEST: u128 = 50;

/// A module with more than this part of all bytes is divided, if colours are left.
const LARGEST: u128 = 4;

/// The largest first. Equal modules of several layers are one group: `layers.7.mlp` is in
/// `layers.*.mlp`.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) list: Vec<Group>,
    positions: HashMap<String, usize>,
}

#[derive(Debug)]
pub(super) struct Group {
    /// The path after a layer's number, or if that is ambiguous, after the common start.
    pub(super) name: String,
    pub(super) totals: Totals,
}

struct PathTrees<'t, 'a> {
    path: String,
    trees: Vec<&'t Tree<'a>>,
    totals: Totals,
    is_final: bool,
}

impl Groups {
    /// Returns `None` below two groups.
    pub(super) fn find(trees: &[Tree<'_>]) -> Option<Self> {
        let mut parts = gather("", trees);
        let all = parts.iter().map(|part| part.totals).sum::<Totals>().bytes;
        let is_shown = |part: &PathTrees<'_, '_>| part.totals.bytes * SMALLEST >= all;
        let count =
            |parts: &[PathTrees<'_, '_>]| parts.iter().filter(|part| is_shown(part)).count();
        // The largest module is divided until enough colours are used.
        while let Some(largest) = parts
            .iter_mut()
            .filter(|part| !part.is_final && part.totals.bytes * LARGEST > all)
            .max_by_key(|part| part.totals.bytes)
        {
            let inside = largest.inside();
            largest.is_final = true;
            let path = largest.path.clone();
            if count(&inside) > 0 && count(&parts) - 1 + count(&inside) <= palette::GROUPS.len() {
                parts.retain(|part| part.path != path);
                parts.extend(inside);
            }
        }
        parts.retain(is_shown);
        parts.sort_by_cached_key(|part| (Reverse(part.totals.bytes), part.path.clone()));
        parts.truncate(palette::GROUPS.len());
        if parts.len() < 2 {
            return None;
        }
        let separator = trees.first().map_or('.', |tree| tree.separator);
        let shared = shared_start(parts.iter().map(|part| part.path.as_str()), separator);
        let layer = format!("*{separator}");
        let in_layer = |path: &str| path.rfind(&layer).map_or(0, |at| at + layer.len());
        let short: BTreeSet<_> =
            parts.iter().map(|part| &part.path[in_layer(&part.path).max(shared)..]).collect();
        let are_distinct = short.len() == parts.len();
        let group = |part: &PathTrees<'_, '_>| {
            let start = if are_distinct { in_layer(&part.path).max(shared) } else { shared };
            Group { name: part.path[start..].to_owned(), totals: part.totals }
        };
        let list = parts.iter().map(group).collect();
        let positions = parts.into_iter().enumerate().map(|(i, part)| (part.path, i)).collect();
        Some(Self { list, positions })
    }

    pub(super) fn position(&self, path: &str) -> Option<usize> {
        self.positions.get(path).copied()
    }
}

impl<'t, 'a> PathTrees<'t, 'a> {
    fn inside(&self) -> Vec<Self> {
        gather(&self.path, self.trees.iter().flat_map(|tree| tree.children()))
    }
}

fn gather<'t, 'a: 't>(
    parent: &str,
    trees: impl IntoIterator<Item = &'t Tree<'a>>,
) -> Vec<PathTrees<'t, 'a>> {
    let mut parts: BTreeMap<String, PathTrees<'t, 'a>> = BTreeMap::new();
    for tree in trees {
        let path = path_of(parent, tree);
        let part = parts.entry(path.clone()).or_insert_with(|| PathTrees {
            path,
            trees: Vec::new(),
            totals: Totals::default(),
            is_final: true,
        });
        part.totals += tree.totals();
        part.is_final &= tree.children().is_empty();
        part.trees.push(tree);
    }
    parts.into_values().collect()
}

/// Returns a module's path in `parent`, with `*` for each number.
pub(super) fn path_of(parent: &str, tree: &Tree<'_>) -> String {
    let mut path = String::with_capacity(parent.len() + tree.label.len() + 1);
    path.push_str(parent);
    for part in tree.label.split(tree.separator) {
        if !path.is_empty() {
            path.push(tree.separator);
        }
        let is_layer = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        path.push_str(if is_layer { "*" } else { part });
    }
    path
}

/// Returns the length of the first parts that all paths share. Each path keeps its last part.
fn shared_start<'p>(paths: impl Iterator<Item = &'p str> + Clone, separator: char) -> usize {
    let Some(first) = paths.clone().next() else { return 0 };
    let ends = first.match_indices(separator).map(|(at, _)| at + separator.len_utf8());
    ends.take_while(|&end| paths.clone().all(|path| path.get(..end) == first.get(..end)))
        .last()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};

    use super::*;
    use crate::model::order::Sort;
    use crate::model::totals::Parameters;

    fn groups(tensors: &[(String, usize)]) -> Option<Vec<(String, u128)>> {
        let data = vec![0_u8; tensors.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default()];
        let views = tensors.iter().map(|(name, bytes)| {
            (name, TensorView::from_slice(std::slice::from_ref(bytes), &data[..*bytes]).unwrap())
        });
        let file = serialize(views, &SaveOptions::new()).unwrap();
        let archive = SafeTensors::parse(file).unwrap();
        let mut tensors: Vec<_> = archive.tensors().collect();
        let groups =
            Groups::find(&Tree::build(&mut tensors, &Parameters::default(), Sort::Name, false))?;
        for (i, group) in groups.list.iter().enumerate() {
            assert!(
                groups.positions.iter().any(|(path, &at)| at == i && path.ends_with(&group.name))
            );
        }
        Some(groups.list.into_iter().map(|group| (group.name, group.totals.bytes)).collect())
    }

    fn llama() -> Vec<(String, usize)> {
        let mut tensors = vec![("model.embed.weight".into(), 500), ("lm_head.weight".into(), 500)];
        for i in 0..8 {
            let layer = |name: &str| format!("model.layers.{i}.{name}.weight");
            tensors.extend([(layer("mlp.up"), 250), (layer("mlp.down"), 250), (layer("norm"), 1)]);
            tensors.extend([(layer("attn.q"), 100), (layer("attn.o"), 100)]);
        }
        tensors
    }

    #[test]
    fn modules_are_divided_until_the_colours_are_used() {
        let expected = [
            ("mlp.down.weight", 2000),
            ("mlp.up.weight", 2000),
            ("attn", 1600),
            ("lm_head.weight", 500),
            ("model.embed.weight", 500),
        ];
        let expected: Vec<_> = expected.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        assert_eq!(groups(&llama()), Some(expected));
    }

    #[test]
    fn a_shared_start_of_names_is_omitted() {
        let tensors = [("m.x.a.w".into(), 9), ("m.x.b.w".into(), 8), ("m.tiny".into(), 0)];
        let expected = vec![("a.w".to_owned(), 9), ("b.w".to_owned(), 8)];
        assert_eq!(groups(&tensors), Some(expected));
    }

    #[test]
    fn groups_of_several_stacks_keep_their_paths() {
        let tensors = ["encoder.0.w", "encoder.1.w", "decoder.0.w", "decoder.1.w"];
        let tensors: Vec<_> = tensors.map(|name| (name.to_owned(), 4)).into();
        let expected = vec![("decoder.*.w".to_owned(), 8), ("encoder.*.w".to_owned(), 8)];
        assert_eq!(groups(&tensors), Some(expected));
    }

    #[test]
    fn one_tensor_or_a_thousand_alike_have_no_groups() {
        assert_eq!(groups(&[("w".into(), 1)]), None);
        let flat: Vec<_> = (0..1000).map(|i| (format!("t{i}"), 1)).collect();
        assert_eq!(groups(&flat), None);
    }
}
