//! The data of a page, as JSON.
//!
//! For many tensors it is short: a tensor is a label and three numbers, its kind (dtype and shape),
//! file and group, -1 for none. A module is a label, the list of its content, and its group.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::ser::{Serialize, Serializer};

use super::super::groups::{Groups, path_of};
use super::Page;
use crate::input;
use crate::input::other::{self, DisplayedTensor, Kind};
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::terminal::json::Escaping;
use crate::terminal::text;

const MOST_ENTRIES: usize = 1000;

const MOST_OF_VALUE: usize = 20_000;

#[derive(serde::Serialize)]
struct Data<'d, 'a> {
    title: String,
    separator: char,
    tensors: u64,
    parameters: String,
    bytes: f64,
    /// Name, tensors, parameters, bytes.
    dtypes: Vec<(&'d str, u64, f64, f64)>,
    /// Name, bytes.
    groups: Vec<(String, f64)>,
    by_module: bool,
    /// The position in `dtypes`, the shape, parameters, bytes.
    kinds: Vec<(usize, String, u128, u128)>,
    /// Name, tensors, bytes.
    files: Vec<(String, usize, u64)>,
    more_files: usize,
    index: Option<String>,
    metadata: Vec<(String, String)>,
    more_metadata: usize,
    tree: Nodes<'d, 'a>,
}

/// Positions in `kinds`, by type, shape and number of parameters.
type Kinds<'a> = HashMap<(Kind<'a>, &'a [usize], u128), usize>;

fn kinds<'p>(page: &Page<'p>) -> (Kinds<'p>, Vec<(usize, String, u128, u128)>) {
    let (mut kinds, mut list) = (Kinds::new(), Vec::new());
    for tensor in page.tensors {
        let shown = DisplayedTensor::new(tensor);
        let kind = shown.kind();
        let parameters = page.parameters.count(shown).into();
        kinds.entry((kind, shown.shape(), parameters)).or_insert_with(|| {
            let dtype = page.dtypes.keys().position(|it| *it == kind).unwrap_or_default();
            list.push((dtype, text::shape(shown.shape()), parameters, shown.byte_len().into()));
            list.len() - 1
        });
    }
    (kinds, list)
}

/// Writes JSON without `<`, `>` and `&`.
pub(super) fn write(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    let (kinds, list) = kinds(page);
    let all: Totals = page.dtypes.values().copied().sum();
    let (files, metadata) = (page.checkpoint.files(), page.checkpoint.metadata());
    let data = Data {
        title: text::escaped(page.title).to_string(),
        separator: page.trees.first().map_or('.', |tree| tree.separator),
        tensors: all.tensors,
        parameters: text::count(all.parameters),
        bytes: all.bytes as f64,
        dtypes: page
            .dtypes
            .iter()
            .map(|(kind, totals)| {
                let Totals { tensors, parameters, bytes } = *totals;
                (kind.name(), tensors, parameters as f64, bytes as f64)
            })
            .collect(),
        groups: page.groups.map_or_else(Vec::new, |groups| {
            let groups = groups.list.iter();
            groups.map(|it| (text::short(&it.name), it.totals.bytes as f64)).collect()
        }),
        by_module: page.is_by_module && page.groups.is_some(),
        kinds: list,
        files: files
            .iter()
            .take(MOST_ENTRIES)
            .map(|file| {
                let name = input::shard_name(page.checkpoint, file.path());
                let archive = file.safetensors();
                (name, archive.header().len(), other::file_len(archive.source()))
            })
            .collect(),
        more_files: files.len().saturating_sub(MOST_ENTRIES),
        index: page.checkpoint.index_path().map(text::path),
        metadata: metadata
            .iter()
            .take(MOST_ENTRIES)
            .map(|(key, value)| (text::short(key), text::value_within(value, MOST_OF_VALUE)))
            .collect(),
        more_metadata: metadata.len().saturating_sub(MOST_ENTRIES),
        tree: Nodes { trees: page.trees, path: "", kinds: &kinds, groups: page.groups },
    };
    // In JSON these characters are only in strings.
    Ok(serde_json::to_writer(Escaping(out, is_markup), &data)?)
}

struct Node<'d, 'a> {
    tree: &'d Tree<'a>,
    around: &'d Nodes<'d, 'a>,
}

impl Serialize for Node<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tree, around: Nodes { path, kinds, groups, .. } } = *self;
        let path = path_of(path, tree);
        let group = groups.and_then(|groups| groups.position(&path));
        let group = group.map_or(-1, |group| group as i64);
        let label = text::short(&tree.label);
        if let Some((tensor, file)) = tree.tensor().zip(tree.file_index()) {
            let kind = (tensor.kind(), tensor.shape(), tree.totals().parameters);
            let kind = kinds.get(&kind).copied().unwrap_or_default();
            return (label, kind, file, group).serialize(serializer);
        }
        let inside = Nodes { trees: tree.children(), path: &path, ..*self.around };
        (label, inside, group).serialize(serializer)
    }
}

/// The content of the module `path`. Each becomes a node when it is written.
struct Nodes<'d, 'a> {
    trees: &'d [Tree<'a>],
    path: &'d str,
    kinds: &'d Kinds<'a>,
    groups: Option<&'d Groups>,
}

impl Serialize for Nodes<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.trees.iter().map(|tree| Node { tree, around: self }))
    }
}

/// Returns `true` for characters that delimit something in HTML.
fn is_markup(c: char) -> bool {
    matches!(c, '<' | '>' | '&')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_element() {
        let hostile = "</script><!--<script>&amp;";
        let mut json = Vec::new();
        serde_json::to_writer(Escaping(&mut json, is_markup), hostile).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }
}
