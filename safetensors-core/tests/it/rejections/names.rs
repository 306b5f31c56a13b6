//! Duplicate keys, and metadata that is not a map of strings.

use super::rejects;
use crate::support::*;

#[test]
fn duplicate_tensor_name() {
    for (first, second) in
        [("ab", "ab"), ("ab", r"\u0061b"), ("ab", r"a\u0062"), ("", ""), ("😀", r"\ud83d\ude00")]
    {
        let between = r#""x":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"#;
        for (between, begin, end) in [("", 1, 2), (between, 0, 1), (between, 1, 1)] {
            let len = end - begin;
            let header = format!(
                r#"{{"{first}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},{between}
                    "{second}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}}}"#
            );
            let kind = ErrorKind::DuplicateTensor;
            rejects(header, 2, Some(first), kind, &["duplicate tensor name"]);
        }
    }
}

#[test]
fn duplicate_field_in_an_entry() {
    for field in ["dtype", "shape", "data_offsets"] {
        let value = match field {
            "dtype" => r#""U8""#,
            "shape" => "[1]",
            _ => "[0,1]",
        };
        let escaped = field.replacen('t', r"\u0074", 1).replacen('s', r"\u0073", 1);
        for second in [field, &escaped] {
            let header = format!(
                r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"{second}":{value}}}}}"#
            );
            let kind = ErrorKind::DuplicateField { field };
            rejects(header, 1, Some("a"), kind, &[field, "duplicate field"]);
        }
    }
}

#[test]
fn duplicate_key_in_metadata() {
    for second in ["key", r"k\u0065y"] {
        let header = format!(r#"{{"__metadata__":{{"key":"1","other":"2","{second}":"1"}}}}"#);
        let kind = ErrorKind::DuplicateMetadataKey { key: "key".into() };
        rejects(header, 0, None, kind, &[r#""key""#, "duplicate key", "__metadata__"]);
    }
}

#[test]
fn second_metadata() {
    for (first, second) in [
        ("__metadata__", "__metadata__"),
        ("__metadata__", r"\u005f_metadata__"),
        (r"__met\u0061data__", "__metadata__"),
        (r"__metadat\u0061__", r"__metadata_\u005F"),
    ] {
        let header = format!(r#"{{"{first}":{{"k":"v"}},"{second}":{{}}}}"#);
        rejects(header, 0, None, ErrorKind::DuplicateMetadata, &["duplicate __metadata__"]);
    }
}

#[test]
fn metadata_is_not_a_map_of_strings() {
    for (value, found) in [
        ("[]", "an array"),
        ("\"pt\"", "a string"),
        ("1", "a number"),
        ("-1", "a number"),
        ("true", "a boolean"),
        ("false", "a boolean"),
        ("nul", "null"),
    ] {
        let header = format!(r#"{{"__metadata__":{value}}}"#);
        let kind = ErrorKind::MetadataNotAnObject { found };
        rejects(header, 0, None, kind, &["should be an object", &format!("found {found}")]);
    }
    for (value, found) in [
        ("{}", "an object"),
        ("[\"v\"]", "an array"),
        ("1", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
    ] {
        let header = format!(r#"{{"__metadata__":{{"good":"v","bad":{value}}}}}"#);
        let kind = ErrorKind::MetadataNotAString { key: "bad".into(), found };
        rejects(
            header,
            0,
            None,
            kind,
            &[r#""bad""#, "should be a string", &format!("found {found}")],
        );
    }
}

/// A tensor cannot have the name of the metadata.
#[test]
fn a_tensor_called_metadata() {
    let header = r#"{"__metadata__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let kind = ErrorKind::MetadataNotAString { key: "shape".into(), found: "an array" };
    rejects(header, 1, None, kind, &[r#""shape""#, "found an array"]);
}
