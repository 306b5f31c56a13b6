//! Reads the table of dtypes from the documentation of the root package. The suite fails if a
//! framework holds a dtype in another way than the table says.

use safetensors_bridge::Dtype;
use safetensors_bridge::framework::Support;

/// Returns the column of a framework: every dtype in the table, and how the framework holds it.
pub(crate) fn documented(framework: &str) -> Vec<(Dtype, Support)> {
    column(include_str!("../../../../src/lib.rs"), framework)
}

/// Returns the rows of a Markdown table with dtypes in the first cell, in the column with this
/// heading. The table may be in a doc comment (`//!`).
fn column(text: &str, heading: &str) -> Vec<(Dtype, Support)> {
    let mut column = None;
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(line) = line.trim_start_matches("//! ").strip_prefix('|') else {
            column = None;
            continue;
        };
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        column = column.or_else(|| cells.iter().position(|&cell| cell == heading));
        let Some(cell) = column.and_then(|column| cells.get(column)) else { continue };
        // Rows without dtypes in the first cell are about operations.
        let dtypes: Option<Vec<_>> = cells[0].split(", ").map(dtype).collect();
        found.extend(dtypes.into_iter().flatten().map(|dtype| (dtype, support(cell))));
    }
    found
}

/// Returns the meaning of a cell: `✓` and `the same` are exact, `as X` and `X` are widened. A
/// remark may follow.
fn support(cell: &str) -> Support {
    let words: Vec<_> = cell.split([' ', ',']).collect();
    match words.as_slice() {
        ["✓", ..] | ["the", "same", ..] => Support::Exact,
        ["as", to, ..] | [to, ..] => {
            Support::Widened(dtype(to).unwrap_or_else(|| panic!("{cell:?} names no dtype")))
        }
        [] => panic!("a cell of the table of dtypes is empty"),
    }
}

fn dtype(name: &str) -> Option<Dtype> {
    Dtype::ALL.iter().copied().find(|dtype| dtype.name() == name)
}

/// The adapters' own pages have the same table in other words.
#[test]
fn adapters_document_the_dtypes_like_the_root_package() {
    let candle = include_str!("../../../../safetensors-candle/src/lib.rs");
    let burn = include_str!("../../../../safetensors-burn/src/lib.rs");
    for (framework, text) in [("candle", candle), ("burn", burn)] {
        let sorted = |mut column: Vec<(Dtype, Support)>| {
            column.sort_by_key(|(dtype, _)| dtype.name());
            column
        };
        let own = sorted(column(text, &format!("in {framework}")));
        assert_eq!(own, sorted(documented(framework)), "{framework}");
        assert_eq!(own.len(), Dtype::ALL.len(), "{framework}");
    }
}

#[test]
fn a_column_of_a_table_is_parsed() {
    let text = "| | one | two |\n|---|---|---|\n| load | ✓ | ✓ |\n\
        | U8, F32 | ✓ (stored) | as F64, if it fits |\n\n| I8 | ✓ | ✓ |";
    assert_eq!(column(text, "one"), [(Dtype::U8, Support::Exact), (Dtype::F32, Support::Exact)]);
    let widened = Support::Widened(Dtype::F64);
    assert_eq!(column(text, "two"), [(Dtype::U8, widened), (Dtype::F32, widened)]);
    assert_eq!(column(text, "three"), []);
}
