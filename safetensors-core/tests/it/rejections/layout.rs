//! The layout of the data: tensors follow each other, without holes or overlaps.

use super::{file, rejects_file};
use crate::support::*;

/// A file with U8 tensors at these ranges, and data up to the last end.
fn tensors(ranges: &[(&str, u64, u64)]) -> Vec<u8> {
    let entry = |(name, begin, end): &(&str, u64, u64)| {
        format!(
            r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
            end - begin
        )
    };
    let entries: Vec<_> = ranges.iter().map(entry).collect();
    let data = ranges.iter().map(|(_, _, end)| *end).max().unwrap_or(0);
    file(format!("{{{}}}", entries.join(",")), data as usize)
}

#[test]
fn hole() {
    for (rule, ranges, tensor, expected, found) in [
        ("in front", &[("a", 2, 4)][..], "a", 0, 2),
        ("in the middle", &[("a", 0, 2), ("b", 3, 4)], "b", 2, 3),
        ("in the middle, the later tensor first", &[("b", 3, 4), ("a", 0, 2)], "b", 2, 3),
        ("after a tensor without bytes", &[("a", 0, 2), ("z", 2, 2), ("b", 3, 4)], "b", 2, 3),
        ("in front, after a tensor without bytes", &[("z", 0, 0), ("b", 3, 4)], "b", 0, 3),
    ] {
        let says = ["a hole", &format!("begin at {expected}"), &format!("begins at {found}")];
        rejects_file(
            rule,
            &tensors(ranges),
            Some(tensor),
            ErrorKind::Hole { expected, found },
            &says,
        );
    }
}

#[test]
fn overlap() {
    for (rule, ranges, tensor, other, expected, found) in [
        ("partial", &[("a", 0, 4), ("b", 2, 6)][..], "b", "a", 4, 2),
        ("by one byte", &[("a", 0, 4), ("b", 3, 6)], "b", "a", 4, 3),
        ("the later tensor first", &[("b", 2, 6), ("a", 0, 4)], "b", "a", 4, 2),
        ("nested", &[("a", 0, 8), ("b", 2, 4)], "b", "a", 8, 2),
        ("nested, with one begin", &[("a", 0, 8), ("b", 0, 4)], "a", "b", 4, 0),
        ("nested, with one end", &[("a", 0, 8), ("b", 4, 8)], "b", "a", 8, 4),
        ("with another tensor after", &[("a", 0, 4), ("b", 2, 6), ("c", 6, 8)], "b", "a", 4, 2),
    ] {
        let says = [&format!("{other:?} ends at {expected}"), &format!("begins at {found}")];
        let kind = ErrorKind::Overlap { other: other.into(), expected, found };
        rejects_file(rule, &tensors(ranges), Some(tensor), kind, &says.map(|part| part as &str));
    }
}

#[test]
fn two_tensors_on_one_range() {
    for (rule, ranges, tensor, other, begin, end) in [
        ("alone", &[("a", 0, 4), ("b", 0, 4)][..], "b", "a", 0, 4),
        ("after another", &[("x", 0, 2), ("b", 2, 4), ("a", 2, 4)], "a", "b", 2, 4),
    ] {
        let says = [&format!("[{begin}, {end}]"), &format!("the same as {other:?}")];
        let kind = ErrorKind::SameRange { other: other.into(), begin, end };
        rejects_file(rule, &tensors(ranges), Some(tensor), kind, &says.map(|part| part as &str));
    }
}

#[test]
fn zero_size_tensor_off_a_boundary() {
    let file_ending_at = |data, ranges: &[(&str, u64, u64)]| {
        // A tensor past the end needs no data, so the data that `tensors` added for it is cut off.
        let mut bytes = tensors(ranges);
        let beyond = ranges.iter().map(|range| range.2).max().unwrap_or(0) - data;
        bytes.truncate(bytes.len() - beyond as usize);
        bytes
    };
    for (rule, data, ranges, expected, found) in [
        ("inside another", 4, &[("a", 0, 4), ("z", 2, 2)][..], 4, 2),
        ("inside another that is not the first", 8, &[("a", 0, 4), ("b", 4, 8), ("z", 5, 5)], 8, 5),
        ("past the end", 4, &[("a", 0, 4), ("z", 9, 9)], 4, 9),
        ("past the end of a file without data", 0, &[("z", 1, 1)], 0, 1),
    ] {
        let says =
            ["an empty tensor", &format!("such as at {expected}"), &format!("begins at {found}")];
        let kind = ErrorKind::EmptyOffBoundary { expected, found };
        rejects_file(rule, &file_ending_at(data, ranges), Some("z"), kind, &says);
    }
}
