//! The data of a page, as JSON.
//!
//! A checkpoint may have a hundred thousand tensors. So a tensor is an array of a label and three
//! numbers: its kind (dtype and shape), its file and its group, -1 for none. A module is an array
//! of a label, the list of its content, and its group.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::super::groups::{Groups, path_of};
use super::Page;
use crate::input;
use crate::input::other;
use crate::input::other::Kind;
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::terminal::text;

/// The most metadata entries and files that a page lists.
const MOST_ENTRIES: usize = 1000;

/// The most characters of a metadata value.
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
    tree: Vec<Node<'d, 'a>>,
}

/// The position in `kinds` of each type, shape and number of parameters.
type Kinds<'a> = HashMap<(Kind<'a>, &'a [usize], u128), usize>;

/// Returns the kinds of all tensors, and the page's facts about each.
fn kinds<'p>(page: &Page<'p>) -> (Kinds<'p>, Vec<(usize, String, u128, u128)>) {
    let (mut kinds, mut list) = (Kinds::new(), Vec::new());
    for tensor in page.tensors {
        let kind = other::kind(tensor);
        let stored = other::stored(tensor);
        let shape = other::shape(tensor.info(), stored);
        let one = page.parameters.totals(tensor.info(), stored);
        kinds.entry((kind, shape, one.parameters)).or_insert_with(|| {
            let dtype = page.dtypes.keys().position(|it| *it == kind).unwrap_or_default();
            list.push((dtype, text::shape(shape), one.parameters, one.bytes));
            list.len() - 1
        });
    }
    (kinds, list)
}

fn shown_files(page: &Page<'_>) -> Vec<(String, usize, u64)> {
    let files = page.checkpoint.files().iter().take(MOST_ENTRIES).map(|file| {
        let archive = file.safetensors();
        let name = input::shard_name(page.checkpoint, file.path());
        (name, archive.header().len(), other::file_len(archive.source()))
    });
    files.collect()
}

/// Writes the JSON, without any `<`, `>` or `&`.
pub(super) fn write(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    let (kinds, list) = kinds(page);
    let all: Totals = page.dtypes.values().copied().sum();
    let sums = |totals: &Totals| (totals.tensors, totals.parameters as f64, totals.bytes as f64);
    let shown = PageContext { kinds: &kinds, groups: page.groups };
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
                let (tensors, parameters, bytes) = sums(totals);
                (kind.name(), tensors, parameters, bytes)
            })
            .collect(),
        groups: page
            .groups
            .iter()
            .flat_map(|groups| {
                groups
                    .list
                    .iter()
                    .map(|group| (text::short(&group.name), group.totals.bytes as f64))
            })
            .collect(),
        by_module: page.is_by_module && page.groups.is_some(),
        kinds: list,
        files: shown_files(page),
        more_files: files.len().saturating_sub(MOST_ENTRIES),
        index: page.checkpoint.index_path().map(text::path),
        metadata: metadata
            .iter()
            .take(MOST_ENTRIES)
            .map(|(key, value)| (text::short(key), text::value_within(value, MOST_OF_VALUE)))
            .collect(),
        more_metadata: metadata.len().saturating_sub(MOST_ENTRIES),
        tree: page.trees.iter().map(|tree| Node { tree, path: String::new(), shown }).collect(),
    };
    // In JSON these characters are only in strings.
    let mut out = Replace { out, from: b"<>&" };
    serde_json::to_writer(&mut out, &data)?;
    Ok(())
}

/// The context that all nodes need.
#[derive(Clone, Copy)]
struct PageContext<'d, 'a> {
    kinds: &'d Kinds<'a>,
    groups: Option<&'d Groups>,
}

/// A module or tensor, with the path of the module around it.
struct Node<'d, 'a> {
    tree: &'d Tree<'a>,
    path: String,
    shown: PageContext<'d, 'a>,
}

impl Serialize for Node<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tree, path, shown } = self;
        let path = path_of(path, tree);
        let group = shown.groups.and_then(|groups| groups.position(&path));
        let group = group.map_or(-1, |group| group as i64);
        let label = text::short(&tree.label);
        let mut node = serializer.serialize_seq(None)?;
        node.serialize_element(&label)?;
        let tensor = tree.kind().zip(tree.shape()).zip(tree.file_index());
        if let Some(((kind, shape), file)) = tensor {
            let kind = (kind, shape, tree.totals().parameters);
            node.serialize_element(&shown.kinds.get(&kind).copied().unwrap_or_default())?;
            node.serialize_element(&file)?;
        } else {
            node.serialize_element(&Children {
                nodes: tree.children(),
                path: &path,
                shown: *shown,
            })?;
        }
        node.serialize_element(&group)?;
        node.end()
    }
}

/// The content of a module. Each entry becomes a node when it is written.
struct Children<'d, 'a> {
    nodes: &'d [Tree<'a>],
    path: &'d str,
    shown: PageContext<'d, 'a>,
}

impl Serialize for Children<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = |tree| Node { tree, path: self.path.to_owned(), shown: self.shown };
        serializer.collect_seq(self.nodes.iter().map(node))
    }
}

/// Writes some ASCII characters as the escapes that JSON has for them.
struct Replace<'w, W> {
    out: &'w mut W,
    from: &'static [u8],
}

impl<W: Write> Write for Replace<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| self.from.contains(byte)) {
            match piece.split_last() {
                Some((last, before)) if self.from.contains(last) => {
                    self.out.write_all(before)?;
                    write!(self.out, "\\u{last:04x}")?;
                }
                _ => self.out.write_all(piece)?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_element() {
        let hostile = "</script><!--<script>&amp;";
        let mut json = Vec::new();
        let mut out = Replace { out: &mut json, from: b"<>&" };
        serde_json::to_writer(&mut out, hostile).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }
}
