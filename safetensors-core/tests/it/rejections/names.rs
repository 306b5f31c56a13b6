//! Duplicate keys, and metadata that is not a map of strings.

use safetensors_core::ErrorKind;

use super::{file, rejects, rejects_tensor};

#[test]
fn duplicate_tensor_name() {
    for (rule, second) in [
        ("plain", "ab"),
        ("one written with an escape", r"\u0061b"),
        ("one written with another escape", r"a\u0062"),
    ] {
        let header = format!(
            r#"{{"ab":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},
                "{second}":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}}"#
        );
        rejects_tensor(
            rule,
            "ab",
            file(header, 2),
            ErrorKind::DuplicateTensor,
            &["duplicate tensor name"],
        );
    }
    let same = r#"{"ab":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},
                   "ab":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    rejects_tensor(
        "the same entry twice",
        "ab",
        file(same, 2),
        ErrorKind::DuplicateTensor,
        &["duplicate"],
    );
    let empty = r#"{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    rejects_tensor(
        "the empty name twice",
        "",
        file(empty, 0),
        ErrorKind::DuplicateTensor,
        &["duplicate"],
    );
    let pair = r#"{"😀":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
                   "\ud83d\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    rejects_tensor(
        "one as a surrogate pair",
        "😀",
        file(pair, 0),
        ErrorKind::DuplicateTensor,
        &["duplicate"],
    );
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
            rejects_tensor(second, "a", file(header, 1), kind, &[field, "duplicate field"]);
        }
    }
}

#[test]
fn duplicate_key_in_metadata() {
    for second in ["key", r"k\u0065y"] {
        let header = format!(r#"{{"__metadata__":{{"key":"1","other":"2","{second}":"1"}}}}"#);
        let kind = ErrorKind::DuplicateMetadataKey { key: "key".into() };
        rejects(second, file(header, 0), kind, &[r#""key""#, "duplicate key", "__metadata__"]);
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
        rejects(second, file(header, 0), ErrorKind::DuplicateMetadata, &["duplicate __metadata__"]);
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
        ("null", "null"),
    ] {
        let header = format!(r#"{{"__metadata__":{value}}}"#);
        let kind = ErrorKind::MetadataNotAnObject { found };
        rejects(value, file(header, 0), kind, &["should be an object", &format!("found {found}")]);
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
            value,
            file(header, 0),
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
    rejects(
        "a tensor called __metadata__",
        file(header, 1),
        kind,
        &[r#""shape""#, "found an array"],
    );
}
