//! What holds between the tensors of a header: one place for each, no holes, no overlaps, no name
//! twice.

use super::model::Header;
use crate::error::{Error, ErrorKind, Result};

/// Puts the records of a freshly parsed header in file order, indexes the names and checks the
/// layout.
pub(super) fn finish(mut header: Header) -> Result<Header> {
    let end_of_each_is_begin_of_next = header
        .records
        .iter()
        .try_fold(0, |expected, record| (record.begin == expected).then_some(record.end));
    if let Some(data_len) = end_of_each_is_begin_of_next {
        // Then the layout is right, and the records are in order already.
        index_names(&mut header)?;
        header.data_len = data_len;
        return Ok(header);
    }
    // A tensor without bytes comes before the one that begins where it lies.
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

/// Checks that the tensors, in file order, cover the data without holes and overlaps, and returns
/// its length.
fn check_layout(header: &Header) -> Result<u64> {
    let mut expected = 0;
    let mut before = None;
    for (position, record) in header.records.iter().enumerate() {
        let (begin, end) = (record.begin, record.end);
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
                // Nothing lies before the first tensor, so it cannot begin below zero.
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
