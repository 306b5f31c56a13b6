//! Checks between tensors: no holes, overlaps or duplicate names.

use super::model::Header;
use crate::format::error::{Error, ErrorKind, Result};

/// Sorts the records into file order, indexes the names and checks the layout.
pub(super) fn finish(mut header: Header) -> Result<Header> {
    let end_of_each_is_begin_of_next = header
        .records
        .iter()
        .try_fold(0, |expected, record| (record.begin == expected).then_some(record.end));
    if let Some(data_len) = end_of_each_is_begin_of_next {
        // The usual case: the records are in file order and without holes, so nothing needs
        // sorting.
        index_names(&mut header)?;
        header.data_len = data_len;
        return Ok(header);
    }
    // The end is part of the key, so that an empty tensor comes before a tensor that begins at the
    // same offset.
    header.records.sort_by_key(|record| (record.begin, record.end));
    index_names(&mut header)?;
    header.data_len = check_layout(&header)?;
    Ok(header)
}

fn index_names(header: &mut Header) -> Result<()> {
    let Header { names, records, table, .. } = header;
    let name_at = |position: usize| &names[records[position].name.range()];
    table.reserve(records.len(), name_at);
    for position in 0..records.len() {
        let name = name_at(position);
        if !table.insert(name, position, name_at) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
    }
    Ok(())
}

/// Returns the length of the data, without holes or overlaps.
fn check_layout(header: &Header) -> Result<u64> {
    let mut expected = 0;
    let mut before = None;
    for (position, record) in header.records.iter().enumerate() {
        let begin = record.begin;
        let end = record.end;
        if begin != expected {
            let kind = match before {
                _ if begin == end => ErrorKind::EmptyOffBoundary { expected, found: begin },
                _ if begin > expected => ErrorKind::Hole { expected, found: begin },
                Some((other, range)) if range == (begin, end) => {
                    ErrorKind::SameRange { other: header.name_at(other).into(), begin, end }
                }
                Some((other, _)) => ErrorKind::Overlap {
                    other: header.name_at(other).into(),
                    expected,
                    found: begin,
                },
                // No tensor comes before the first, so it cannot begin below zero.
                None => ErrorKind::Hole { expected, found: begin },
            };
            return Err(Error::from(kind).in_tensor(header.name_at(position)));
        }
        if begin != end {
            before = Some((position, (begin, end)));
        }
        expected = end;
    }
    Ok(expected)
}
