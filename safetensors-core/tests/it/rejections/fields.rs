//! One entry of the header: its fields, numbers, dtype and shape.

use super::{file, rejects, rejects_file};
use crate::support::*;

/// A header with the tensor `a` and these fields, as JSON text.
fn entry(dtype: &str, shape: &str, data_offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{data_offsets}}}}}"#)
}

#[test]
fn entry_is_not_an_object() {
    for (value, found) in [
        (r#"["U8",[1],[0,1]]"#, "an array"),
        ("\"U8\"", "a string"),
        ("1", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
    ] {
        let header = format!(r#"{{"a":{value}}}"#);
        let kind = ErrorKind::EntryNotAnObject { found };
        rejects(header, 1, Some("a"), kind, &["should be an object", &format!("found {found}")]);
    }
}

#[test]
fn missing_field() {
    let fields = [
        ("dtype", r#""dtype":"U8""#),
        ("shape", r#""shape":[1]"#),
        ("data_offsets", r#""data_offsets":[0,1]"#),
    ];
    for (field, _) in fields {
        let others: Vec<_> =
            fields.iter().filter(|(name, _)| *name != field).map(|(_, text)| *text).collect();
        let header = format!(r#"{{"a":{{{}}}}}"#, others.join(","));
        rejects(header, 1, Some("a"), ErrorKind::MissingField { field }, &[field, "is missing"]);
    }
    let kind = ErrorKind::MissingField { field: "dtype" };
    rejects(r#"{"a":{}}"#, 0, Some("a"), kind, &["dtype", "is missing"]);
}

#[test]
fn unknown_field() {
    for found in ["extra", "Dtype", "dtype ", "", "strides"] {
        let header =
            format!(r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"{found}":1}}}}"#);
        let kind = ErrorKind::UnknownField { found: found.into() };
        let says = [&format!("{found:?}"), "dtype, shape and data_offsets"];
        rejects(header, 1, Some("a"), kind, &says.map(|part| part as &str));
    }
}

#[test]
fn field_of_another_type() {
    for (header, field, expected, found) in [
        (entry("1", "[1]", "[0,1]"), "dtype", "a string", "a number"),
        (entry("null", "[1]", "[0,1]"), "dtype", "a string", "null"),
        (entry("[\"U8\"]", "[1]", "[0,1]"), "dtype", "a string", "an array"),
        (entry("{\"U8\":null}", "[1]", "[0,1]"), "dtype", "a string", "an object"),
        (entry("\"U8\"", "1", "[0,1]"), "shape", "an array", "a number"),
        (entry("\"U8\"", "{}", "[0,1]"), "shape", "an array", "an object"),
        (entry("\"U8\"", "null", "[0,1]"), "shape", "an array", "null"),
        (entry("\"U8\"", "[\"1\"]", "[0,1]"), "shape", "unsigned integers", "a string"),
        (entry("\"U8\"", "[null]", "[0,1]"), "shape", "unsigned integers", "null"),
        (entry("\"U8\"", "[true]", "[0,1]"), "shape", "unsigned integers", "a boolean"),
        (
            entry("\"U8\"", "[1]", "{\"begin\":0,\"end\":1}"),
            "data_offsets",
            "an array",
            "an object",
        ),
        (entry("\"U8\"", "[1]", "\"0,1\""), "data_offsets", "an array", "a string"),
        (entry("\"U8\"", "[1]", "[0,\"1\"]"), "data_offsets", "unsigned integers", "a string"),
        (entry("\"U8\"", "[1]", "[]"), "data_offsets", "two unsigned integers", "none"),
        (entry("\"U8\"", "[1]", "[0]"), "data_offsets", "two unsigned integers", "one"),
        (entry("\"U8\"", "[1]", "[0,1,1]"), "data_offsets", "two unsigned integers", "more"),
    ] {
        let kind = ErrorKind::WrongType { field, expected, found };
        let says = [field, &format!("should be {expected}"), &format!("found {found}")];
        rejects(header, 1, Some("a"), kind, &says);
    }
}

#[test]
fn numbers_are_unsigned_plain_and_in_64_bits() {
    let wrong = "-1 -0 - 1.0 0.5 1. 1e0 1E0 1e+2 0e0 01 00 18446744073709551616 \
        18446744073709551615.0 99999999999999999999999";
    for found in wrong.split(' ') {
        for (field, header) in [
            ("shape", entry("\"U8\"", &format!("[{found}]"), "[0,1]")),
            ("data_offsets", entry("\"U8\"", "[1]", &format!("[{found},1]"))),
            ("data_offsets", entry("\"U8\"", "[1]", &format!("[0,{found}]"))),
        ] {
            let kind = ErrorKind::BadNumber { field, found: found.into() };
            let says =
                [field, "unsigned 64-bit integers in plain digits", &format!("found {found}")];
            rejects(header, 1, Some("a"), kind, &says);
        }
    }
}

/// A very long number is shortened in the message.
#[test]
fn a_very_long_number() {
    let digits = "9".repeat(1_000_000);
    let kind = ErrorKind::BadNumber { field: "shape", found: "9".repeat(32) };
    rejects(entry("\"U8\"", &format!("[{digits}]"), "[0,1]"), 1, Some("a"), kind, &["999"]);
}

/// The largest number is valid. The error is that no file is so long.
#[cfg(target_pointer_width = "64")]
#[test]
fn the_largest_number() {
    let header = entry("\"U8\"", "[18446744073709551615]", "[0,18446744073709551615]");
    let kind = ErrorKind::MissingData { expected: u64::MAX, found: 1 };
    rejects(
        header,
        1,
        Some("a"),
        kind,
        &["cut off: 18446744073709551614 of 18446744073709551615 bytes"],
    );

    let header = entry("\"U8\"", "[0]", "[18446744073709551615,18446744073709551615]");
    let kind = ErrorKind::EmptyOffBoundary { expected: 0, found: u64::MAX };
    rejects(header, 0, Some("a"), kind, &["such as at 0", "18446744073709551615"]);
}

#[test]
fn unknown_dtype() {
    for found in ["F128", "f32", "F32 ", "", "F8_E4M3FN", "float32", "BOOL\u{202e}"] {
        let header = entry(&format!("{found:?}").replace("\\u{202e}", "\u{202e}"), "[1]", "[0,1]");
        let kind = ErrorKind::UnknownDtype { found: found.into() };
        rejects(header, 1, Some("a"), kind, &["unknown dtype", &format!("{found:?}")]);
    }
}

#[cfg(target_pointer_width = "64")]
#[test]
fn shape_overflow() {
    for (rule, dtype, shape) in [
        ("the product", "U8", vec![1 << 32, 1 << 32]),
        ("the product of many", "U8", vec![3; 41]),
        ("the product, behind a zero", "U8", vec![1 << 32, 1 << 32, 0]),
        ("the product, after a zero", "U8", vec![0, 1 << 32, 1 << 32]),
        ("the bytes", "F64", vec![1 << 61]),
        ("the bytes, behind a zero", "F64", vec![1 << 61, 0]),
        ("the largest dimension twice", "U8", vec![usize::MAX, usize::MAX]),
        ("the largest dimension of two bytes", "F16", vec![usize::MAX]),
    ] {
        let header = entry(&format!("{dtype:?}"), &format!("{shape:?}"), "[0,0]");
        let shown = match shape.len() {
            41 => "[3, 3, 3, 3, ..., 3, 3, 3, 3] of 41 dimensions".to_owned(),
            _ => format!("{shape:?}"),
        };
        let says = [&*shown, "overflows 64 bits"];
        let kind = ErrorKind::ShapeOverflow { shape: shape.clone() };
        rejects_file(rule, &file(header, 0), Some("a"), kind, &says);
    }
}

#[test]
fn size_that_does_not_match_dtype_and_shape() {
    for (dtype, shape, begin, end, expected) in [
        (Dtype::U8, vec![2], 0, 1, 2),
        (Dtype::U8, vec![1], 0, 2, 1),
        (Dtype::F32, vec![2, 3], 0, 23, 24),
        (Dtype::F32, vec![], 0, 0, 4),
        (Dtype::F32, vec![3, 0], 0, 4, 0),
        (Dtype::C64, vec![1], 0, 4, 8),
        (Dtype::F4, vec![2], 0, 2, 1),
        (Dtype::F6_E2M3, vec![4], 0, 4, 3),
    ] {
        let found: u64 = end - begin;
        let header =
            entry(&format!("\"{dtype}\""), &format!("{shape:?}"), &format!("[{begin},{end}]"));
        let says = [
            dtype.name(),
            &format!("{shape:?}"),
            &format!("has {expected} bytes"),
            &format!("span {found}"),
        ];
        let kind = ErrorKind::WrongSize { dtype, shape: shape.clone(), expected, found };
        rejects(header, end as usize, Some("a"), kind, &says);
    }
}

#[test]
fn sub_byte_elements_must_fill_entire_bytes() {
    for (dtype, shape) in [
        (Dtype::F4, vec![]),
        (Dtype::F4, vec![3]),
        (Dtype::F4, vec![3, 5]),
        (Dtype::F6_E2M3, vec![2]),
        (Dtype::F6_E3M2, vec![3]),
    ] {
        let header = entry(&format!("\"{dtype}\""), &format!("{shape:?}"), "[0,1]");
        let says = [dtype.name(), &format!("{shape:?}"), "whole bytes"];
        let kind = ErrorKind::PartialByte { dtype, shape: shape.clone() };
        rejects(header, 1, Some("a"), kind, &says);
    }
}

#[test]
fn begin_after_end() {
    for (begin, end) in [(1, 0), (5, 4), (u64::MAX, 0)] {
        let header = entry("\"U8\"", "[1]", &format!("[{begin},{end}]"));
        let kind = ErrorKind::ReversedOffsets { begin, end };
        rejects(header, 1, Some("a"), kind, &[&format!("[{begin}, {end}]"), "before they begin"]);
    }
}
