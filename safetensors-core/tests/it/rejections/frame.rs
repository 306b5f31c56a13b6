//! The length field, and a file that does not match it.

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::header::Header;

use super::{file, rejects, rejects_file};
use crate::support::*;

const ONE: &str = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;

#[test]
fn fewer_than_eight_bytes() {
    for len in 0..8 {
        let kind = ErrorKind::TooShort { found: len as u64 };
        rejects_file(
            "fewer than 8 bytes",
            &vec![b'{'; len],
            None,
            kind,
            &["expected at least 8", &format!("found {len}")],
        );
    }
}

#[test]
fn a_length_over_the_limit() {
    for length in [100_000_001, 1 << 40, u64::MAX - 8, u64::MAX] {
        rejects_file(
            "N over the limit",
            &length.to_le_bytes(),
            None,
            ErrorKind::HeaderTooLarge { limit: 100_000_000, found: length },
            &["limit of 100000000", &length.to_string()],
        );
    }
}

#[test]
fn the_caller_can_lower_the_limit() {
    let bytes = file(ONE, 1);
    let mut limits = Limits::default();
    limits.header_bytes = ONE.len() as u64;
    assert!(Header::parse(&bytes, &limits).is_ok(), "at the limit");

    limits.header_bytes -= 1;
    let error = Header::parse(&bytes, &limits).unwrap_err();
    let (at_most, len) = (limits.header_bytes, ONE.len() as u64);
    assert!(
        matches!(error.kind(), ErrorKind::HeaderTooLarge { limit, found } if (*limit, *found) == (at_most, len))
    );

    let mut limits = Limits::default();
    limits.tensors = 1;
    let two = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert!(Header::parse(&bytes, &limits).is_ok(), "at the limit");
    let directory = tempdir().unwrap();
    let path = crate::support::write(directory.path(), "two.safetensors", file(two, 2));
    for error in [
        Header::parse(&file(two, 2), &limits).unwrap_err(),
        Checkpoint::open_in(LocalStore, path, &limits).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::TooManyTensors { limit: 1 }), "{error}");
        assert_eq!(error.tensor(), Some("b"), "the first that is one too many");
    }
}

#[test]
fn a_length_past_the_end() {
    rejects_file(
        "N past the end",
        &10_u64.to_le_bytes(),
        None,
        ErrorKind::HeaderPastEnd { expected: 10, found: 0 },
        &["cut off: 10 of 10 bytes of the header are missing"],
    );
    rejects_file(
        "N past the end, at the limit",
        &[&100_000_000_u64.to_le_bytes()[..], b"{}"].concat(),
        None,
        ErrorKind::HeaderPastEnd { expected: 100_000_000, found: 2 },
        &["cut off: 99999998 of 100000000 bytes of the header are missing"],
    );
    rejects_file(
        "N past the end by one",
        &[&3_u64.to_le_bytes()[..], b"{}"].concat(),
        None,
        ErrorKind::HeaderPastEnd { expected: 3, found: 2 },
        &["cut off: 1 of 3 bytes of the header are missing"],
    );
}

#[test]
fn a_length_of_zero() {
    rejects("", 0, None, ErrorKind::NotAnObject { found: None }, &["not a JSON object", "nothing"]);
    rejects("", 2, None, ErrorKind::NotAnObject { found: None }, &["nothing"]);
}

#[test]
fn not_utf_8() {
    for (bad, offset) in [
        (&b"\xff{}"[..], 0),
        (b"{\"\xc3\":1}", 2),
        // An overlong slash, a surrogate, and a code beyond the last character.
        (b"{\"ab\xc0\xaf\":1}", 4),
        (b"{\"ab\xed\xa0\x80\":1}", 4),
        (b"{\"ab\xf4\x90\x80\x80\":1}", 4),
        // A character that the end of the header cuts.
        (b"{}\xc3", 2),
    ] {
        rejects(bad, 0, None, ErrorKind::NotUtf8 { offset }, &["not UTF-8", &offset.to_string()]);
    }
}

#[test]
fn bytes_after_the_last_tensor() {
    rejects(
        ONE,
        3,
        None,
        ErrorKind::TrailingData { expected: 1, found: 3 },
        &["have 1 bytes", "but 3 follow"],
    );
    rejects(
        "{}",
        1,
        None,
        ErrorKind::TrailingData { expected: 0, found: 1 },
        &["have 0 bytes", "but 1 follow"],
    );
}

#[test]
fn missing_bytes() {
    let two = r#"{"whole":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                  "cut":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
    for data in 2..6 {
        rejects(
            two,
            data,
            Some("cut"),
            ErrorKind::MissingData { expected: 6, found: data as u64 },
            &[&format!("cut off: {} of 6 bytes of the tensors are missing", 6 - data)],
        );
    }
    rejects(
        two,
        1,
        Some("whole"),
        ErrorKind::MissingData { expected: 6, found: 1 },
        &["cut off: 5 of 6 bytes of the tensors are missing"],
    );
}

/// The length field stays the same while the file is cut at every byte.
#[test]
fn a_file_cut_off_anywhere() {
    let whole = file(ONE, 1);
    assert!(SafeTensors::parse(&whole).is_ok());
    for len in 0..whole.len() {
        let error = SafeTensors::parse(&whole[..len]).unwrap_err();
        let expected = match len {
            0..8 => matches!(error.kind(), ErrorKind::TooShort { .. }),
            _ if len < 8 + ONE.len() => matches!(error.kind(), ErrorKind::HeaderPastEnd { .. }),
            _ => matches!(error.kind(), ErrorKind::MissingData { .. }),
        };
        assert!(expected, "{len} bytes: {error}");
    }
}
